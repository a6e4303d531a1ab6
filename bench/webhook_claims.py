"""`python -m bench.webhook_claims`: what a claim of webhooks costs with many waiting destinations.

Every destination has one event that is due later; a hundred more are due now, of which each claim takes
some. The goal is a ratio: 50 times as many destinations must not double the time of a claim.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pydantic import SecretStr
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from bench import figures
from bench.figures import Figure
from jobs.models import DEFAULT_TENANT
from jobs.sealing.keys import new_key
from jobs.settings import WebhookSettings
from jobs.webhooks import claims
from jobs.webhooks.fairness import Slots
from jobs.webhooks.vault import Vault

_SETTINGS: Final = WebhookSettings(encryption_key=SecretStr(new_key()))
_NUM_DUE: Final = 100
_NUM_CLAIMS: Final = 20
_GOAL: Final = 2.0

_FILL: Final = """
    TRUNCATE webhook_events, webhook_destinations CASCADE;
    INSERT INTO webhook_events (id, tenant_id, job_id, type, payload)
    VALUES (gen_random_uuid(), :tenant, gen_random_uuid(), 'job.completed', '{"data": {}}');
    INSERT INTO webhook_destinations (id, tenant_id, server_id, next_due_at)
    SELECT id, :tenant, id, clock_timestamp() + CASE WHEN number > :due THEN interval '1 hour' ELSE '-1 s' END
    FROM (SELECT md5(number::text)::uuid AS id, number FROM generate_series(1, :waiting + :due) number) d;
    INSERT INTO webhook_dispatches
        (id, tenant_id, event_id, destination_id, url, state, is_noticed, next_attempt_at)
    SELECT gen_random_uuid(), :tenant, e.id, d.id, 'https://receiver.example/', 'pending', true, d.next_due_at
    FROM webhook_destinations d, webhook_events e;
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures, and store them as JSON if asked; exit 1 on a missed goal."""
    parser = argparse.ArgumentParser(prog="python -m bench.webhook_claims", description=__doc__)
    parser.add_argument("--waiting", type=int, nargs="+", default=[2_000, 20_000, 100_000])
    figures.run(parser, _measure, arguments)


def _measure(directory: Path, asked: argparse.Namespace) -> list[Figure]:
    numbers: list[int] = asked.waiting
    with figures.servers(directory, pool_size=2) as servers:
        times = {number: [_claim_ms(servers.sessions, number)] for number in numbers}
        for number in reversed(numbers):  # A B C C B A: other load on the machine affects all alike
            times[number].append(_claim_ms(servers.sessions, number))
    means = {number: statistics.mean(each) for number, each in times.items()}
    ratio = means[max(numbers)] / means[min(numbers)]
    found = [Figure(f"claim with {number:,} waiting", mean, "ms") for number, mean in means.items()]
    name = f"{max(numbers):,} against {min(numbers):,}"
    return [*found, Figure(name, ratio, "x", f"<= {_GOAL}")]


def fill(session: Session, *, waiting: int, due: int) -> None:
    """Insert `waiting` destinations due in an hour and `due` ones due now."""
    for statement in _FILL.split(";")[:-1]:
        values = {"tenant": DEFAULT_TENANT, "waiting": waiting, "due": due}
        wanted = {name: value for name, value in values.items() if f":{name}" in statement}
        session.execute(text(statement), wanted)


def _claim_ms(sessions: sessionmaker[Session], waiting: int) -> float:
    with sessions.begin() as session:
        fill(session, waiting=waiting, due=_NUM_DUE)
    with sessions.begin() as session:
        session.execute(text("ANALYZE webhook_dispatches, webhook_destinations"))
    vault = Vault.of(_SETTINGS)
    assert vault is not None  # noqa: S101  # there is a key
    taken = []
    for _ in range(_NUM_CLAIMS):
        began = time.perf_counter()
        with sessions() as session:
            claimed = claims.claim(session, _SETTINGS, vault, Slots(16))
            session.rollback()
        taken.append(time.perf_counter() - began)
        assert claimed  # noqa: S101  # some are due
    return statistics.median(taken) * 1000


if __name__ == "__main__":
    main()
