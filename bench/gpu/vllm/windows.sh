#!/usr/bin/env bash
# Runs a model with windows or recurrent states on vLLM, with a scarce pool: prints vLLM's own count of its blocks, then
# runs a list three times. "kept" is the default: each sequence reserves what it keeps, and what prompts take while they
# are read is held free once. "all" reserves all of it for each sequence, and "none" reserves nothing.
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
most=$("$python" - <<'PYTHON'
import re, urllib.request
from worker.engine.http.vllm import blocks_per_sequence
text = urllib.request.urlopen("http://127.0.0.1:8000/metrics").read().decode()
line = next(each for each in text.splitlines() if each.startswith("vllm:cache_config_info{"))
print(blocks_per_sequence(dict(re.findall(r'(\w+)="([^"]*)"', line)), 1))
PYTHON
)
echo "blocks of a sequence besides its text while its prompt is read: $most"

for reserved in kept all none; do
    settings=(LONGBATCH_ENGINE__MAX_BATCH_SIZE=64)
    [ $reserved != all ] || settings+=("LONGBATCH_ENGINE__BLOCKS_PER_SEQUENCE=$most")
    # Nothing is held free of a pool that is larger by as much.
    [ $reserved != none ] || settings+=(LONGBATCH_ENGINE__BLOCKS_PER_SEQUENCE=0 "LONGBATCH_ENGINE__MAX_BLOCKS=$((blocks - 1 + most))")
    bash bench/gpu/vllm/up.sh code windows 9000 http://127.0.0.1:8000 "${settings[@]}"
    grep -h "^Engine" "$H/windows.log" || true
    "$python" -m bench.gpu.vllm measure --engine http://127.0.0.1:8000 --ready "$H/windows/ready.json" --list "$list" \
        --shape "$shape" --slots 64 --note "$reserved" --order longbatch --patience "${PATIENCE:-150}" --out "$out"
    stop "$H/windows.pid"
done
