#!/usr/bin/env bash
# @{header}
# Triton in a container, on the loopback address. DATA and REPOSITORY are folders; TRITON_IMAGE names the image in full.
set -euo pipefail
rendered=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec docker run --rm --init --name "${NAME:-@{name}}" \
    --gpus "${GPUS:-@{gpu_count}}" --shm-size=1g --ulimit memlock=-1 --ulimit stack=67108864 \
    -p "127.0.0.1:${HTTP_PORT:-8000}:8000" -p "127.0.0.1:${GRPC_PORT:-8001}:8001" -p "127.0.0.1:${METRICS_PORT:-8002}:8002" \
    -e "MULTI_MODEL=${MULTI_MODEL:-0}" \
    -v "${DATA:?the folder with models and engines}:/data:ro" \
    -v "${REPOSITORY:?the folder that Triton loads}:/models:ro" \
    -v "$rendered:/rendered:ro" \
    "${TRITON_IMAGE:-@{image}}" bash /rendered/serve.sh
