# shellcheck shell=bash
# Read by build_images.sh: fetches the wheels of lock files by the Python of the builder image, whose version decides
# which ones, and by this machine's pip configuration, which is mounted and never copied into an image.

# shellcheck disable=SC2016  # a script of the container
download='python3 -m venv /opt/pip && for lock; do
    /opt/pip/bin/pip download --quiet --no-deps --require-hashes -d /wheels -r "/locks/$lock" || exit
done'

fetch_wheels() { # image, lock files…
    local image=$1 container option value path
    local -a mounts=() settings=()
    shift
    while IFS="=" read -r option value; do
        value=${value#\'} value=${value%\'}
        case $option in
        :env:.* | global.*) settings+=(--env "PIP_$(tr 'a-z-' 'A-Z_' <<<"${option##*.}")=$value") ;;
        esac
        for path in $value; do
            path=${path#file://}
            if [[ $path = /* ]]; then
                # An index of files may be below a folder whose other parts its links name.
                [[ $path = */simple ]] && path=${path%/simple}
                [[ -e $path && " ${mounts[*]}" != *" $path:"* ]] && mounts+=(--volume "$path:$path:ro")
            fi
        done
    done < <("$PYTHON" -m pip config list)
    mkdir -p "$IMAGES/wheels"
    container=$(buildah from --pull-never "$image")
    buildah run "${mounts[@]}" "${settings[@]}" --volume "$IMAGES/wheels:/wheels" --volume "$PWD:/locks:ro" \
        --volume /etc/resolv.conf:/etc/resolv.conf:ro --volume /etc/hosts:/etc/hosts:ro "$container" \
        sh -c "$download" sh "$@"
    buildah rm "$container" >/dev/null
}
