"""The tables of engines: their capacity, reservations on them, and the tokens each tenant was served."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import ARRAY, CheckConstraint, ForeignKey, Index, Integer, Text, func, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from jobs.database.base import Base, JsonObject, one_of, partial_index
from jobs.models.halt import Haltable, halt_checks


class Engine(Haltable, Base):
    """One Triton engine. Its worker registers it at each start (`engines.registry`); rows are never deleted.

    Attributes:
        name: configured for the engine's worker, unique.
        model: the model that it serves.
        max_batch_size: sequences that decode together (slots), at least 1.
        max_blocks: KV-cache blocks in its pool, at least 1.
        tokens_per_block: tokens in one block.
        blocks_per_sequence: blocks that every sequence takes on top, at least 0: full windows, recurrent
            states.
        waiting_room: requests that may wait inside it for a slot, at least 0.
        max_input_len: most prompt tokens of one job.
        max_seq_len: most prompt and output tokens of one job.
        spare_blocks: free blocks by the engine's own gauge while it serves other clients too. The
            worker's monitor writes it. Null: no gauge, or all blocks are ours.
        shares_prefix: what prompts have in common is computed once while the engine has it.
        takes: what a request may ask of it besides a prompt, by the names of `engines.abilities`. The worker
            writes it at registration. Null: a worker that did not tell.
        adapters: those that it was started with, by their names there: it takes no others. Null: it takes any
            that can be sent, if it `takes` `lora` at all.
        tensors: what its model declares by name (`engines.tensors`), as far as a request may name it. The
            worker writes it at registration. Null: nothing, or a worker that did not tell.
        served_model: the model's name at the engine, or the model behind its aliases there. Null:
            no worker has registered it since this column exists.
        tokenizer: fingerprint of the tokenizer by which its prompts are counted. Null: likewise.
        address: of the engine's server, with its host's id if it is a loopback address. Null: likewise.
        seen_at: when its worker last found it ready.
        ticked_at: when a worker last looked for jobs for it, within a few seconds. Null: none has yet.
        paused_reason: why its worker claims nothing for it: the worker's monitor sets it while the engine is
            not ready. Null: it is ready. What an operator orders is `halt`.
        halt: a `HaltKind` that an operator ordered: no job starts. Null: jobs start.
        halted_reason: in the operator's words; tenants whose jobs wait read it. Null: not halted.
        halted_by: the API key that ordered it, `lb_` and its public part. Null: the command line, or not
            halted.
        halted_by_name: the key's name at that time. Null: not halted.
        halted_since: since when no job starts. Null: not halted.
    """

    __tablename__ = "engines"
    __table_args__ = (
        CheckConstraint("max_batch_size >= 1 AND max_blocks >= 1", name="capacity"),
        CheckConstraint("blocks_per_sequence >= 0", name="blocks_per_sequence"),
        CheckConstraint("waiting_room >= 0", name="waiting_room"),
        *halt_checks(),
    )

    name: Mapped[str] = mapped_column(primary_key=True)
    model: Mapped[str]
    max_batch_size: Mapped[int]
    max_blocks: Mapped[int]
    tokens_per_block: Mapped[int]
    blocks_per_sequence: Mapped[int] = mapped_column(server_default="0")
    waiting_room: Mapped[int] = mapped_column(server_default="0")
    max_input_len: Mapped[int]
    max_seq_len: Mapped[int]
    spare_blocks: Mapped[int | None]
    shares_prefix: Mapped[bool] = mapped_column(server_default=text("false"))
    takes: Mapped[list[str] | None] = mapped_column(ARRAY(Text))
    adapters: Mapped[list[str] | None] = mapped_column(ARRAY(Text))
    tensors: Mapped[JsonObject | None] = mapped_column(JSONB(none_as_null=True))
    served_model: Mapped[str | None]
    tokenizer: Mapped[str | None]
    address: Mapped[str | None]
    seen_at: Mapped[datetime]
    ticked_at: Mapped[datetime | None]
    paused_reason: Mapped[str | None]


class Reservation(Base):
    """A slot and KV-cache blocks that a job holds on an engine.

    The claim writes it; it is deleted once the engine confirms that the request ended, or never got it.

    Attributes:
        lease_id: the claim that made it.
        engine_name: the engine.
        job_id: the job. No foreign key: the request of a deleted job may still run.
        blocks: KV-cache blocks, at least 1. Grows with the job; converted if the engine's block size changes.
        shared_blocks: the first of these, which count once for all jobs of one family that have any; 0 to
            `blocks`. Set when a job starts that reuses them.
        output_tokens: tokens that the job may generate in all before it must ask for more; earlier runs
            count.
        output_before: tokens that earlier runs had generated at the claim.
        charged_prompt: tokens of the prompt that its tenant paid for at the claim: those that the engine was
            expected to compute. Null: an earlier run has paid.
        overtakes: the better ranked job that this one started ahead of; its growth must not postpone that
            job. Null: none.
        is_waiting: the job used up its reservation and waits for free blocks.
        alone: nothing else may start on the engine, as this job may be what kills workers.
        state: `held` by a live stream; `draining` once no worker holds it but the engine may still run the
            request.
        worker: host and process id of the worker that claimed it. Null: of a release before migration 0038.
        worker_id: that worker's row in `workers`. Null: not known.
        created_at: when it was claimed.
        draining_since: when it began to drain. Null while held.
    """

    __tablename__ = "reservations"
    __table_args__ = (
        CheckConstraint(one_of("state", ["draining", "held"]), name="state"),
        CheckConstraint("(state = 'draining') = (draining_since IS NOT NULL)", name="draining_since"),
        CheckConstraint("blocks >= 1", name="blocks"),
        CheckConstraint("shared_blocks BETWEEN 0 AND blocks", name="shared_blocks"),
        Index("ix_reservations_engine_name", "engine_name"),
    )

    lease_id: Mapped[UUID] = mapped_column(primary_key=True)
    engine_name: Mapped[str] = mapped_column(ForeignKey("engines.name"))
    job_id: Mapped[UUID]
    blocks: Mapped[int] = mapped_column(Integer)
    shared_blocks: Mapped[int] = mapped_column(server_default="0")
    output_tokens: Mapped[int]
    output_before: Mapped[int] = mapped_column(server_default="0")
    charged_prompt: Mapped[int | None]
    overtakes: Mapped[UUID | None]
    is_waiting: Mapped[bool] = mapped_column(server_default=text("false"))
    alone: Mapped[bool] = mapped_column(server_default=text("false"))
    state: Mapped[str] = mapped_column(server_default="held")
    worker: Mapped[str | None]
    worker_id: Mapped[UUID | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    draining_since: Mapped[datetime | None]


class TenantAccount(Base):
    """The tokens that a tenant was served of one model; see `fair_share`.

    Attributes:
        tenant_id: the tenant.
        model: the model.
        served: by how much its account was lifted: a tenant that comes back from idleness is lifted to the
            least served active one. What engines served it is in `AccountShard`; both together count.
        is_active: the tenant had a waiting or running job when a worker last read the queue.
    """

    __tablename__ = "accounts"
    __table_args__ = (
        partial_index("ix_accounts_active", "model", where="is_active"),
        {"postgresql_with": {"fillfactor": 50}},
    )

    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"), primary_key=True)
    model: Mapped[str] = mapped_column(primary_key=True)
    served: Mapped[float] = mapped_column(server_default="0")
    is_active: Mapped[bool] = mapped_column(server_default=text("false"))


class AccountShard(Base):
    """The tokens that a tenant was served by one engine. Claims of two engines never write the same row.

    Maintenance adds the rows of engines that are gone for a day to `TenantAccount` (`served_tokens.fold`).

    Attributes:
        tenant_id: the tenant.
        model: the model.
        engine_name: the engine. No foreign key, which would lock the engine's row.
        served: tokens served, divided by the tenant's weight at the time. Claims charge what they reserve,
            and the end of a reservation corrects that to what was computed and generated.
        overtaken_id: the tenant's job that followers overtook last on this engine. Null: none was.
        overtaken_steps: for how many steps of the engine they overtook it.
    """

    __tablename__ = "account_shards"
    # Charged at every claim and end: a row stays on its page.
    __table_args__ = ({"postgresql_with": {"fillfactor": 50}},)

    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"), primary_key=True)
    model: Mapped[str] = mapped_column(primary_key=True)
    engine_name: Mapped[str] = mapped_column(primary_key=True)
    served: Mapped[float] = mapped_column(server_default="0")
    overtaken_id: Mapped[UUID | None]
    overtaken_steps: Mapped[float | None]
