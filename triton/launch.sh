#!/usr/bin/env bash
# launch.sh RENDERED DATA [docker|slurm|print]
# Serves the profile's engine: in a container here (docker, the default), as a Slurm job, or prints the command.
# One GPU or several: the profile says. MULTI_MODEL=1: several engines in one repository. Says so when it runs already.
# REPOSITORY (DATA/repository): the folder that Triton loads. DETACH=1: the container runs in the background.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
[ $# = 2 ] || [ $# = 3 ] || usage
load_rendered "$1"
load_data "$2"
way=${3:-docker}
export DATA=$data REPOSITORY=${REPOSITORY:-$data/repository} RENDERED=$rendered TRITON_IMAGE

if [ "$way" = print ]; then
    printf 'DATA=%q REPOSITORY=%q TRITON_IMAGE=%q %q\n' "$DATA" "$REPOSITORY" "$TRITON_IMAGE" "$rendered/docker.sh"
    exit 0
fi

if [ "$FLOW" = llmapi ]; then
    is_whole_model "$(on_host "$MODEL_DIR")" || die "the model is not in $data: run fetch_model.sh $1 $2"
else
    engine=$(on_host "$ENGINE_DIR")
    [ -f "$engine/config.json" ] || die "there is no engine in $engine: run build_engine.sh $1 $2"
    parts=$(find "$engine" -name 'rank*.engine' | wc -l)
    [ "$parts" = "$GPU_COUNT" ] ||
        die "$engine was built for $parts GPU, the profile has $GPU_COUNT: run build_engine.sh $1 $2"
fi
for model in $MODELS; do
    [ -f "$REPOSITORY/$model/config.pbtxt" ] ||
        die "there is no model $model in $REPOSITORY: run make_repository.sh $1 $2"
done

# Without a place of its own every engine begins with GPU 0; serve.sh cannot see that they collide.
if [ "${MULTI_MODEL:-0}" = 1 ]; then
    for config in "$REPOSITORY"/*/config.pbtxt; do
        grep -q '^backend: "tensorrtllm"' "$config" || continue
        grep -A 3 '"gpu_device_ids"' "$config" | grep -q 'string_value: *"[0-9]' ||
            die "$(basename "$(dirname "$config")") names no GPUs of its own: set gpu.devices in its profile," \
                "render it, and run make_repository.sh again; longbatch engine plan A --beside B adds them up"
    done
fi

case $way in
    docker)
        [ "$NODES" = 1 ] || die "$PROFILE needs $NODES machines: launch it with slurm"
        need_gpu
        need_docker
        need_image
        if [ -n "$(docker ps --quiet --filter "name=^${NAME:-$PROFILE}$")" ]; then
            note "${NAME:-$PROFILE} runs already"
            exit 0
        fi
        if [ "${DETACH:-0}" = 1 ]; then
            "$rendered/docker.sh" >/dev/null
            note "${NAME:-$PROFILE} starts in the background: docker logs -f ${NAME:-$PROFILE}; docker stop ends it"
            exit 0
        fi
        exec "$rendered/docker.sh"
        ;;
    slurm)
        command -v sbatch >/dev/null || die "sbatch is not on the PATH: run this on a login node of a Slurm cluster"
        cd "$rendered"
        exec sbatch --export=ALL slurm.sbatch
        ;;
    *) usage ;;
esac
