#!/usr/bin/env bash
# Runs the services of docker-compose.yml as containers in a network of their own, and kills them; docs/images.md.
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
CONTAINERS_NETWORK=1
# shellcheck source=containers.sh
. scripts/containers.sh
exec .venv/bin/python -m bench.images "$@"
