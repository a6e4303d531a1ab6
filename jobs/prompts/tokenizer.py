"""The served model's tokenizer: the exact token ids that the engine receives."""

import functools
import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, get_args

import numpy as np
import numpy.typing as npt
import tokenizers
import zstandard

from jobs.database.base import JsonObject
from jobs.errors import PromptTooLongError
from jobs.prompts.chat_template import ChatTemplate, ChatTemplateError, ToolsNotTakenError
from jobs.prompts.control_text import Frame, Markup, adds_bos
from jobs.prompts.encoding import PlainEncoder, TokenIds, UnsafeTextError, concatenate, control_tokens, one
from jobs.prompts.messages import Conversation, Message, Role
from jobs.prompts.thinking import ThinkingTags, find_tags, opens_thinking, tail_of
from jobs.prompts.token_bytes import TokenBytes
from jobs.prompts.tokenizer_files import (
    ESTIMATE_MARK,
    TokenizerMissingError,
    ensure_default_tokenizer,
    template_of,
    tokenizer_directory,
)
from jobs.prompts.tools.formats import CallMarkup, channel_ids, find_markup
from jobs.prompts.uncut_text import ChildLimits
from jobs.settings import TokenizerSettings

__all__ = [
    "ChildLimits",
    "TokenIds",
    "Tokenizer",
    "TokenizerMissingError",
    "UnsafeTextError",
    "begin_of_text",
    "ensure_default_tokenizer",
    "load_configured",
    "num_text_bytes",
    "pack_ids",
    "pack_text",
    "unpack_ids",
    "unpack_text",
]

