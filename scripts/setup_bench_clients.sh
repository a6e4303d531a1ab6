#!/usr/bin/env bash
# Leaves AIPerf and genai-bench, for `make bench-clients`, in .venv-bench-clients (1.1 GB). Does nothing that is done
# already.
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

ENVIRONMENT=.venv-bench-clients
LOCK=bench/clients/clients.lock

[ -x .venv/bin/python ] || die "run make setup first."
wanted="$(cat .venv/longbatch-python) $(sha256sum <"$LOCK")"
[ "$(cat "$ENVIRONMENT/longbatch-lock" 2>/dev/null)" = "$wanted" ] && exit
echo "setup: installing AIPerf and genai-bench into $ENVIRONMENT"
.venv/bin/python -m venv --clear "$ENVIRONMENT" || die "the virtual environment $ENVIRONMENT could not be made."
"$ENVIRONMENT/bin/python" -m pip install --quiet --no-input --disable-pip-version-check --no-compile --no-deps --require-hashes \
    --only-binary :all: -r "$LOCK" || die "pip could not install $LOCK (its words stand above)."
printf '%s\n' "$wanted" >"$ENVIRONMENT/longbatch-lock"
