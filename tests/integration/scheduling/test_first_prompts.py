"""What an idle engine may start is read with its prompts, at the same cost however many texts there are."""

import re

from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.database import direct, transaction
from jobs.models import DEFAULT_TENANT
from jobs.prompts.messages import Message, canonical
from jobs.prompts.tokenizer import pack_text
from jobs.scheduling.first_prompts import FirstPrompts
from jobs.scheduling.ticks import Expected
from support import CAPACITY, ENGINE, MODEL, WordCounter

NUM_TEXTS = 20_000
FILL_TEXTS = """
    INSERT INTO texts (id, tenant_id, sha256, body, token_ids, num_tokens, fingerprint)
    SELECT lpad(to_hex(n), 32, '0')::uuid, :tenant, sha256(n::text::bytea), :body, 'x', 100, :counter
    FROM generate_series(1, :num) AS n
"""
FILL_JOBS = """
    INSERT INTO jobs
        (id, tenant_id, text_id, state, task, model, max_tokens, prompt_tokens, completion_tokens, created_at)
    SELECT ('1' || lpad(to_hex(n), 31, '0'))::uuid, :tenant, lpad(to_hex(n), 32, '0')::uuid, 'queued',
        'generate', :model, 64, 100 + n % 5000, 0, now()
    FROM generate_series(1, :num) AS n
"""


def test_the_first_prompts_are_found_by_their_keys(sessions: sessionmaker[Session]) -> None:
    counter = WordCounter()
    with transaction(sessions) as session:
        of_all = {"tenant": DEFAULT_TENANT, "num": NUM_TEXTS}
        body = pack_text(canonical([Message("user", "a prompt")]))
        session.execute(text(FILL_TEXTS), of_all | {"counter": counter.fingerprint, "body": body})
        session.execute(text(FILL_JOBS), of_all | {"model": MODEL})
    with sessions() as session:
        connection = session.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
        connection.execute(text("VACUUM (ANALYZE) jobs, texts"))
    found = list[tuple[int, int]]()
    first = FirstPrompts(counter, lambda jobs, prompts: found.append((len(jobs), len(prompts))))
    with sessions() as session:
        *_, rows = direct.fetch_all(session, Expected(MODEL, CAPACITY, first_prompts=first).asking(ENGINE))
        first.take(session, rows)
        prepared = "SELECT name, statement FROM pg_prepared_statements WHERE statement LIKE '%JOIN texts%'"
        ((name, statement),) = session.execute(text(prepared)).all()
        nothing = ", ".join(["NULL"] * max(map(int, re.findall(r"\$(\d+)", statement))))
        plan = "\n".join(session.scalars(text(f'EXPLAIN EXECUTE "{name}"({nothing})')))
    assert found == [(4, 4)]
    assert "pk_texts" in plan
    assert "Seq Scan" not in plan, plan
