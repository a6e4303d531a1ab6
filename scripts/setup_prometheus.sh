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

# With package lists of its own: the system's may be missing or old, and only root can renew them.
apt() {
    apt-get -q -o "Dir::State::lists=$FOLDER/lists" -o "Dir::Cache=$FOLDER/cache" \
        -o "APT::Sandbox::User=$(id -un)" "$@"
}

mkdir -p "$FOLDER"/{lists/partial,cache/archives/partial}
apt update >"$FOLDER/log" 2>&1 || true # one broken source among many need not matter
(cd "$FOLDER" && apt download prometheus >>log 2>&1) || die "apt-get could not download: $(tail -n 1 "$FOLDER/log")"
dpkg -x "$FOLDER"/prometheus_*.deb "$FOLDER"
