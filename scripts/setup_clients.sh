#!/usr/bin/env bash
# Leaves the clients of `make test-clients`: Python's in .venv-clients (three environments, as their versions
# conflict, 1.8 GB), JavaScript's in tests/with_clients/javascript/node_modules (110 MB). Does nothing that is done
# already.
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

FOLDER=tests/with_clients

[ -x .venv/bin/python ] || die "run make setup first."

install_environment() {
    local name=$1 wanted environment=.venv-clients/$1
    wanted="$(cat .venv/longbatch-python) $(sha256sum <"$FOLDER/environments/$name.lock")"
    [ "$(cat "$environment/longbatch-lock" 2>/dev/null)" = "$wanted" ] && return
    echo "setup: installing the clients of $name.lock into $environment"
    .venv/bin/python -m venv --clear "$environment" || die "the virtual environment $environment could not be made."
    "$environment/bin/python" -m pip install --quiet --no-input --disable-pip-version-check --no-compile --no-deps --require-hashes \
        --only-binary :all: -r "$FOLDER/environments/$name.lock" ||
        die "pip could not install $FOLDER/environments/$name.lock (its words stand above)."
    printf '%s\n' "$wanted" >"$environment/longbatch-lock"
}

install_javascript() {
    local wanted folder=$FOLDER/javascript
    wanted=$(sha256sum <"$folder/package-lock.json")
    [ "$(cat "$folder/node_modules/.longbatch-lock" 2>/dev/null)" = "$wanted" ] && return
    .venv/bin/npm ci --prefix "$folder" --cache .venv/npm-cache --ignore-scripts --loglevel=error >/dev/null ||
        die "npm could not install $folder (its words stand above)."
    printf '%s\n' "$wanted" >"$folder/node_modules/.longbatch-lock"
}

for name in openai3 openai2 curator; do install_environment "$name"; done
install_javascript
