#!/usr/bin/env bash
# Runs target G on a GPU machine without package registries, from what bench/gpu/pack.sh packed into .gpu/.
# usage: bench/gpu/run.sh OUT 'SEED ORDER [JOBS [WORKLOAD]]'...   (e.g. gpu.jsonl '1 acca' '2 dacd 72 QUESTIONS')
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out=$(realpath -m "$1")
shift

# Postgres runs as another user, which must be able to read its programs and our code.
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
chmod 755 "$home"
mkdir "$home/site" "$home/code"
tar -C "$home/site" -xJf .gpu/site.tar.xz
tar -cf - --exclude=./.gpu --exclude=./.git --exclude='./.venv*' . | tar -C "$home/code" -xf -
chmod -R a+rX "$home"
cd "$home/code"
# An interpreter of its own, since servers are started without PYTHONPATH: what was packed comes before the machine's.
python3 -m venv --without-pip "$home/python"
{ echo "$home/site"; python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; } \
    >"$("$home/python/bin/python3" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/longbatch.pth"
export PATH=$home/python/bin:$PATH PYTHONPATH=$home/code LONGBATCH_TOKENIZER__PATH=$home/site/tokenizer

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
python3 -c 'import torch, transformers; print("torch", torch.__version__, "transformers", transformers.__version__)'
for each in "$@"; do
    read -r seed order jobs workload <<<"$each"
    python3 -m bench.gpu.target_g --seed "$seed" --order "$order" --jobs "${jobs:-24}" --workload "${workload:-MIX-20}" --out "$out"
done
