"""Turns at work that serves all tenants: workers take a row, keep it, and give it back."""

from jobs.turns.lifecycle import (
    Turn,
    back_off,
    claim,
    clear_pause,
    pause_tenant,
    release,
    renew,
)

__all__ = [
    "Turn",
    "back_off",
    "claim",
    "clear_pause",
    "pause_tenant",
    "release",
    "renew",
]
