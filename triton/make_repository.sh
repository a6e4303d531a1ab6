#!/usr/bin/env bash
# make_repository.sh RENDERED DATA [REPOSITORY]
# REPOSITORY (DATA/repository) holds the profile's models, from the image's own templates. May be run again at any
# time. A profile whose engine has a name of its own (model.triton_name) adds that model to those that are there.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
[ $# = 2 ] || [ $# = 3 ] || usage
load_rendered "$1"
load_data "$2"
repository=${3:-$data/repository}
mkdir -p "$repository" || die "the folder $repository cannot be made"
repository=$(cd "$repository" && pwd)
need_docker
need_image
run_in_image repository -v "$repository:/models" -e "CONFIGS=${CONFIGS:-image}"
note "Triton's models are in $repository; longbatch engine check $PROFILE $repository compares them with the profile"
