"""A request to the engine, independent of the kind of engine; its prompt as ids or text."""

from dataclasses import dataclass
from typing import Final

from jobs.engines.tensors import NO_TENSORS, TensorRequest
from jobs.errors import EngineError
from jobs.prompts.abilities import EMBEDDINGS, LORA, PENALTIES
from jobs.prompts.estimates import Turn
from jobs.prompts.guides import Guide
from jobs.prompts.token_bytes import TokenBytes
from jobs.prompts.tokenizer import TokenIds, Tokenizer

# Below it, dividing the logits makes them overflow; vLLM treats the same range as greedy.
_GREEDY_BELOW: Final = 1e-5


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling parameters of a request.

    Attributes:
        temperature: 0 picks the most likely token each time.
        top_p: share of the probability to choose from; None means all of it.
        top_k: number of tokens to choose from; None means all of them.
        seed: seed of the engine's random generator; None if nothing is drawn.
        min_tokens: the fewest tokens before an end token; None means no minimum.
        min_p: probability of a token relative to the most likely one; None means none.
        frequency_penalty, presence_penalty, repetition_penalty: for tokens that came before; None means none.
        logit_bias: added to the scores of these token ids.
        bad_words: texts that must not come.
        stop_token_ids: tokens before which the answer ends, besides the end token.
        ignores_end: the model's end token ends no answer.
    """

    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    min_tokens: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignores_end: bool = False

    @property
    def is_greedy(self) -> bool:
        """True if the sampling is deterministic."""
        return self.temperature < _GREEDY_BELOW or self.top_k == 1 or self.top_p == 0

    @property
    def penalties(self) -> dict[str, float]:
        """The penalties that are set."""
        given = {name: getattr(self, name) for name in PENALTIES}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def needed(self) -> frozenset[str]:
        """Names of the parameters without which an engine would pick other tokens.

        Not `seed`: without it only the choice differs that chance makes. Models without a top-p are
        TensorRT-LLM's, whose own top-p is 0: without a top-k that is greedy.
        """
        given: dict[str, object] = {"logit_bias": self.logit_bias, "bad_words": self.bad_words}
        given |= {"stop_token_ids": self.stop_token_ids, "ignore_eos": self.ignores_end}
        needs = dict.fromkeys(self.penalties, True) | {name: bool(each) for name, each in given.items()}
        needs |= {"min_tokens": bool(self.min_tokens)}
        if not self.is_greedy:
            needs |= {"min_p": bool(self.min_p)}
            needs |= {"temperature": self.temperature != 1, "top_k": bool(self.top_k)}
            needs |= {"top_p": self.top_p not in (None, 1) or not self.top_k}
        return frozenset(name for name, is_needed in needs.items() if is_needed)


@dataclass(frozen=True, slots=True)
class WantedAdapter:
    """The adapter that a request asks for; `LoraAdapter` describes the fields.

    Attributes:
        place: its place among those that the engine was started with, from 0.
    """

    name: str
    number: int
    format: str
    source: str
    sha256: bytes
    place: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """A generation request to the engine.

    Attributes:
        request_id: unique among the engine's requests.
        ids: the prompt.
        max_tokens: the maximum number of output tokens.
        end_id: the token at which it ends.
        pad_id: the token that pads batches.
        sampling: its sampling parameters.
        text: the prompt for models that take text; empty for the others.
        turns: the prompt for servers that take messages; empty for the others.
        stops: stop strings, for servers that must end the answer themselves.
        vocabulary: the bytes of each token id, for servers whose streams leave ids out; None if unknown.
        guide: the form that the engine must give the answer; None: any.
        num_top: tokens in the place of each one whose log probabilities it must tell, besides that of the one
            itself; None: it need not tell any.
        is_embedding: it asks for the vector of the prompt, and generates nothing.
        may_reuse: the engine may take what its cache has of the prompt.
        cache_salt: the engine reuses for it what requests with the same salt left in its cache, and nothing
            else; None: of any request without one.
        adapter: that generates; None: the model as it is.
        tensors: what goes to the engine by name besides.
    """

    request_id: str
    ids: TokenIds
    max_tokens: int
    end_id: int
    pad_id: int
    sampling: Sampling = Sampling()
    text: str = ""
    turns: tuple[Turn, ...] = ()
    stops: tuple[str, ...] = ()
    vocabulary: TokenBytes | None = None
    cache_salt: str | None = None
    guide: Guide | None = None
    num_top: int | None = None
    adapter: WantedAdapter | None = None
    tensors: TensorRequest = NO_TENSORS
    is_embedding: bool = False
    may_reuse: bool = True

    @property
    def needed(self) -> frozenset[str]:
        """Names of the abilities without which an engine would answer otherwise."""
        if self.is_embedding:
            return frozenset({EMBEDDINGS})
        scores = {"logprobs"} if self.num_top is not None else set()
        scores |= {"top_logprobs"} if self.num_top else set()
        scores |= {LORA} if self.adapter is not None else set()
        return self.sampling.needed | scores | ({self.guide.kind.value} if self.guide else set())


def prompt_text(tokenizer: Tokenizer, ids: TokenIds, *, adds_bos: bool) -> str:
    """Return the text that the server encodes back into these ids.

    Args:
        tokenizer: the served model's tokenizer.
        ids: the prompt.
        adds_bos: the server encodes a text as the tokenizer usually does, which may prepend a token.

    Raises:
        UnsafeTextError: no text encodes to these ids; see `Markup.write`.
        EngineError: the server would prepend a token that was not counted.
    """
    if not (adds_bos and tokenizer.adds_bos):
        return tokenizer.markup.write(ids)
    if not len(ids) or ids[0] != tokenizer.bos_id:
        raise EngineError("the server starts every text with a token that this prompt does not have")
    return tokenizer.markup.write(ids[1:])
