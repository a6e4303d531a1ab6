"""Tenants. This package exports their verbs; its modules hold keys, quotas, usage and isolation."""

from jobs.tenants.lifecycle import (
    create,
    find,
    list_tenants,
    named,
    read_names,
    read_page,
    set_adapters,
    set_limits,
    set_retention,
    set_weight,
)
