"""A group commit that runs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from api.runtime.database import Transactions
from api.runtime.group_commit import NUM_LANES, GroupCommit


@asynccontextmanager
async def running(group_commit: GroupCommit, transactions: Transactions) -> AsyncIterator[GroupCommit]:
    """Let it store submissions as long as the context lasts; then its connections are closed."""
    lanes = [asyncio.create_task(group_commit.run()) for _ in range(NUM_LANES)]
    try:
        yield group_commit
    finally:
        for lane in lanes:
            lane.cancel()
        await asyncio.gather(*lanes, return_exceptions=True)
        await transactions.close()
