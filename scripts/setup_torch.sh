#!/usr/bin/env bash
# Leaves a .venv-torch that holds torch and sees all of .venv: for the transformers engine and its tests.
# Does nothing that is done already; gigabytes, since torch's default wheel brings CUDA.
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

[ -x .venv/bin/python ] || die "run make setup first."
wanted="$(cat .venv/longbatch-python) $(grep '^transformers-engine' pyproject.toml)"
[ "$(cat .venv-torch/longbatch-torch 2>/dev/null)" = "$wanted" ] && exit 0

echo "setup: installing torch into .venv-torch (about 5 GB, some minutes)"
.venv/bin/python -m venv --clear .venv-torch || die "the virtual environment .venv-torch could not be made."
site() {
    "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
}
# Nothing that .venv has is installed again, and numpy stays the one that Triton's Python backend can read.
echo "import site; site.addsitedir('$(site .venv)')" >"$(site .venv-torch)/longbatch.pth"
sed -nE 's/^transformers-engine = \[(.*)\]$/\1/p' pyproject.toml | tr -d '" ' | tr ',' '\n' >.venv-torch/requirements.txt
.venv-torch/bin/python -m pip install --quiet --no-input --disable-pip-version-check \
    -r .venv-torch/requirements.txt || die "pip could not install torch (its words stand above)."
printf '%s\n' "$wanted" >.venv-torch/longbatch-torch
