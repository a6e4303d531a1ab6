#!/usr/bin/env bash
# Starts vLLM as people do, with random weights, and waits until it answers.
# usage: bench/gpu/vllm/serve.sh SHAPE PORT [further options of vllm serve]   (log: $H/vllm.log, pid: $H/vllm.pid)
H=${H:-/opt/lb}
shape=$1 port=$2
shift 2
cd "$H" || exit 1
export MARKS_JSON=$H/marks.json VLLM_SERVER_DEV_MODE=1 VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1
export VLLM_USE_FLASHINFER_SAMPLER=0 VLLM_CACHE_ROOT=$H/vcache TRITON_CACHE_DIR=$H/tcache DO_NOT_TRACK=1
for try in 1 2 3 4 5 6; do
    setsid "$H/vpython/bin/python3" -m vllm.entrypoints.openai.api_server --model "$H/model-$shape" \
        --served-model-name llama --load-format dummy --enable-prompt-tokens-details \
        --host 127.0.0.1 --port "$port" "$@" >"$H/vllm.log" 2>&1 </dev/null &
    pid=$!
    echo "$pid" >"$H/vllm.pid"
    for ((i = 0; i < 600; i++)); do
        curl -sf "http://127.0.0.1:$port/health" >/dev/null && { echo "vLLM answers after $SECONDS s"; exit 0; }
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.5
    done
    # A module that only an optional feature needs: put a stand-in for it in place and try again.
    missing=$(grep -oE "No module named '[A-Za-z0-9_]+" "$H/vllm.log" | tail -n 1 | sed "s/.*'//")
    echo "start $try failed; missing module: ${missing:-none}"
    [ -n "$missing" ] && [ ! -e "$H/vsite/$missing" ] || break
    mkdir -p "$H/vsite/$missing"
    printf 'from unittest.mock import MagicMock\n__path__ = []\ndef __getattr__(name):\n    if name.startswith("__"): raise AttributeError(name)\n    return MagicMock()\n' >"$H/vsite/$missing/__init__.py"
done
tail -n 40 "$H/vllm.log"
exit 1
