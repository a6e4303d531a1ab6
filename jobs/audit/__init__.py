"""The audit log: what callers and operators changed, each in the transaction of its change."""

from jobs.audit.actions import Action
from jobs.audit.actors import Actor, ActorKind, Via, act_as, key_of, user_of_process
from jobs.audit.log import AuditFilter, let_go, list_entries, note, prune, search
