#!/usr/bin/env bash
# Unpacks Debian's podman, buildah and mmdebstrap into .images/tools, which needs no root. What the system has is not fetched.
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

FOLDER=$PWD/.images/tools
[ -e "$FOLDER/complete" ] && exit 0

for tool in apt-get dpkg; do
    command -v "$tool" >/dev/null || die "this needs $tool, as on Debian and Ubuntu"
done

apt_update_in "$FOLDER"
mkdir -p "$FOLDER/root"
# Nothing is installed: apt only finds out and fetches what these need and the system lacks.
apt_in "$FOLDER" -o Debug::NoLocking=1 install --yes --no-install-recommends --download-only podman buildah crun conmon \
    slirp4netns fuse-overlayfs mmdebstrap >>"$FOLDER/log" 2>&1 || die "apt-get could not download: $(tail -n 1 "$FOLDER/log")"
for package in "$FOLDER"/cache/archives/*.deb; do
    dpkg -x "$package" "$FOLDER/root"
done
touch "$FOLDER/complete"
