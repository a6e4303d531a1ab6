"""Batches: the functions that change and read them; validation, expansion and results are modules."""

from jobs.batches.lifecycle import (
    BatchSpec,
    BatchStatus,
    cancel,
    create,
    end,
    find_repeated,
    get,
    hold,
    list_batches,
    move,
    prune,
    read_status,
    retry,
    search,
    wait_for_others,
)
