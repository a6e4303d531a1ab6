#!/usr/bin/env bash
# Leaves in .browser what the console's tests need: Debian's headless Chromium with the libraries and fonts that it
# needs, unpacked and not installed (so no root is needed), Playwright from PyPI and axe-core from npm. Does nothing
# that is done already; to get Debian's newest Chromium, remove .browser first.
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

PACKAGES=(chromium-headless-shell fonts-inter fonts-dejavu-core)
AXE=4.14.1
AXE_SHA512=FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==
FOLDER=$PWD/.browser

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
write_command() {
    cat >"$FOLDER/fonts.conf" <<END
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">
<fontconfig>
  <dir>$FOLDER/debian/usr/share/fonts</dir>
  <cachedir>$FOLDER/font-cache</cachedir>
  <alias><family>sans-serif</family><prefer><family>Inter</family><family>DejaVu Sans</family></prefer></alias>
  <alias><family>system-ui</family><prefer><family>Inter</family><family>DejaVu Sans</family></prefer></alias>
  <alias><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
</fontconfig>
END
    local libraries
    libraries=$(find "$FOLDER/debian" -name '*.so*' ! -path '*/chromium/*' -printf '%h\n' | sort -u | paste -s -d :)
    cat >"$FOLDER/chromium" <<END
#!/bin/sh
export LD_LIBRARY_PATH='$libraries' FONTCONFIG_FILE='$FOLDER/fonts.conf'
exec '$FOLDER/debian/usr/lib/chromium/chromium-headless-shell' "\$@"
END
    chmod +x "$FOLDER/chromium"
    "$FOLDER/chromium" --version >/dev/null || die "the unpacked Chromium does not start (its words stand above)."
}

# Beside .venv and not in it: 130 MB that only these tests need. greenlet, which it needs, is in .venv.
fetch_playwright() {
    .venv/bin/python -m pip install --quiet --no-input --disable-pip-version-check --no-deps --require-hashes \
        --no-compile --target "$FOLDER/python" -r requirements-browser.lock ||
        die "pip could not install requirements-browser.lock (its words stand above)."
}

fetch_axe() {
    local archive=$FOLDER/axe-core-$AXE.tgz found
    .venv/bin/npm pack "axe-core@$AXE" --pack-destination "$FOLDER" --cache .venv/npm-cache --loglevel=error >/dev/null ||
        die "npm could not fetch axe-core (its words stand above)."
    found=$(.venv/bin/python -c 'import base64, hashlib, pathlib, sys
print(base64.b64encode(hashlib.sha512(pathlib.Path(sys.argv[1]).read_bytes()).digest()).decode())' "$archive")
    [ "$found" = "$AXE_SHA512" ] || die "axe-core $AXE has the SHA-512 $found, not the one of this script."
    tar -xzf "$archive" -C "$FOLDER" --strip-components 1 package/axe.min.js
    rm "$archive"
}

[ -x .venv/bin/python ] || die "run make setup first."
wanted="$PWD $(cat scripts/setup_browser.sh requirements-browser.lock | sha256sum)"
[ "$(cat .browser/ready 2>/dev/null)" = "$wanted" ] && exit 0

for tool in apt-get dpkg; do
    command -v "$tool" >/dev/null || die "$tool is missing: the browser comes from Debian's packages."
done
echo "browser: fetching Debian's headless Chromium, Playwright and axe-core into .browser, about 150 MB to download;"
echo "browser: nothing is installed on the system and no root is needed; make clean removes it"
rm -rf "$FOLDER"
mkdir "$FOLDER"
fetch_chromium
write_command
fetch_playwright
fetch_axe
printf '%s\n' "$wanted" >"$FOLDER/ready"
echo "browser: $("$FOLDER/chromium" --version) is ready ($(du -sh .browser | cut -f 1)); make test-console runs the console's tests in it"
