"""Waits for an inference worker to see its engine ready; from then on the stack runs jobs at once."""

import time
from datetime import timedelta

import psycopg
from sqlalchemy import make_url

from cli.stack.errors import StackError

_SEEN = "SELECT count(*) FROM engines WHERE paused_reason IS NULL AND seen_at >= clock_timestamp() - %s"


def wait_until_fed(database_url: str, *, within: timedelta) -> None:
    """Wait until a worker sees an engine ready after this call began.

    Raises:
        StackError: no worker does within this time; the worker's log says why.
    """
    began = time.monotonic()
    # A caller's URL may name a SQLAlchemy driver, which psycopg itself does not understand.
    plain = make_url(database_url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as connection:
        while True:
            waited = timedelta(seconds=time.monotonic() - began)
            row = connection.execute(_SEEN, [waited]).fetchone()
            if row and row[0]:
                return
            if waited > within:
                raise StackError("No inference worker has found its engine ready; its log says why.")
            time.sleep(0.05)
