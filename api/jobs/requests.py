"""Requests about jobs: strict types, closed objects, limits with a reason."""

from typing import Annotated, Final, Literal

from pydantic import Discriminator, Field, Tag

from api.http.fields import example
from api.http.identifiers import PageQuery
from api.jobs.tensors import TensorFields
from jobs.prompts.abilities import LogProbFields, SamplingFields
from jobs.prompts.messages import Task
from jobs.prompts.tools.forms import AnswerFields
from jobs.prompts.tools.turns import AssistantTurn, ToolTurn, turn_kind
from jobs.validation import (
    MAX_TOP_K,
    CachePolicy,
    Closed,
    CompletionWindow,
    CustomId,
    Metadata,
    NonEmpty,
    Stop,
    TemplateVariables,
    Text,
)
from jobs.views import Priority, StateName, TaskName

MAX_TOKENS: Final = 131_072  # the whole context of the served model: no answer is longer
MAX_MESSAGES: Final = 4096  # a conversation; far above any real one, far below what 8 MiB could hold


def _input_kind(value: object) -> str | None:
    if isinstance(value, str):
        return "text"
    return "messages" if isinstance(value, list) else None


class InputMessage(Closed):
    """One turn of a system or user."""

    role: Literal["system", "user"]
    content: Text


InputTurn = Annotated[
    Annotated[InputMessage, Tag("[plain]")]
    | Annotated[AssistantTurn, Tag("[assistant]")]
    | Annotated[ToolTurn, Tag("[tool]")],
    Discriminator(turn_kind),
]
Input = Annotated[
    Annotated[NonEmpty, Tag("text")]
    | Annotated[list[InputTurn], Field(min_length=1, max_length=MAX_MESSAGES), Tag("messages")],
    Discriminator(
        _input_kind,
        custom_error_type="input_type",
        custom_error_message="must be a string or a list of messages",
    ),
]


class JobRequest(AnswerFields, LogProbFields, SamplingFields, TensorFields):
    """A job to run; only `input` is required."""

    model_config = example(
        input="The text of a long document …",
        task="summarize",
        max_tokens=512,
        custom_id="report-2026-01",
        metadata={"team": "research"},
        completion_window="24h",
    )

    input: Input = Field(description="A text, or the turns of a conversation.")
    task: Task = Field("generate", description="`summarize` frames the input as one document.")
    model: NonEmpty | None = Field(
        None,
        description="A model of `GET /v1/models`, or `model:adapter`; null: the one that the server is"
        " configured for.",
    )
    instructions: NonEmpty | None = Field(None, description="Replaces the task's own system message.")
    max_tokens: int = Field(1024, ge=1, le=MAX_TOKENS, description="Maximum number of tokens to generate.")
    temperature: float | None = Field(
        None,
        ge=0,
        le=2,
        description="Null means 0: always the most likely token. top_p and top_k require a value above 0.",
    )
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=1, le=MAX_TOP_K)
    seed: int | None = Field(None, ge=0, le=2**63 - 1, description="Null: a different seed for each job.")
    stop: Stop | None = Field(None, description="Generation stops before the first of these strings.")
    chat_template_kwargs: TemplateVariables | None = Field(
        None,
        description="Variables for the model's chat template, such as `enable_thinking`; one that the"
        " template does not know has no effect.",
    )
    share_equal: bool | None = Field(
        None,
        description="Let jobs that ask for the same run once, while one of them is unfinished: each gets the"
        " result. Applies where the answer is not left to chance, at temperature 0 or with a seed. Null: as"
        " the server is configured.",
    )
    cache: CachePolicy | None = Field(
        None,
        description="Take the result of an equal job that ended no longer ago than this, if one is left that"
        " could share its run, as with `share_equal` or `cache`; without one, share the run of an unfinished"
        " one. Has no effect if `share_equal` is false.",
    )
    priority: Priority = Field("normal", description="Order among your own jobs.")
    custom_id: CustomId | None = Field(None, description="Your own name for the job; need not be unique.")
    metadata: Metadata | None = Field(
        None, description="Key-value pairs kept with the job; jobs can be cancelled by them."
    )
    completion_window: CompletionWindow | None = Field(
        None, description="The job expires after it; null: never."
    )
    webhook_url: NonEmpty | None = Field(None, description="Notified once the job has ended; https only.")
    webhook_secret: NonEmpty | None = Field(
        None, description="`whsec_…`, signs deliveries; null: your default secret (GET /v1/webhook_secret)."
    )
    webhook_include_output: bool = Field(False, description="Include outputs of up to 16 KiB.")


class CancelRequest(Closed):
    """The filters of jobs to cancel: a job must match every one given; at least one is required."""

    model_config = example(metadata={"team": "research"})

    state: StateName | None = None
    task: TaskName | None = None
    custom_id: CustomId | None = None
    metadata: Metadata | None = Field(None, description="Key-value pairs that a job must all have.")


class JobListQuery(PageQuery):
    """The jobs to list, and where to start."""

    state: StateName | None = None
    task: TaskName | None = None
    custom_id: CustomId | None = None
