"""Tenants: this face shows their verbs, the modules their keys, quotas, usage and isolation."""

from jobs.tenants.lifecycle import (
    create,
    list_tenants,
    named,
    set_limits,
    set_weight,
)

__all__ = [
    "create",
    "list_tenants",
    "named",
    "set_limits",
    "set_weight",
]
