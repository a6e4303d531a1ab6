# shellcheck shell=bash
# Read by the setup scripts: they run in the repository's root, wherever they were called from.
unset CDPATH PYTHONHOME PYTHONPATH
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

die() {
    echo "setup: $*" >&2
    exit 1
}

# Two at once would write into one .venv. A lock on the folder itself: it ends with the last process that holds it.
if command -v flock >/dev/null; then
    exec 9<.
    flock -n 9 || { echo "setup: waiting for another one in this folder" >&2; flock 9; }
fi
