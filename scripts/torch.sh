#!/usr/bin/env bash
# Leaves a working .venv-torch: everything of .venv, and torch for the transformers engine. Does nothing twice.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
unset PYTHONHOME PYTHONPATH

wanted=$(cat requirements.lock pyproject.toml | sha256sum)
[ "$(cat .venv-torch/longbatch-torch 2>/dev/null)" = "$wanted" ] && exit 0

# pyvenv.cfg of .venv names the interpreter that setup chose.
python=$(sed -n 's/^executable = //p' .venv/pyvenv.cfg)
"${python:-python3}" -m venv --clear .venv-torch
echo "torch: installing torch and the locked dependencies into .venv-torch (about 5 GB, some minutes)"
pip() {
    .venv-torch/bin/python -m pip --quiet --no-input --disable-pip-version-check "$@"
}
pip install --require-hashes -r requirements.lock
pip install --no-deps --no-build-isolation --editable .
pip install 'longbatch[transformers-engine]'
printf '%s\n' "$wanted" >.venv-torch/longbatch-torch