# Part of the fingerprint: raise it when the same messages would give different ids.
RENDERING_VERSION: Final = 1
_OF_THREAD: Final = threading.local()
_ROLES: Final = get_args(Role)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tokenizer:
    """The served model's tokenizer; frozen, and safe to use from several threads.

    Attributes:
        fingerprint: changes whenever the same messages could give different ids; 32 hexadecimal digits.
        num_tokens: size of the vocabulary, including added tokens.
        eos_ids: every id that ends an answer; the first is `end_id`.
        end_id: the id at which the engine stops.
        pad_id: fills up batches; `end_id` if the model names none.
        bos_id: begins a text; None if the model has none. Chat templates write it themselves.
        adds_bos: the tokenizer itself, used its usual way, begins every text with `bos_id`.
        frame: the tokens that it puts around a text then.
        token_bytes: the bytes of each id.
        markup: writes prompts as text, for servers that do not accept ids.
        thinking: the tags between which the model thinks; None if it has none.
        calls: how the model writes calls; None: no request can have tools.
        channels: the ids of the tokens between the parts of an answer in channels, with their text; empty:
            the model's answers have none.
        is_estimate: it is no model's: counts are estimates, and no engine understands its ids.
    """

    fingerprint: str
    num_tokens: int
    eos_ids: tuple[int, ...]
    end_id: int
    pad_id: int
    bos_id: int | None
    adds_bos: bool
    frame: Frame
    token_bytes: TokenBytes
    markup: Markup
    thinking: ThinkingTags | None
    calls: CallMarkup | None
    channels: dict[int, str]
    is_estimate: bool
    _plain: PlainEncoder
    _template: ChatTemplate | None
    _directory: Path
    _limits: ChildLimits | None
    _settings: tuple[str, str | None]

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by name: the receiving process loads its own copy, once."""
        return _load_once, (self._directory, self._limits, *self._settings)

    @classmethod
    def load(
        cls,
        path_or_name: str | None = None,
        *,
        limits: ChildLimits | None = None,
        tool_format: str = "auto",
        chat_template: str | None = None,
    ) -> Self:
        """Load a tokenizer from this machine.

        Takes about half a second for 128,000 tokens. Imports transformers only if there is no tokenizer.json.

        Args:
            path_or_name: a directory or a name in the Hugging Face cache; None means the bundled Llama 3 one.
            limits: of the child processes that encode uncuttable texts; None means the defaults.
            tool_format: how the model writes calls, a `ToolFormat`; `auto`: as its chat template tells;
                `none`: no request can have tools.
            chat_template: a Jinja file that replaces the tokenizer's own; None: its own.

        Raises:
            TokenizerMissingError: it or the template is not on this machine, or it names no end token.
            ChatTemplateError: its chat template does not compile.
            UnsupportedTokenizerError: its tokens cannot be turned into bytes one by one.
        """
        return cls._from_directory(tokenizer_directory(path_or_name), limits, tool_format, chat_template)

    @classmethod
    def _from_directory(
        cls, directory: Path, limits: ChildLimits | None, tool_format: str, chat_template: str | None
    ) -> Self:
        serialized = (directory / "tokenizer.json").read_bytes()
        config = _read_json(directory / "tokenizer_config.json")
        backend = tokenizers.Tokenizer.from_buffer(serialized)
        controls = control_tokens(backend)
        named = _named_tokens(config)
        eos_ids = _eos_ids(backend, named, _read_json(directory / "generation_config.json"))
        if not eos_ids:
            raise TokenizerMissingError(f"The tokenizer in {directory} names no end token.")
        source = template_of(directory, config, chat_template)
        pad_id = backend.token_to_id(named.get("pad_token", ""))
        bos_id = backend.token_to_id(named.get("bos_token", ""))
        token_bytes, plain = TokenBytes(backend), PlainEncoder(backend, serialized, limits=limits)
        ids = {control.text: control.id for control in controls}
        template = ChatTemplate(source, control_tokens=controls, variables=named) if source else None
        return cls(
            fingerprint=_fingerprint(serialized, source),
            num_tokens=backend.get_vocab_size(with_added_tokens=True),
            eos_ids=eos_ids,
            end_id=eos_ids[0],
            pad_id=eos_ids[0] if pad_id is None else pad_id,
            bos_id=bos_id,
            adds_bos=adds_bos(backend, config, bos_id),
            frame=Frame.of(backend, config, bos_id=bos_id, eos_id=eos_ids[0]),
            token_bytes=token_bytes,
            markup=Markup(token_bytes, controls, plain),
            thinking=find_tags(source, controls, _hidden_ids(backend)),
            channels=channel_ids(source, ids),
            is_estimate=config.get(ESTIMATE_MARK) is True,
            calls=find_markup(
                source,
                ids,
                _hidden_ids(backend),
                takes_tools=template is not None and template.takes_tools,
                setting=tool_format,
            ),
            _plain=plain,
            _template=template,
            _directory=directory,
            _limits=limits,
            _settings=(tool_format, chat_template),
        )

    def encode_messages(
        self,
        messages: Sequence[Message],
        *,
        variables: str = "",
        tools: Sequence[JsonObject] = (),
        limit: int | None = None,
    ) -> TokenIds:
        """Encode the prompt that makes the model answer these messages.

        Equals rendering and encoding the chat template, except that message contents stay ordinary text: the
        template cannot trim them, and nothing in them becomes a control token.

        Args:
            messages: the turns of the conversation.
            variables: variables of the caller for the template, as canonical JSON; empty: none.
            tools: the functions that the model is told of.
            limit: the most tokens that the prompt may have; None means no limit.

        Raises:
            TemplateVariablesError: the template fails with these variables.
            ToolsNotTakenError: there are tools, and the model cannot be told of any.
            ChatTemplateError: the model has no chat template, or its template refuses these messages.
            UnsafeTextError: the tokenizer cannot encode a content without control tokens.
        """
        return self.encode_pieces(self.pieces_of(messages, variables=variables, tools=tools), limit=limit)

    def encode_pieces(self, pieces: Sequence[int | str], *, limit: int | None = None) -> TokenIds:
        """Encode texts between token ids.

        Raises:
            UnsafeTextError: see `encode_text`.
        """
        found: list[TokenIds] = []
        num = 0
        for piece in pieces:
            if isinstance(piece, int):
                found.append(one(piece))
            else:
                found.append(self._encode_after(num, piece, limit=limit))
            num += len(found[-1])
        return concatenate(found)

    def pieces_of(
        self, messages: Sequence[Message], *, variables: str = "", tools: Sequence[JsonObject] = ()
    ) -> list[int | str]:
        """Render the prompt as control tokens and the texts between them, which hold none.

        Arguments and errors are those of `encode_messages`, which encodes the texts.
        """
        if self._template is None:
            raise ChatTemplateError("The model has no chat template; send it plain text.")
        roles = tuple([message.role for message in messages])
        if strange := set(roles).difference(_ROLES):
            raise ChatTemplateError(
                f"A message's role must be one of {_ROLES}; {len(strange)} other roles were given."
            )
        if tools and self.calls is None:
            raise ToolsNotTakenError
        if tools or not all(message.is_plain for message in messages):
            return self._template.pieces(Conversation(list(messages), variables, tuple(tools)))
        return [
            piece
            if isinstance(piece, int)
            else "".join([messages[p].content if isinstance(p, int) else p for p in piece])
            for piece in self._template.skeleton(roles, variables)
        ]

    def encode_together(self, prompts: Sequence[Sequence[int | str]]) -> list[TokenIds | None]:
        """Encode the pieces of many short prompts in one call, on all cores.

        Returns:
            None in the place of a prompt that must be encoded by itself.
        """
        return self._plain.encode_together(prompts)

    def encode_plain(self, text: str, *, limit: int | None = None) -> TokenIds:
        """Encode a prompt without a chat template: any `bos_id`, then the text.

        Raises:
            UnsafeTextError: see `encode_text`.
        """
        begin = [] if self.bos_id is None else [np.array([self.bos_id], dtype=np.int32)]
        return concatenate([*begin, self._encode_after(len(begin), text, limit=limit)])

    def _encode_after(self, num_before: int, text: str, *, limit: int | None) -> TokenIds:
        """Encode the part of a prompt that follows its first `num_before` tokens."""
        if limit is None:
            return self._plain.encode_piece(text)
        try:
            return self._plain.encode(text, limit=max(0, limit - num_before))
        except PromptTooLongError as error:
            raise PromptTooLongError(at_least=num_before + error.at_least, limit=limit) from None

    def encode_text(self, text: str) -> TokenIds:
        """Encode the text as ordinary tokens: no `bos_id` and no control tokens, ever.

        Raises:
            UnsafeTextError: the tokenizer cannot encode it without control tokens.
        """
        return self._plain.encode(text)

    def count_text(self, text: str) -> int:
        """Count the tokens that `encode_text` returns."""
        return self._plain.count(text)

    def token_starts(self, text: str) -> npt.NDArray[np.int32]:
        """Return the index of each token's first character; see `PlainEncoder.starts`."""
        return self._plain.starts(text)

    def opens_thinking(self, prompt: TokenIds) -> bool:
        """Return True if the answer to this rendered conversation begins inside thinking."""
        if self.thinking is None:
            return False
        tail = b"".join(self.markup.bytes_of(token_id) for token_id in tail_of(prompt))
        return opens_thinking(self.thinking, prompt, tail.decode(errors="replace"))

    def decode(self, ids: Sequence[int] | TokenIds) -> str:
        """Decode the tokens, without special ones; invalid UTF-8 becomes U+FFFD."""
        text = b"".join([self.token_bytes[int(token_id)] for token_id in ids]).decode(errors="replace")
        return text.removeprefix(" ") if self.token_bytes.drops_first_space else text


