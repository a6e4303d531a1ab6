#!/usr/bin/env bash
# Unpacks what pack.sh packed on a machine that has torch: vLLM and the product, each with a Python of its own.
# usage: bench/gpu/vllm/unpack.sh FOLDER_OF_PARTS   (into $H, by default /opt/lb)
set -euo pipefail
H=${H:-/opt/lb}
mkdir -p "$H/boot"
python3 -m zipfile -e "$1"/zstandard-*.whl "$H/boot"
cat "$1"/part.tar.zst.* | PYTHONPATH=$H/boot python3 -c '
import sys, tarfile, zstandard
with zstandard.ZstdDecompressor(max_window_size=2**28).stream_reader(sys.stdin.buffer) as stream:
    tarfile.open(fileobj=stream, mode="r|").extractall(sys.argv[1], filter="fully_trusted")
' "$H"
for each in "$1"/code*.tar.gz; do
    tar -C "$H" -xzf "$each"
done
site=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
for each in v p; do
    python3 -m venv --without-pip "$H/${each}python"
    own=$("$H/${each}python/bin/python3" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    printf '%s\n' "$H/${each}site" "$site" >"$own/packed.pth" # what was packed comes before the machine's
done
for each in "$H"/model-*; do
    cp "$H"/psite/tokenizer/* "$each/"
done
chmod -R a+rX "$H" # Postgres runs as another user
