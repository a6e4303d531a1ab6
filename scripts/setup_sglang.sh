#!/usr/bin/env bash
# Leaves a .venv-sglang that holds SGLang's HTTP server for the CPU, for `make test-sglang`: about 3.5 GB.
# SGLang's own requirements are for GPUs; its server imports only those in tests/with_sglang/requirements.txt, and
# stubs stand for the rest (tests/with_sglang/server/absent.py). In a folder of its own: vLLM, of which a test
# imports the model of a request. Does nothing that is done already.
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

SGLANG=sglang==0.5.23
# With what the module of its request model imports.
VLLM=(vllm==0.33.0 cachetools==8.0.2 cbor2==6.3.0 cloudpickle==3.1.3 openai-harmony==0.0.8 py-cpuinfo==9.0.0)
REQUIREMENTS=tests/with_sglang/requirements.txt

[ -x .venv/bin/python ] || die "run make setup first."
wanted="$(cat .venv/longbatch-python) $SGLANG ${VLLM[*]} $(sha256sum <"$REQUIREMENTS")"
[ "$(cat .venv-sglang/longbatch-sglang 2>/dev/null)" = "$wanted" ] && exit 0

echo "setup: installing $SGLANG into .venv-sglang (about 3.5 GB, some minutes)"
.venv/bin/python -m venv --clear .venv-sglang || die "the virtual environment .venv-sglang could not be made."
pip() {
    .venv-sglang/bin/python -m pip --quiet --no-input --disable-pip-version-check install "$@"
}
pip -r "$REQUIREMENTS" ||
    die "pip could not install $REQUIREMENTS. It needs torch==2.13.0+cpu: let pip find that wheel (PIP_FIND_LINKS=folder, or PyTorch's own index for the CPU)."
pip --no-deps "$SGLANG" || die "pip could not install $SGLANG."
pip --no-deps --target .venv-sglang/vllm "${VLLM[@]}" || die "pip could not install ${VLLM[0]}."
printf '%s\n' "$wanted" >.venv-sglang/longbatch-sglang
