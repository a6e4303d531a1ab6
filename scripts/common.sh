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

# apt-get with package lists of its own in this folder: the system's may be missing or old, and only root can renew them.
apt_in() {
    local folder=$1
    shift
    apt-get -q -o "Dir::State::lists=$folder/lists" -o "Dir::Cache=$folder/cache" \
        -o "APT::Sandbox::User=$(id -un)" "$@"
}

# Its lists anew; one broken source among many need not matter.
apt_update_in() {
    mkdir -p "$1"/{lists/partial,cache/archives/partial}
    apt_in "$1" update >"$1/log" 2>&1 || true
}
