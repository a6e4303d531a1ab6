#!/usr/bin/env bash
# Unpacks Debian's faketime and nftables into .drill, so no root is needed; without them the drill goes on without wrong clocks or lost packets.
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

FOLDER=$PWD/.drill
[ -e "$FOLDER/complete" ] && exit 0

for tool in apt-get dpkg; do
    command -v "$tool" >/dev/null || { echo "no $tool here: the drill does without wrong clocks and lost packets"; exit 0; }
done

# With package lists of its own: the system's may be missing or old, and only root can renew them.
apt() {
    apt-get -q -o "Dir::State::lists=$FOLDER/lists" -o "Dir::Cache=$FOLDER/cache" \
        -o "APT::Sandbox::User=$(id -un)" "$@"
}

mkdir -p "$FOLDER"/{lists/partial,cache/archives/partial}
apt update >"$FOLDER/log" 2>&1 || true # one broken source among many need not matter
for package in libfaketime nftables libnftables1 libnftnl11 libxtables12 libmnl0 libjansson4 libedit2 libgmp10; do
    (cd "$FOLDER" && apt download "$package" >>log 2>&1) || { echo "apt-get could not download $package: $(tail -n 1 "$FOLDER/log")"; exit 0; }
done
for package in "$FOLDER"/*.deb; do
    dpkg -x "$package" "$FOLDER"
done
touch "$FOLDER/complete"
