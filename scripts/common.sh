# shellcheck shell=bash
# Read by the setup scripts: they run in the repository's root, wherever they were called from.
unset CDPATH PYTHONHOME PYTHONPATH
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

die() {
    echo "setup: $*" >&2
    exit 1
}
