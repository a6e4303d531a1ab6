#!/usr/bin/env bash
# Runs a model with windows or recurrent states on vLLM, with a scarce pool: prints vLLM's own count of its blocks and
# ours, then runs a list with what vLLM reports for each sequence, and again with nothing reserved for it.
# usage: bench/gpu/vllm/windows.sh SHAPE POOL_BLOCKS LIST OUT [further options of vllm serve]   (where unpack.sh ran)
set -euo pipefail
H=${H:-/opt/lb}
shape=$1 blocks=$2 list=$3 out=$4
shift 4
cd "$H/code"
python=$H/ppython/bin/python3
export PYTHONPATH=$H/code:$H/code/client LONGBATCH_TOKENIZER__PATH=$H/psite/tokenizer

stop() { # PID_FILE
    [ ! -e "$1" ] || kill -- "-$(cat "$1")" 2>/dev/null || true
    sleep 4
}
trap 'stop "$H/windows.pid"; stop "$H/vllm.pid"' EXIT

bash bench/gpu/vllm/serve.sh "$shape" 8000 --max-num-seqs 64 --num-gpu-blocks-override "$blocks" "$@"
grep -E "KV cache size|Maximum concurrency|max_num_batched_tokens|block size" "$H/vllm.log" | cut -c1-240 || true
curl -s http://127.0.0.1:8000/metrics | grep cache_config_info | grep -v '^#'
"$python" -m cli engine plan --config "$H/model-$shape/config.json" --gpu h100 || true

for constant in reported 0; do
    settings=(LONGBATCH_ENGINE__MAX_BATCH_SIZE=64)
    [ "$constant" = reported ] || settings+=("LONGBATCH_ENGINE__BLOCKS_PER_SEQUENCE=$constant")
    bash bench/gpu/vllm/up.sh code windows 9000 http://127.0.0.1:8000 "${settings[@]}"
    grep -h "^Engine" "$H/windows.log" || true
    "$python" -m bench.gpu.vllm measure --engine http://127.0.0.1:8000 --ready "$H/windows/ready.json" --list "$list" \
        --shape "$shape" --slots 64 --note "constant $constant" --order longbatch --patience "${PATIENCE:-150}" --out "$out"
    stop "$H/windows.pid"
done
