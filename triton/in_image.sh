#!/usr/bin/env bash
# in_image.sh fetch|convert|build|repository
# One stage inside NVIDIA's image, where /rendered, /data and /models are mounted. Places that differ between images
# are looked for. ROOT: a folder that holds all of them, when this is no container.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
ROOT=${ROOT:-}
load_rendered "$ROOT/rendered"
app=$ROOT/app
# A template without these is another engine's.
required=" triton_max_batch_size decoupled_mode engine_dir tokenizer_dir max_tokens_in_paged_kv_cache"
required+=" batch_scheduler_policy enable_chunked_context gpu_device_ids num_nodes tensorrt_llm_draft_model_name "

# The first of these paths that exists.
first_of() {
    local path
    for path; do
        if [ -e "$path" ]; then
            echo "$path"
            return
        fi
    done
    die "this image has none of $*: is $TRITON_IMAGE one with TensorRT-LLM?"
}

# Who made a result: the image and the command.
stamp_of() {
    echo "image $TRITON_IMAGE"
    cat "$@"
}

# staged OUT STAMP COMMAND…: OUT holds what the command wrote to a folder that it gets as its last argument.
staged() {
    local out=$1 stamp=$2
    shift 2
    if [ -f "$out/.longbatch" ] && [ "$(<"$out/.longbatch")" = "$stamp" ]; then
        note "$out is already made"
        return
    fi
    rm -rf "$out.partial"
    mkdir -p "$(dirname "$out")"
    "$@" "$out.partial" || die "$1 $2 failed; nothing was changed in $out"
    echo "$stamp" >"$out.partial/.longbatch"
    replace "$out.partial" "$out"
    note "$out is made"
}

replace() {
    rm -rf "$2.old"
    [ ! -e "$2" ] || mv "$2" "$2.old"
    mv "$1" "$2"
    rm -rf "$2.old"
}

fetch() {
    python3 - "$MODEL_REPOSITORY" "$ROOT$MODEL_DIR" <<'END'
import sys
from huggingface_hub import snapshot_download
snapshot_download(sys.argv[1], local_dir=sys.argv[2], ignore_patterns=["original/*"])
END
}

convert() {
    local folders=(examples/models/core/llama examples/llama) script paths=()
    [ "$CONVERT_SCRIPT" = convert_checkpoint.py ] || folders=(examples/quantization)
    for folder in "${folders[@]}"; do
        paths+=("$app/$folder/$CONVERT_SCRIPT" "$app/tensorrt_llm/$folder/$CONVERT_SCRIPT")
    done
    script=$(first_of "${paths[@]}")
    staged "$ROOT$CHECKPOINT_DIR" "$(stamp_of "$rendered/convert.sh")" bash "$rendered/convert.sh" "$script"
}

build() {
    [ -f "$ROOT$CHECKPOINT_DIR/.longbatch" ] || die "there is no checkpoint yet: in_image.sh convert"
    command -v trtllm-build >/dev/null || die "there is no trtllm-build: is $TRITON_IMAGE an image with TensorRT-LLM?"
    # The checkpoint's stamp too: another checkpoint makes another engine.
    staged "$ROOT$ENGINE_DIR" "$(stamp_of "$ROOT$CHECKPOINT_DIR/.longbatch" "$rendered/build.sh")" \
        bash "$rendered/build.sh"
}

repository() {
    local templates fill place
    [ "${CONFIGS:-image}" = image ] ||
        note "CONFIGS=$CONFIGS has no effect any more: only the image's own templates declare all that its backend needs"
    if [ "$FLOW" = llmapi ]; then
        make_llmapi
        return
    fi
    templates=$(first_of "$app/all_models/inflight_batcher_llm" \
        "$app/tensorrt_llm/triton_backend/all_models/inflight_batcher_llm")
    fill=$(first_of "$app/tools/fill_template.py" "$app/tensorrt_llm/triton_backend/tools/fill_template.py")
    read -ra names <<<"$MODELS"
    read -ra sources <<<"$MODEL_TEMPLATES"
    for place in "${!names[@]}"; do
        make_model "${names[place]}" "$templates/${sources[place]}" "$fill"
    done
}

# make_model NAME TEMPLATE FILL_SCRIPT
make_model() {
    local name=$1 template=$2 fill=$3 partial=$ROOT/models/.$1.partial pairs
    [ -f "$template/config.pbtxt" ] || die "this image has no $template/config.pbtxt"
    rm -rf "$partial"
    cp -R "$template" "$partial"
    mkdir -p "$partial/1"
    pairs=$(values_of "$name" "$partial/config.pbtxt")
    python3 "$fill" -i "$partial/config.pbtxt" "$pairs"
    sed -i "s/^name: \"tensorrt_llm\"/name: \"$name\"/" "$partial/config.pbtxt"
    replace "$partial" "$ROOT/models/$name"
    note "$name is made"
}

# The image's model as it is, with our model.yaml.
make_llmapi() {
    local template partial=$ROOT/models/.$TRITON_NAME.partial
    template=$(first_of "$app/all_models/llmapi/tensorrt_llm" \
        "$app/tensorrt_llm/triton_backend/all_models/llmapi/tensorrt_llm")
    rm -rf "$partial"
    cp -R "$template" "$partial"
    cp "$rendered/model.yaml" "$partial/1/model.yaml"
    sed -i "s/^name: \"tensorrt_llm\"/name: \"$TRITON_NAME\"/" "$partial/config.pbtxt"
    replace "$partial" "$ROOT/models/$TRITON_NAME"
    note "$TRITON_NAME is made"
}

# The values that this image's template knows, as fill_template.py wants them.
values_of() {
    local pair key pairs=()
    local comma=, # of a value: fill_template.py wants a backslash before it
    while read -r pair; do
        key=${pair%%:*}
        if grep -qF "\${$key}" "$2"; then
            pairs+=("${pair//$comma/\\$comma}")
        elif [[ $required == *" $key "* ]]; then
            die "the image's template of $1 has no $key: it cannot be set up by this profile"
        else
            note "the image's template of $1 has no $key; left out"
        fi
    done <"$rendered/fill/$1"
    (IFS=, && echo "${pairs[*]}")
}

case ${1:-} in
    fetch | convert | build | repository) "$1" ;;
    *) usage ;;
esac
