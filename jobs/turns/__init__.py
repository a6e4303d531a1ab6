"""Turns at work that serves all tenants: how a row is taken, kept and given back."""

from jobs.turns.lifecycle import (
    Turn,
    back_off,
    claim,
    pause_tenant,
    release,
    renew,
    wake,
)

__all__ = [
    "Turn",
    "back_off",
    "claim",
    "pause_tenant",
    "release",
    "renew",
    "wake",
]
