# shellcheck shell=bash
# Read by what builds and runs images: puts the podman and buildah of .images/tools below /usr, for this process
# and its children alone, and keeps everything they make in .images.
if [ -z "${CONTAINERS_HERE:-}" ]; then
    # In a mount namespace of our own; in a network of our own too, where the caller asks for one.
    namespaces=(--mount ${CONTAINERS_NETWORK:+--net})
    if [ "$(id -u)" != 0 ]; then # then root in a user namespace
        command -v newuidmap >/dev/null || die "an ordinary user needs newuidmap (Debian: uidmap), and ids in /etc/subuid and /etc/subgid"
        namespaces+=(--user --map-root-user --map-auto)
    fi
    CONTAINERS_HERE=$(id -u) exec unshare "${namespaces[@]}" "$BASH" "$PWD/scripts/$(basename "$0")" "$@"
fi
IMAGES=$PWD/.images
TOOLS=$IMAGES/tools/root
STATE=$IMAGES/state

mkdir -p "$STATE/etc/containers"
# Nothing is pulled: images are built here.
echo '{"default": [{"type": "insecureAcceptAnything"}]}' >"$STATE/etc/containers/policy.json"
mount -t overlay -o "lowerdir=$STATE/etc:/etc" overlay /etc
mount --bind "$STATE/etc/containers" /etc/containers
mount -t overlay -o "lowerdir=$TOOLS/usr:/usr" overlay /usr
# crun refuses a machine that has both versions of cgroups mounted.
[ ! -d /sys/fs/cgroup/unified ] || mount -t tmpfs tmpfs /sys/fs/cgroup/unified
if [ -n "${CONTAINERS_NETWORK:-}" ]; then
    ip link set lo up
    mount -t tmpfs tmpfs /run # crun keeps its state there
fi
export CONTAINERS_STORAGE_CONF=$STATE/storage.conf CONTAINERS_CONF=$STATE/containers.conf
export CONTAINERS_REGISTRIES_CONF=$STATE/registries.conf BUILDAH_ISOLATION=chroot

cat >"$STATE/storage.conf" <<END
[storage]
driver = "${STORAGE_DRIVER:-overlay}"
graphroot = "$STATE/storage"
runroot = "$STATE/run"
END
# No registry is asked: what is missing here is an error.
cat >"$STATE/registries.conf" <<END
unqualified-search-registries = []
short-name-mode = "disabled"
END
cat >"$STATE/containers.conf" <<END
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
tmp_dir = "$STATE/tmp"
static_dir = "$STATE/static"
volume_path = "$STATE/volumes"
runtime = "crun"
# Those of another podman are in shared memory, where it would take ours for its own.
lock_type = "file"
[containers]
# Only root may make cgroups.
cgroups = "$([ "$CONTAINERS_HERE" = 0 ] && echo enabled || echo disabled)"
# podman's own are higher than this machine may allow.
default_ulimits = ["nofile=$(ulimit -Sn):$(ulimit -Hn)", "nproc=4096:4096"]
log_driver = "k8s-file"
[network]
network_config_dir = "$STATE/networks"
END