@functools.cache
def _load_once(
    directory: Path, limits: ChildLimits | None, tool_format: str, chat_template: str | None
) -> Tokenizer:
    return Tokenizer.load(str(directory), limits=limits, tool_format=tool_format, chat_template=chat_template)


def load_configured(settings: TokenizerSettings) -> Tokenizer:
    """Load the tokenizer that the settings name, once in a process; raises what `Tokenizer.load` raises."""
    limits = ChildLimits(settings.child_memory_mb, settings.child_seconds)
    directory = tokenizer_directory(settings.path)
    return _load_once(directory, limits, settings.tool_format, settings.chat_template)


def _named_tokens(config: Mapping[str, object]) -> dict[str, str]:
    """Return the text of the model's `bos_token`, `eos_token`, `pad_token`, … by name."""
    named: dict[str, str] = {}
    for name, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            named[name] = text
    return named


def _eos_ids(
    backend: tokenizers.Tokenizer, named: Mapping[str, str], generation: Mapping[str, object]
) -> tuple[int, ...]:
    """Return every id that ends an answer, the tokenizer's own first."""
    own = backend.token_to_id(named.get("eos_token", ""))
    others = generation.get("eos_token_id")
    listed = others if isinstance(others, list) else [others]
    return tuple(dict.fromkeys(eos for eos in (own, *listed) if isinstance(eos, int)))


def _hidden_ids(backend: tokenizers.Tokenizer) -> frozenset[int]:
    """Return the special tokens, which are left out of an answer's text."""
    added = backend.get_added_tokens_decoder()
    return frozenset(token_id for token_id, token in added.items() if token.special)


def _fingerprint(serialized: bytes, template: str | None) -> str:
    digest = hashlib.sha256(serialized)
    digest.update(f"\0{RENDERING_VERSION}\0{template or ''}".encode())
    return digest.hexdigest()[:32]


def _read_json(file: Path) -> dict[str, object]:
    content: object = json.loads(file.read_bytes()) if file.is_file() else {}
    return content if isinstance(content, dict) else {}


def pack_ids(ids: Sequence[int] | TokenIds) -> bytes:
    """Pack ids as little-endian int32, compressed with zstandard."""
    return _compressor().compress(np.asarray(ids, dtype="<i4").tobytes())


def unpack_ids(packed: bytes) -> TokenIds:
    """Unpack what `pack_ids` packed; the array is writable."""
    return np.frombuffer(zstandard.ZstdDecompressor().decompress(packed), dtype="<i4").astype(np.int32)


def pack_text(text: str) -> bytes:
    """Pack text as UTF-8, compressed with zstandard.

    Raises:
        UnicodeEncodeError: the text holds a lone surrogate.
    """
    return _compressor().compress(text.encode())


def _compressor() -> zstandard.ZstdCompressor:
    """Return this thread's compressor: a new one costs as much as compressing a short text."""
    found: zstandard.ZstdCompressor | None = getattr(_OF_THREAD, "compressor", None)
    if found is None:
        found = _OF_THREAD.compressor = zstandard.ZstdCompressor()
    return found


def begin_of_text(packed: bytes) -> str:
    """Unpack the first character of what `pack_text` packed, however long it is."""
    with zstandard.ZstdDecompressor().stream_reader(packed) as reader:
        return reader.read(4).decode(errors="ignore")[:1]


def num_text_bytes(packed: bytes) -> int:
    """Return the size of the text in what `pack_text` packed, without unpacking it."""
    return zstandard.frame_content_size(packed)


def unpack_text(packed: bytes) -> str:
    """Unpack what `pack_text` packed."""
    return zstandard.ZstdDecompressor().decompress(packed).decode()
