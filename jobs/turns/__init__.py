"""Turns at work that serves all tenants: workers take a row, keep it, and give it back."""

from jobs.turns.lifecycle import (
    Room,
    Turn,
    back_off,
    claim,
    claim_set,
    clear_pause,
    held,
    pause_tenant,
    release,
    renew,
)
