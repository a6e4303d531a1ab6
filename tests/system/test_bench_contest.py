"""The benchmark's own runner in small: every contender gets the same jobs done, each once.

Figures are not looked at: a busy machine makes them worse, never the outcome wrong.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from bench.draw import draw
from bench.peers.drive import Direct, Pool
from bench.simulation.shared_documents import ask, least_prefill
from bench.simulation.workloads import make
from bench.stand.contenders import (
    CLAIMING_POOL,
    DIRECT,
    ONE_AT_A_TIME,
    POOL,
    PRODUCT,
    Contender,
    Longbatch,
)
from bench.stand.contest import Run, rounds
from bench.stand.runs import Runs
from bench.stand.stand import Stand

pytestmark = pytest.mark.timeout(180)

NUM_JOBS = 6
# Faster than what times would count at; here only what became of the jobs does.
TIME_SCALE = 60.0
CONTENDERS: dict[str, Contender] = {
    PRODUCT: Longbatch(),
    CLAIMING_POOL: Pool(claims=True),
    DIRECT: Direct(),
    ONE_AT_A_TIME: Direct(one_at_a_time=True),
}


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    with Stand(tmp_path_factory.mktemp("stand"), time_scale=TIME_SCALE) as made:
        yield made


@pytest.fixture(scope="module")
def runs(stand: Stand) -> list[Run]:
    specs = make("SMALL", seed=0, num_jobs=NUM_JOBS, max_tokens=2048)
    kept = Runs()
    rounds(stand, "SMALL 2048", specs, seed=0, contenders=CONTENDERS, say=kept.note)
    return kept.all


def test_every_contender_does_every_job_once_and_none_beats_the_lower_bound(runs: list[Run]) -> None:
    assert {run.contender: run.faults for run in runs} == dict.fromkeys(CONTENDERS, ())
    assert all(run.makespan_s > run.bound_s for run in runs)


def test_a_run_is_seen_by_the_engine_from_its_first_request_to_its_last(runs: list[Run]) -> None:
    for run in runs:
        assert max(moment.slots for moment in run.occupancy) <= 4
        assert run.occupancy[-1].slots == 0
        assert run.occupancy[-1].at_s <= run.makespan_s
    assert max(moment.slots for moment in runs[-1].occupancy) == 1  # one at a time


def test_two_contenders_make_one_small_picture(stand: Stand, runs: list[Run], tmp_path: Path) -> None:
    file = tmp_path / "occupancy.png"
    two = {run.contender: run.occupancy for run in runs[:2]}
    draw(two, stand.model.capacity, title="two contenders", file=file)
    assert file.stat().st_size < 100_000
    assert Image.open(file).format == "PNG"


def test_where_the_engine_keeps_what_it_has_read_each_contender_reads_its_own_documents(
    tmp_path: Path,
) -> None:
    specs = ask(seed=0, document_tokens=8_000, num_documents=2, num_questions=3)
    environment = {"LONGBATCH_ENGINE__CREDITS_REUSE": "true"}
    kept = Runs()
    with Stand(tmp_path, time_scale=TIME_SCALE, environment=environment, shares_blocks=True) as stand:
        contenders: dict[str, Contender] = {PRODUCT: Longbatch(), POOL: Pool()}
        rounds(stand, "ASK", specs, seed=0, contenders=contenders, say=kept.note)
    ours, theirs = kept.all
    assert ours.faults == theirs.faults == ()
    assert least_prefill(specs) <= ours.read_tokens < 3 * 8_000
    assert theirs.read_tokens >= least_prefill(specs)
