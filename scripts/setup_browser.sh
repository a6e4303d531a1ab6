#!/usr/bin/env bash
# Fetches the browser of the console's tests into the user's cache: Debian's headless Chromium with its libraries and
# fonts, unpacked and not installed (so no root is needed), Playwright from PyPI and axe-core from npm.
# Does nothing if the cache has this version; to get Debian's newest Chromium, remove the folder first.
# --folder prints the folder of this version and fetches nothing.
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
exec 9<&- # common.sh's lock on the checkout: make setup need not wait for the browser

PACKAGES=(chromium-headless-shell fonts-inter fonts-dejavu-core)
AXE=4.14.1
AXE_SHA512=FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==
CACHE=${LONGBATCH_CACHE_DIR:-${XDG_CACHE_HOME:-${HOME:-/var/tmp}/.cache}/longbatch}
# Another script, another lock or another Debian is another version.
VERSION=$(cat scripts/setup_browser.sh requirements-browser.lock /etc/debian_version 2>/dev/null | sha256sum | head -c 16)
READY=$CACHE/browser-$VERSION # a whole browser, or missing
FOLDER=                       # of this fetch; becomes READY by a rename

# apt itself names what this machine lacks; the first package comes even where it is installed.
fetch_chromium() {
    local names package
    mkdir -p "$FOLDER/apt/packages"
    apt_update_in "$FOLDER/apt"
    apt_in "$FOLDER/apt" install --simulate --reinstall --no-install-recommends "${PACKAGES[@]}" >"$FOLDER/apt/plan" 2>>"$FOLDER/apt/log" ||
        die "apt has no ${PACKAGES[*]}, which Debian 12 and newer have: $(tail -n 1 "$FOLDER/apt/log")"
    mapfile -t names < <(awk '/^Inst/ { print $2 }' "$FOLDER/apt/plan")
    echo "browser: ${#names[@]} packages: ${names[*]}"
    (cd "$FOLDER/apt/packages" && apt_in "$FOLDER/apt" download "${names[@]}" >>"$FOLDER/apt/log" 2>&1) ||
        die "apt-get could not download them: $(tail -n 1 "$FOLDER/apt/log")"
    for package in "$FOLDER"/apt/packages/*.deb; do
        dpkg -x "$package" "$FOLDER/debian"
    done
    rm -rf "$FOLDER/apt"
}

# These fonts alone, so that pages look the same on every machine; and a command that finds its libraries.
# The command works before and after the rename; fonts are read after it alone.
write_command() {
    cat >"$FOLDER/fonts.conf" <<END
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">
<fontconfig>
  <dir>$READY/debian/usr/share/fonts</dir>
  <cachedir>$READY/font-cache</cachedir>
  <alias><family>sans-serif</family><prefer><family>Inter</family><family>DejaVu Sans</family></prefer></alias>
  <alias><family>system-ui</family><prefer><family>Inter</family><family>DejaVu Sans</family></prefer></alias>
  <alias><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
</fontconfig>
END
    local libraries
    # shellcheck disable=SC2016 # the command itself expands $here
    libraries=$(cd "$FOLDER" && find debian -name '*.so*' ! -path '*/chromium/*' -printf '$here/%h\n' | sort -u | paste -s -d :)
    cat >"$FOLDER/chromium" <<END
#!/bin/sh
here=\${0%/*}
export LD_LIBRARY_PATH="$libraries" FONTCONFIG_FILE="\$here/fonts.conf"
exec "\$here/debian/usr/lib/chromium/chromium-headless-shell" "\$@"
END
    chmod +x "$FOLDER/chromium"
    "$FOLDER/chromium" --version >/dev/null || die "the unpacked Chromium does not start (its words stand above)."
}

# Not in .venv: 130 MB that only these tests need. greenlet, which it needs, is in .venv.
fetch_playwright() {
    .venv/bin/python -m pip install --quiet --no-input --disable-pip-version-check --no-deps --require-hashes \
        --no-compile --target "$FOLDER/python" -r requirements-browser.lock ||
        die "pip could not install requirements-browser.lock (its words stand above)."
}

fetch_axe() {
    local archive=$FOLDER/axe-core-$AXE.tgz found
    .venv/bin/npm pack "axe-core@$AXE" --pack-destination "$FOLDER" --cache "$FOLDER/npm-cache" --loglevel=error >/dev/null ||
        die "npm could not fetch axe-core (its words stand above)."
    found=$(.venv/bin/python -c 'import base64, hashlib, pathlib, sys
print(base64.b64encode(hashlib.sha512(pathlib.Path(sys.argv[1]).read_bytes()).digest()).decode())' "$archive")
    [ "$found" = "$AXE_SHA512" ] || die "axe-core $AXE has the SHA-512 $found, not the one of this script."
    tar -xzf "$archive" -C "$FOLDER" --strip-components 1 package/axe.min.js
    rm -rf "$archive" "$FOLDER/npm-cache"
}

# Versions that no run has used for two weeks; and what killed fetches left, where the lock shows that none runs.
remove_old() {
    find "$CACHE" -maxdepth 1 -name 'browser-*' ! -path "$READY" -mtime +14 -exec rm -rf {} +
    ! command -v flock >/dev/null || find "$CACHE" -maxdepth 1 -name 'fetching-*' -exec rm -rf {} +
}

if [ "${1:-}" = --folder ]; then
    echo "$READY"
    exit 0
fi
if [ -e "$READY" ]; then
    touch "$READY" # see remove_old
    exit 0
fi
[ -x .venv/bin/python ] || die "run make setup first."
for tool in apt-get dpkg; do
    command -v "$tool" >/dev/null || die "$tool is missing: the browser comes from Debian's packages."
done
mkdir -p "$CACHE"
if command -v flock >/dev/null; then
    exec 8>"$CACHE/browser.lock"
    flock 8 # another fetch; it ends with its last process
    [ ! -e "$READY" ] || exit 0
fi
remove_old
echo "browser: fetching Debian's headless Chromium, Playwright and axe-core into $READY,"
echo "browser: about 150 MB to download; nothing is installed on the system and no root is needed"
FOLDER=$(mktemp -d "$CACHE/fetching-XXXXXX")
trap 'rm -rf "$FOLDER"' EXIT
fetch_chromium
write_command
fetch_playwright
fetch_axe
chmod 755 "$FOLDER"
# Fails where another fetch was quicker, without flock; its browser is as good.
mv -T "$FOLDER" "$READY" || [ -e "$READY" ]
echo "browser: $("$READY/chromium" --version) is ready ($(du -sh "$READY" | cut -f 1)); make test-console runs the console's tests in it"
