#!/usr/bin/env bash
# Starts the product in front of an engine, as its documentation says, and waits until it answers.
# usage: bench/gpu/vllm/up.sh CODE STATE PORT ENGINE_URL [NAME=VALUE]...   (CODE and STATE: folders under $H)
H=${H:-/opt/lb}
code=$1 state=$H/$2 port=$3 url=$4
shift 4
mkdir -p "$state"
chmod 711 "$state"
rm -f "$state/ready.json"
cd "$H/$code" || exit 1
setsid env PYTHONPATH="$H/$code:$H/$code/client" LONGBATCH_TOKENIZER__PATH="$H/psite/tokenizer" LONGBATCH_ENGINE__URL="$url" "$@" \
    "$H/ppython/bin/python3" -m cli up --data-dir "$state" --port "$port" >"$state.log" 2>&1 </dev/null &
echo $! >"$state.pid"
for ((i = 0; i < 120; i++)); do
    [ -e "$state/ready.json" ] && { echo "Longbatch answers after $SECONDS s"; exit 0; }
    kill -0 "$(cat "$state.pid")" 2>/dev/null || break
    sleep 0.5
done
tail -n 30 "$state.log"
exit 1
