#!/usr/bin/env bash
# @{header}
# Triton with its models, inside the image. Under Slurm each rank runs this; else mpirun starts the ranks.
# MULTI_MODEL=1: several engines in one repository, each in a process of its own.
set -euo pipefail
flags=(
@{server_flags}
)
flow=@{flow}
ranks=@{gpu_count}

# The PyTorch engine starts its own ranks, by MPI; over several machines its launcher has them started before.
if [ "$flow" = llmapi ]; then
    if [ -n "${SLURM_PROCID:-}" ]; then
        exec trtllm-llmapi-launch tritonserver "${flags[@]}"
    fi
    exec mpirun --allow-run-as-root -n 1 tritonserver "${flags[@]}"
fi

if [ "${MULTI_MODEL:-0}" = 1 ]; then
    export TRTLLM_ORCHESTRATOR=1 TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES=1
    flags+=(--pinned-memory-pool-byte-size=0 --enable-peer-access=false)
    for ((gpu = 0; gpu < $(nvidia-smi --list-gpus | wc -l); gpu++)); do
        flags+=("--cuda-memory-pool-byte-size=$gpu:0")
    done
    ranks=1
fi

# Ranks above 0 hold a part of the engine and serve nothing else.
rank_flags() {
    local of_rank=("${flags[@]}" "--backend-config=python,shm-region-prefix-name=prefix$1_")
    [ "$1" = 0 ] || of_rank+=(--model-control-mode=explicit "--load-model=@{triton_name}")
    printf '%s\n' "${of_rank[@]}"
}

if [ -n "${SLURM_PROCID:-}" ]; then
    mapfile -t flags < <(rank_flags "$SLURM_PROCID")
    exec tritonserver "${flags[@]}"
fi
if [ "$ranks" = 1 ] && [ "${MULTI_MODEL:-0}" = 0 ]; then
    exec tritonserver "${flags[@]}"
fi
# An orchestrator too: it spawns its workers by MPI, and NVIDIA's own script starts it this way. Not by that script,
# launch_triton_server.py, which passes no keepalive flags on.
command=(mpirun --allow-run-as-root)
for ((rank = 0; rank < ranks; rank++)); do
    mapfile -t of_rank < <(rank_flags "$rank")
    command+=(-n 1 tritonserver "${of_rank[@]}" :)
done
unset 'command[-1]'
exec "${command[@]}"
