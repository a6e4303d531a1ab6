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

apt_update_in "$FOLDER"
for package in libfaketime nftables libnftables1 libnftnl11 libxtables12 libmnl0 libjansson4 libedit2 libgmp10; do
    (cd "$FOLDER" && apt_in "$FOLDER" download "$package" >>log 2>&1) || { echo "apt-get could not download $package: $(tail -n 1 "$FOLDER/log")"; exit 0; }
done
for package in "$FOLDER"/*.deb; do
    dpkg -x "$package" "$FOLDER"
done
touch "$FOLDER/complete"
