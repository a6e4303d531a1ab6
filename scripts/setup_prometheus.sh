#!/usr/bin/env bash
# Unpacks Debian's Prometheus and promtool into .prometheus, so no root is needed.
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

FOLDER=$PWD/.prometheus
[ -x "$FOLDER/usr/bin/promtool" ] && exit 0

for tool in apt-get dpkg; do
    command -v "$tool" >/dev/null || die "this needs $tool, as on Debian and Ubuntu"
done

apt_update_in "$FOLDER"
(cd "$FOLDER" && apt_in "$FOLDER" download prometheus >>log 2>&1) || die "apt-get could not download: $(tail -n 1 "$FOLDER/log")"
dpkg -x "$FOLDER"/prometheus_*.deb "$FOLDER"
