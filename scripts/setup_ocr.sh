#!/usr/bin/env bash
# Adds the extra `ocr` to .venv: the packages that make setup leaves out. Does nothing that is done already.
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

[ -x .venv/bin/python ] || die "run make setup first."
wanted="$(cat .venv/longbatch-python) $(sha256sum <requirements-ocr.lock)"
[ "$(cat .venv/longbatch-ocr 2>/dev/null)" = "$wanted" ] && exit 0
echo "setup: installing OCR into .venv (95 MB of wheels, 200 MB unpacked)"
.venv/bin/python -m pip install --quiet --no-input --disable-pip-version-check --no-deps --require-hashes \
    -r requirements-ocr.lock || die "pip could not install requirements-ocr.lock (its words stand above)."
printf '%s\n' "$wanted" >.venv/longbatch-ocr
