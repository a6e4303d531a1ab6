#!/usr/bin/env bash
# @{header}
# A checkpoint to an engine for @{gpu_count} × @{gpu}; it runs on that kind of GPU alone. Inside the image: build.sh OUTPUT
set -euo pipefail
exec trtllm-build \
@{build_options} \
    --output_dir "$1"
