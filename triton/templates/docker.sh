#!/usr/bin/env bash
# @{header}
# Triton in a container, on the loopback address. DATA and REPOSITORY are folders; TRITON_IMAGE names another image.
# DETACH=1: in the background, started again when it or the machine fails, until docker stop.
set -euo pipefail
rendered=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mode=(--rm)
[ "${DETACH:-0}" = 0 ] || mode=(--detach --restart unless-stopped)
exec docker run "${mode[@]}" --init --name "${NAME:-@{name}}" \
    --gpus "${GPUS:-@{docker_gpus}}" --shm-size=2g --ulimit memlock=-1 --ulimit stack=67108864 \
    -p "127.0.0.1:${HTTP_PORT:-8000}:8000" -p "127.0.0.1:${GRPC_PORT:-8001}:8001" -p "127.0.0.1:${METRICS_PORT:-8002}:8002" \
    -e "MULTI_MODEL=${MULTI_MODEL:-0}" \
    -v "${DATA:?the folder with models and engines}:/data:ro" \
    -v "${REPOSITORY:?the folder that Triton loads}:/models:ro" \
    -v "$rendered:/rendered:ro" \
    "${TRITON_IMAGE:-@{image}}" bash /rendered/serve.sh
