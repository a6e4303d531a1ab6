"""Settings of the servers that Longbatch stands on: database, broker, engine and its tokenizer."""

from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import AliasChoices, Field, SecretStr, field_validator, model_validator

from jobs.settings.group import Group

EngineKind = Literal["auto", "vllm", "llama.cpp", "sglang", "trtllm-serve", "openai", "openai-chat"]


class DatabaseSettings(Group):
    """Postgres, the source of truth."""

    url: SecretStr = Field(description="postgresql://user:password@host:port/name")
    pool_size: int = Field(default=10, ge=1, le=200, description="connections per process")
    pool_timeout_seconds: float = Field(default=5, gt=0, description="wait for a connection; then 503")
    statement_timeout_seconds: float = Field(default=30, gt=0)
    lock_timeout_seconds: float = Field(default=10, gt=0)
    idle_in_transaction_timeout_seconds: float = Field(default=30, gt=0)
    connect_timeout_seconds: int = Field(default=5, ge=1)
    encrypt_content: bool = Field(
        default=False,
        description="encrypt prompts and results that are stored from now on, under the first key of"
        " LONGBATCH_WEBHOOKS__ENCRYPTION_KEY, which all processes need; docs/privacy.md",
    )


class BrokerSettings(Group):
    """Redis or Valkey: doorbells and live output, nothing that must survive."""

    url: SecretStr = Field(description="redis://:password@host:port/0")
    socket_timeout_seconds: float = Field(
        default=3, gt=0, description="without it, a frozen broker would block its callers forever"
    )


class TritonSettings(Group):
    """The Triton server that this worker uses."""

    url: str = Field(default="127.0.0.1:8001", description="gRPC address, host:port")
    http_url: str | None = Field(
        default=None, description="http://host:port; only `longbatch doctor` asks it"
    )
    metrics_url: str | None = Field(default=None, description="http://host:port/metrics; None: no gauges")
    model_name: str = Field(default="tensorrt_llm", description="the model that receives the prompts")
    adapter: Literal["auto", "ids", "llmapi", "ensemble", "bls", "vllm"] = Field(
        default="auto", description="how to call the model; auto: decide by the tensors that it declares"
    )
    streams_fragments: bool = Field(
        default=False,
        description="also stream from text models that decode token by token: gives live output, but breaks"
        " characters that span several tokens",
    )
    fast_keepalive: bool = Field(
        default=True, description="10 s pings; needs the server flags of docs/operations.md"
    )


class EngineSettings(Group):
    """The engine that an inference worker feeds. None: ask the live server at start."""

    name: str = Field(default="default", min_length=1, max_length=64, description="its row in `engines`")
    url: str | None = Field(
        default=None,
        pattern=r"^(grpc|https?)://[^/\s]+/?$",
        description="grpc://host:port of a Triton server, or http(s)://host:port of any other engine; None:"
        " the Triton server of LONGBATCH_TRITON__URL",
    )
    kind: EngineKind = Field(
        default="auto", description="the kind of HTTP engine; auto: ask the server; Triton's: TRITON__ADAPTER"
    )
    api_key: SecretStr | None = Field(default=None, description="sent to an HTTP engine as a bearer token")
    served_model: str | None = Field(
        default=None, min_length=1, description="the model's name at an HTTP engine; None: its only one"
    )
    model: str = Field(default="llama-3.1-8b-instruct", description="the name callers see in `model`")
    max_batch_size: int | None = Field(default=None, ge=1)
    max_blocks: int | None = Field(default=None, ge=1)
    tokens_per_block: int | None = Field(default=None, ge=1)
    blocks_per_sequence: int | None = Field(
        default=None,
        ge=0,
        description="KV blocks that every sequence keeps besides those of its text, for windows and recurrent"
        " states; None: as many as the server reports while a prompt is read, 0 if it does not;"
        " docs/engines.md",
    )
    waiting_room: int | None = Field(
        default=None,
        ge=0,
        description="requests that may wait inside the engine for a slot, beyond max_batch_size; None: an"
        " eighth of the slots, 0 below 16 slots or with data parallelism; docs/engines.md#the-waiting-room",
    )
    max_input_len: int = Field(default=96_000, ge=1, description="tokens; the engine does not enforce it")
    max_seq_len: int = Field(default=131_072, ge=2, description="tokens; the engine clamps silently")
    reserve_predicted: bool = Field(
        default=True,
        validation_alias=AliasChoices("reserve_predicted", "book_predicted"),  # the old name
        description="reserve the output that peers make likely and continue in segments; false: reserve"
        " max_tokens, for engines that enforce max_input_len on their input",
    )
    reuses_prefix: bool | None = Field(
        default=None,
        description="the engine still has the tokens of a job that continues at once (KV cache reuse);"
        " None: ask the engine",
    )
    credits_reuse: bool | None = Field(
        default=None,
        description="the engine starts a request without room for blocks that it shares with running ones, as"
        " newer releases of TensorRT-LLM do; None: as every release of its kind does",
    )
    shortens_vectors: bool = Field(
        default=False,
        description="the model's embeddings may be shortened by `dimensions`, as it was trained for that"
        " (Matryoshka); no engine tells",
    )
    time_scale: float = Field(
        default=1, gt=0, description="how much faster than an A6000 the engine runs; shortens deadlines"
    )

    @field_validator("url")
    @classmethod
    def _has_a_real_port(cls, url: str | None) -> str | None:
        if url is not None and urlsplit(url).port == 0:  # beyond 65535: a ValueError of its own
            raise ValueError("the port of an engine is between 1 and 65535")
        return url

    @field_validator("api_key")
    @classmethod
    def _can_be_sent(cls, key: SecretStr | None) -> SecretStr | None:
        text = key.get_secret_value() if key else ""
        if not (text.isascii() and text.isprintable()):
            raise ValueError("the key goes in a header: printable ASCII only")
        return key

    @model_validator(mode="after")
    def _input_fits_sequence(self) -> Self:
        if self.max_input_len >= self.max_seq_len:
            raise ValueError("engine.max_input_len must be below engine.max_seq_len")
        return self

    @model_validator(mode="after")
    def _kind_fits_url(self) -> Self:
        if self.kind != "auto" and (self.url is None or self.url.startswith("grpc://")):
            raise ValueError("engine.kind is the kind of an HTTP engine, so engine.url must begin with http")
        return self


class TokenizerSettings(Group):
    """The served model's tokenizer."""

    path: str | None = Field(
        default=None, description="directory or name for AutoTokenizer; None: the bundled Llama 3 tokenizer"
    )
    chat_template: str | None = Field(
        default=None,
        description="a Jinja file that replaces the tokenizer's own chat template; None: its own",
    )
    tool_format: Literal["auto", "none", "llama3", "hermes", "harmony"] = Field(
        default="auto",
        description="how the model writes calls of functions; auto: as its chat template tells; none:"
        " requests with tools are refused",
    )
    child_memory_mb: int = Field(
        default=1024, ge=128, description="memory of the process that counts a text with no safe cut"
    )
    child_seconds: float = Field(
        default=60, gt=0, le=600, description="time it may take for one text; beyond it: prompt_uncountable"
    )
