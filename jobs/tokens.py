"""Exact token counts: what the engine will be sent, made with the served model's tokenizer."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, get_args

import numpy as np
import numpy.typing as npt
import tokenizers
import zstandard

from jobs.chat_template import ChatTemplate, ChatTemplateError, ControlToken, control_pattern
from jobs.prompts import Message, Role
from jobs.token_bytes import TokenBytes
from jobs.tokenizer_files import TokenizerMissingError, ensure_default_tokenizer, tokenizer_directory

__all__ = [
    "TokenIds",
    "Tokenizer",
    "TokenizerMissingError",
    "UnsafeTextError",
    "ensure_default_tokenizer",
    "pack_ids",
    "pack_text",
    "unpack_ids",
    "unpack_text",
]

TokenIds = npt.NDArray[np.int32]

# Part of the fingerprint: raise it when the same messages would give other ids.
RENDERING_VERSION: Final = 1


class UnsafeTextError(ChatTemplateError):
    """The tokenizer turns plain text into a control token."""

    code = "unsafe_text"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tokenizer:
    """The served model's tokenizer; frozen, and safe to use from several threads.

    Attributes:
        fingerprint: changes whenever the same messages could give other ids; 32 hexadecimal digits.
        num_tokens: size of the vocabulary, added tokens included.
        eos_ids: every id that ends an answer; the first is `end_id`.
        end_id: the one the engine is told to stop at.
        pad_id: fills up batches; `end_id` where the model names none.
        bos_id: begins a text; None where the model has none. Chat templates write it themselves.
        token_bytes: what each id stands for in text.
    """

    fingerprint: str
    num_tokens: int
    eos_ids: tuple[int, ...]
    end_id: int
    pad_id: int
    bos_id: int | None
    token_bytes: TokenBytes
    _plain: tokenizers.Tokenizer
    _template: ChatTemplate | None
    _controls: re.Pattern[str]
    _control_ids: TokenIds

    @classmethod
    def load(cls, path_or_name: str | None = None) -> Self:
        """The tokenizer of a directory, of a name in the Hugging Face cache, or the bundled Llama 3 one.

        Takes about half a second for 128,000 tokens; where tokenizer.json exists, without transformers.

        Raises:
            TokenizerMissingError: it is not on this machine, or says not how an answer ends.
            ChatTemplateError: its chat template does not compile.
            UnsupportedTokenizerError: its tokens cannot be turned into bytes one by one.
        """
        return cls._from_directory(tokenizer_directory(path_or_name))

    @classmethod
    def _from_directory(cls, directory: Path) -> Self:
        serialized = (directory / "tokenizer.json").read_bytes()
        config = _read_json(directory / "tokenizer_config.json")
        backend = tokenizers.Tokenizer.from_buffer(serialized)
        controls = _control_tokens(backend)
        named = _named_tokens(config)
        eos_ids = _eos_ids(backend, named, _read_json(directory / "generation_config.json"))
        if not eos_ids:
            raise TokenizerMissingError(f"The tokenizer in {directory} names no end token.")
        source = _template_source(directory, config)
        pad_id = backend.token_to_id(named.get("pad_token", ""))
        return cls(
            fingerprint=_fingerprint(serialized, source),
            num_tokens=backend.get_vocab_size(with_added_tokens=True),
            eos_ids=eos_ids,
            end_id=eos_ids[0],
            pad_id=eos_ids[0] if pad_id is None else pad_id,
            bos_id=backend.token_to_id(named.get("bos_token", "")),
            token_bytes=TokenBytes(backend),
            _plain=_plain_encoder(backend, serialized),
            _template=ChatTemplate(source, control_tokens=controls, variables=named) if source else None,
            _controls=control_pattern(controls),
            _control_ids=np.array([token.id for token in controls], dtype=np.int32),
        )

    def encode_messages(self, messages: Sequence[Message]) -> TokenIds:
        """The prompt that makes the model answer these messages, as the engine is to receive it.

        Equal to rendering and encoding the chat template, except that every character of a content stays an
        ordinary character: the template cannot trim it and nothing in it becomes a control token.

        Raises:
            ChatTemplateError: the model has no chat template, or its template refuses these roles.
            UnsafeTextError: the tokenizer cannot write a content without control tokens.
        """
        if self._template is None:
            raise ChatTemplateError("The model has no chat template; send it plain text.")
        if strange := {message.role for message in messages}.difference(get_args(Role)):
            raise ChatTemplateError(
                f"A message's role is one of {get_args(Role)}; there are {len(strange)} others."
            )
        skeleton = self._template.skeleton(tuple(message.role for message in messages))
        return self._concatenate(
            [
                np.array([piece], dtype=np.int32)
                if isinstance(piece, int)
                else self.encode_text(
                    "".join(messages[p].content if isinstance(p, int) else p for p in piece)
                )
                for piece in skeleton
            ]
        )

    def encode_text(self, text: str) -> TokenIds:
        """The text as ordinary tokens: no beginning-of-text, no control tokens, whatever it holds.

        Raises:
            UnsafeTextError: the tokenizer cannot write it without control tokens.
        """
        ids = self._encode(text)
        if not self._has_control(ids):
            return ids
        # The vocabulary holds control tokens as ordinary pieces too (SentencePiece's </s>): cut them apart.
        cut = [
            position
            for match in self._controls.finditer(text)
            for position in (match.start(match.lastgroup or 0) + 1, match.end())
        ]
        bounds = zip([0, *cut], [*cut, len(text)], strict=True)
        ids = self._concatenate([self._encode(text[start:end]) for start, end in bounds])
        if self._has_control(ids):
            raise UnsafeTextError
        return ids

    def count_messages(self, messages: Sequence[Message]) -> int:
        """How many tokens `encode_messages` gives."""
        return len(self.encode_messages(messages))

    def count_text(self, text: str) -> int:
        """How many tokens `encode_text` gives."""
        return len(self.encode_text(text))

    def decode(self, ids: Sequence[int] | TokenIds) -> str:
        """The text of these tokens, special ones left out; bytes that are no UTF-8 become U+FFFD."""
        text = b"".join([self.token_bytes[int(token_id)] for token_id in ids]).decode(errors="replace")
        return text.removeprefix(" ") if self.token_bytes.drops_first_space else text

    def _encode(self, text: str) -> TokenIds:
        # Unlike `encode` it releases the interpreter lock; and it is faster, as it keeps no offsets.
        (encoding,) = self._plain.encode_batch_fast([text], add_special_tokens=False)
        return np.array(encoding.ids, dtype=np.int32)

    def _has_control(self, ids: TokenIds) -> bool:
        return bool(np.isin(ids, self._control_ids).any())

    @staticmethod
    def _concatenate(parts: list[TokenIds]) -> TokenIds:
        return np.concatenate([np.empty(0, dtype=np.int32), *parts])


def _control_tokens(backend: tokenizers.Tokenizer) -> tuple[ControlToken, ...]:
    """The added tokens that text must never become: all but those for runs of white space."""
    added = backend.get_added_tokens_decoder()
    return tuple(
        ControlToken(token.content, token_id, strips_left=token.lstrip, strips_right=token.rstrip)
        for token_id, token in added.items()
        if not token.content.isspace()
    )


def _plain_encoder(backend: tokenizers.Tokenizer, serialized: bytes) -> tokenizers.Tokenizer:
    """A tokenizer that matches no control token in text; the same object where a flag is enough."""
    # Set once, before any thread sees the object: it is a property of the object, not of a call.
    backend.encode_special_tokens = True
    backend.no_truncation()
    backend.no_padding()
    added = backend.get_added_tokens_decoder().values()
    if all(token.special or token.content.isspace() for token in added):
        return backend
    document = json.loads(serialized)
    document |= {"truncation": None, "padding": None}
    # Left out, they would shift the ids of those that stay; called special, the flag covers them.
    for token in document["added_tokens"]:
        token["special"] = not token["content"].isspace()
    plain = tokenizers.Tokenizer.from_str(json.dumps(document))
    plain.encode_special_tokens = True
    return plain


def _named_tokens(config: Mapping[str, object]) -> dict[str, str]:
    """The model's `bos_token`, `eos_token`, `pad_token`, … as text."""
    named: dict[str, str] = {}
    for name, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            named[name] = text
    return named


