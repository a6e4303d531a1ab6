"""The options of calls, as types that both clients share; the server's defaults apply to those not given."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

JobState = Literal["blocked", "preparing", "queued", "running", "completed", "failed", "cancelled", "expired"]
Task = Literal["generate", "summarize"]
Attachments = Literal["read", "name"]
Priority = Literal["low", "normal", "high"]
OnGap = Literal["skip", "fail"]
DocumentKind = Literal[
    "txt",
    "md",
    "html",
    "pdf",
    "docx",
    "pptx",
    "xlsx",
    "epub",
    "eml",
    "msg",
    "odt",
    "ods",
    "odp",
    "rtf",
    "xls",
    "png",
    "jpg",
    "tiff",
]
Style = Literal["paragraph", "bullets", "sections", "tldr"]


class JobOptions(TypedDict, total=False):
    """Options of a job. Source: `POST /v1/jobs`."""

    task: Task
    model: str
    instructions: str
    max_tokens: int
    min_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[str, float]
    bad_words: Sequence[str]
    logprobs: bool
    top_logprobs: int
    tools: Sequence[Mapping[str, Any]]
    tool_choice: str | Mapping[str, Any]
    parallel_tool_calls: bool
    response_format: Mapping[str, Any]
    structured_outputs: Mapping[str, Any]
    chat_template_kwargs: Mapping[str, Any]
    cache: Mapping[str, Any]
    share_equal: bool
    priority: Priority
    custom_id: str
    metadata: Mapping[str, str]
    completion_window: str
    webhook_url: str
    webhook_secret: str
    webhook_include_output: bool
    engine_inputs: Mapping[str, Any]
    engine_outputs: Sequence[str]


class RunOptions(TypedDict, total=False):
    """Options of every run over documents.

    Attributes:
        model: the one to use; by default the one served.
        priority: among the key's own jobs.
        attachments: `name` leaves files attached to mails and other documents out and names them in a
            warning; by default they are read as documents of their own, after theirs.
        encoding: of the texts among the documents, such as `shift_jis`; by default the server finds out.
        chunk_tokens: size of the parts of long documents.
        template: the words of the prompts, by part.
        chat_template_kwargs: for the model's chat template.
        metadata: stored with each summary, set of answers or extraction.
        completion_window: such as `24h`, after which what has not ended expires.
        webhook_url: notified when each one ends.
        webhook_secret: signs those notifications.
    """

    model: str
    priority: Priority
    attachments: Attachments
    encoding: str
    chunk_tokens: int
    template: Mapping[str, str]
    chat_template_kwargs: Mapping[str, Any]
    metadata: Mapping[str, str]
    completion_window: str
    webhook_url: str
    webhook_secret: str


class SummaryOptions(RunOptions, total=False):
    """Options of summaries. Source: `POST /v1/summaries`.

    Attributes:
        style: the form of a summary.
        length: approximate length in tokens.
        language: by default the document's.
        focus: what to concentrate on.
        instructions: further ones for the model.
        on_gap: leave out a part that fails and list it, or fail.
        overlap_tokens: that neighbouring chunks share.
    """

    style: Style
    length: int
    language: str
    focus: str
    instructions: str
    on_gap: OnGap
    overlap_tokens: int


class AskOptions(RunOptions, total=False):
    """Options of questions. Source: `POST /v1/answers`.

    Attributes:
        length: approximate length of an answer with its quote, in tokens.
    """

    length: int


class ExtractOptions(RunOptions, total=False):
    """Options of extractions. Source: `POST /v1/extractions`.

    Attributes:
        joins: how the parts of long documents are joined, by field.
        length: approximate length of a reply about all fields, in tokens.
    """

    joins: Mapping[str, Literal["first", "all", "sum", "most_frequent"]]
    length: int
