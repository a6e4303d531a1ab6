# shellcheck shell=bash
# What the scripts beside it share: words on standard error, and what must be there before they begin.
# shellcheck disable=SC2034  # the scripts use what is set here

export LC_ALL=C # decimal points in times
triton_folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

die() {
    echo "$(basename "$0"): $*" >&2
    exit 1
}

note() {
    echo "$(basename "$0"): $*" >&2
}

# Prints the comment at the top of the script.
usage() {
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
    exit "${1:-2}"
}

# $rendered and the values of its engine.env.
load_rendered() {
    [ -f "$1/engine.env" ] ||
        die "$1 holds no engine.env: render a profile first, longbatch engine render PROFILE $1"
    rendered=$(cd "$1" && pwd)
    # shellcheck source=/dev/null
    . "$rendered/engine.env"
    TRITON_IMAGE=${TRITON_IMAGE:-$IMAGE}
    NODES=${NODES:-1} FLOW=${FLOW:-build} # a folder of an earlier release has none
}

# $data, made when missing.
load_data() {
    mkdir -p "$1" || die "the folder $1 cannot be made"
    data=$(cd "$1" && pwd)
}

# The place on this machine of a path that the image sees below /data.
on_host() {
    echo "$data${1#/data}"
}

need_docker() {
    command -v docker >/dev/null ||
        die "docker is not installed: install Docker Engine and NVIDIA's container toolkit, or run the stage" \
            "inside the image with in_image.sh"
    local answer
    if answer=$(docker info 2>&1 >/dev/null); then
        return
    fi
    case $answer in
        *"permission denied"*) die "this user may not use Docker: join the group docker, or use sudo" ;;
        *) die "the Docker daemon does not answer (${answer##*$'\n'}): start it, systemctl start docker" ;;
    esac
}

need_image() {
    docker image inspect "$TRITON_IMAGE" >/dev/null 2>&1 ||
        die "the image $TRITON_IMAGE is not on this machine: docker pull $TRITON_IMAGE; NVIDIA's registry may ask" \
            "for docker login nvcr.io with the user \$oauthtoken and an API key of NGC as password"
}

# need_driver FOUND: the driver that the image needs, or a newer one; nothing is known of images that drivers.txt does
# not list. Cards of data centres may do with an older one, by CUDA's forward compatibility: told, not refused.
need_driver() {
    local found=$1 release needed="" runnable="" first last driver oldest=""
    release=$(sed -nE 's/.*:([0-9]{2}\.[0-9]{2})(-trtllm-.*)?$/\1/p' <<<"$TRITON_IMAGE")
    while read -r first last driver; do
        oldest=${oldest:-$first}
        [[ $release < $first || $release > $last ]] || needed=$driver
        is_older "$found" "$driver" || runnable=$last
    done < <(grep -v '^#' "$triton_folder/drivers.txt")
    [ -n "$needed" ] && is_older "$found" "$needed" || return 0
    local said="the image $release needs NVIDIA driver $needed or newer, and this machine has $found: install a newer driver"
    [ -z "$runnable" ] || said+=", or set TRITON_IMAGE to an image from $oldest to $runnable"
    [ "$WORKSTATION" = no ] || die "$said"
    note "$said; CUDA's forward compatibility may do, see the image's release notes"
}

# Whether the first version is older than the second.
is_older() {
    [ "$1" != "$2" ] && [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]
}

# As many GPUs with as much memory as the profile wants, and a driver for the image. Another kind of GPU is told, not
# refused.
need_gpu() {
    command -v nvidia-smi >/dev/null ||
        die "no NVIDIA driver: nvidia-smi is not on the PATH; this needs $GPU_COUNT GPU with $GPU_MEMORY_MIB MiB"
    local found
    found=$(nvidia-smi --query-gpu=memory.total,compute_cap,driver_version --format=csv,noheader,nounits 2>&1) ||
        die "the NVIDIA driver does not answer: ${found##*$'\n'}"
    local count=0 memory capability
    while IFS=', ' read -r memory capability _; do
        [ "${memory:-0}" -ge "$GPU_MEMORY_MIB" ] 2>/dev/null && count=$((count + 1))
        [ "${capability/./}" = "$COMPUTE_CAPABILITY" ] ||
            note "$PROFILE plans for sm$COMPUTE_CAPABILITY, this GPU is sm${capability/./}: its plan does not hold"
    done <<<"$found"
    [ "$count" -ge "$GPU_COUNT" ] ||
        die "$PROFILE needs $GPU_COUNT GPU with $GPU_MEMORY_MIB MiB; $count of $(grep -c . <<<"$found") have as much"
    need_driver "${found##*, }"
}

# Whether the folder holds a whole Hugging Face model: what its index names, and a tokenizer.
is_whole_model() {
    [ -f "$1/config.json" ] && [ -f "$1/tokenizer.json" ] || return 1
    local index=$1/model.safetensors.index.json file
    [ -f "$index" ] || {
        compgen -G "$1/*.safetensors" >/dev/null
        return
    }
    while read -r file; do
        [ -f "$1/$file" ] || return 1
    done < <(grep -o '[^"]*\.safetensors' "$index" | sort -u)
}

# Runs a stage of in_image.sh in a container: run_in_image STAGE [docker options].
run_in_image() {
    local stage=$1
    shift
    docker run --rm --user "$(id -u):$(id -g)" -e HOME=/tmp -e "TRITON_IMAGE=$TRITON_IMAGE" \
        --shm-size=1g --ulimit memlock=-1 --ulimit stack=67108864 \
        -v "$data:/data" -v "$rendered:/rendered:ro" -v "$triton_folder:/longbatch:ro" "$@" \
        "$TRITON_IMAGE" bash /longbatch/in_image.sh "$stage"
}