def _eos_ids(
    backend: tokenizers.Tokenizer, named: Mapping[str, str], generation: Mapping[str, object]
) -> tuple[int, ...]:
    """Every id that ends an answer, the tokenizer's own first."""
    own = backend.token_to_id(named.get("eos_token", ""))
    others = generation.get("eos_token_id")
    listed = others if isinstance(others, list) else [others]
    return tuple(dict.fromkeys(eos for eos in (own, *listed) if isinstance(eos, int)))


def _template_source(directory: Path, config: Mapping[str, object]) -> str | None:
    file = directory / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    source = config.get("chat_template")
    if isinstance(source, list):  # several by name, as older tokenizers have them
        source = next((entry["template"] for entry in source if entry.get("name") == "default"), None)
    return source if isinstance(source, str) else None


def _fingerprint(serialized: bytes, template: str | None) -> str:
    digest = hashlib.sha256(serialized)
    digest.update(f"\0{RENDERING_VERSION}\0{template or ''}".encode())
    return digest.hexdigest()[:32]


def _read_json(file: Path) -> dict[str, object]:
    content: object = json.loads(file.read_bytes()) if file.is_file() else {}
    return content if isinstance(content, dict) else {}


def pack_ids(ids: Sequence[int] | TokenIds) -> bytes:
    """The ids as little-endian int32, compressed with zstandard."""
    return zstandard.ZstdCompressor().compress(np.asarray(ids, dtype="<i4").tobytes())


def unpack_ids(packed: bytes) -> TokenIds:
    """The ids that `pack_ids` packed; the array can be written to."""
    return np.frombuffer(zstandard.ZstdDecompressor().decompress(packed), dtype="<i4").astype(np.int32)


def pack_text(text: str) -> bytes:
    """The text as UTF-8, compressed with zstandard.

    Raises:
        UnicodeEncodeError: the text holds a lone surrogate.
    """
    return zstandard.ZstdCompressor().compress(text.encode())


def unpack_text(packed: bytes) -> str:
    """The text that `pack_text` packed."""
    return zstandard.ZstdDecompressor().decompress(packed).decode()
