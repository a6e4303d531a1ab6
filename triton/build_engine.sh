#!/usr/bin/env bash
# build_engine.sh RENDERED DATA
# DATA holds the profile's engine: converts the model, then builds. Each stage is skipped when its result was made by
# the same command in the same image, and leaves nothing half done.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
[ $# = 2 ] || usage
load_rendered "$1"
load_data "$2"
if [ "$FLOW" = llmapi ]; then
    note "llmapi serves the model as it is: nothing to build"
    exit 0
fi
is_whole_model "$(on_host "$MODEL_DIR")" || die "the model is not in $data: run fetch_model.sh $1 $2"
need_gpu
need_docker
need_image
run_in_image convert --gpus "$GPU_COUNT"
run_in_image build --gpus "$GPU_COUNT"
note "the engine is in $(on_host "$ENGINE_DIR")"
