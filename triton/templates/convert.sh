#!/usr/bin/env bash
# @{header}
# Hugging Face's weights to a TensorRT-LLM checkpoint. Inside the image: convert.sh SCRIPT OUTPUT
set -euo pipefail
exec python3 "$1" \
@{convert_options} \
    --output_dir "$2"
