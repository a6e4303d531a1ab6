"""A Llama whose every answer can be said beforehand: its weights hold a text."""

import json
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from jobs.prompts.messages import Message
from jobs.prompts.tokenizer import TokenIds, Tokenizer

POSITIONS: Final = 131_072
# No token comes twice, so each says which one follows it. Every third word takes several tokens for one
# character of two to four bytes.
TEXT: Final = (
    " amber basin copper 🜂 delta ember fjord ∮ granite harbor island 腫 juniper kernel lantern 淚"
    " meadow nectar orchid 𩒼 prairie quartz river 街 summit timber umber ሰ valley willow xenon 繥"
    " yonder zephyr café 兵 naïve über łódź 뿬 søster надежда ελπίδα 梡 anchor bridge canyon 驃 desert"
    " eagle forest 龅 garden hollow ivory ꦄ jungle knight ladder ⇍ marble needle ocean 籤 pepper"
    " quiver rabbit 諔 saddle temple urban 퇷 velvet window yellow 좋 apple bottle castle 慌 dragon"
    " engine feather ඎ guitar hammer insect ⴲ jacket kitchen lemon 켘 mirror number orange 酳 pencil"
    " quilt ribbon 匀 silver tunnel uncle violin winter candle button cotton dinner evening finger"
    " glass honey iron jewel kettle leather market napkin olive paper queen rocket shadow"
)
ENDLESS: Final = " endlessly"  # a prompt with this word in it gets an answer without an end

_FOLLOWER = slice(0, 64)  # what a token says of the one that follows it
_BALLOT = slice(64, 72)  # how a token of the prompt votes on the answer's first word
_ENDLESS: Final = 72
_COUNT = slice(80, 88)  # the votes counted: attention's mean of all ballots
_COUNT_ENDLESS: Final = 88
_HIDDEN: Final = 96
_HEAD: Final = 32  # the smallest that engines have kernels for
_INTERMEDIATE: Final = 8
_NUM_OPENINGS: Final = 16  # one for each end of each axis of the ballots
_CERTAIN: Final = 10.0  # the follower's loudness; a count of votes stays below 0.5
_EPSILON: Final = 1e-6

Matrix = npt.NDArray[np.float32]


class ScriptedModel:
    """One layer whose attention weighs all tokens alike.

    Behind a prompt the mean of what all its tokens carry chooses a word of the text; from there each token
    calls the next, up to the end token or, where a prompt is `ENDLESS`, round and round.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        ids = tokenizer.encode_text(TEXT).tolist()
        (endless,) = tokenizer.encode_text(ENDLESS).tolist()
        assert len(set(ids)) == len(ids)
        assert endless not in ids
        self._ids: list[int] = ids
        self._endless = endless
        self._end = tokenizer.end_id
        # What stands in every prompt has no vote.
        self._common = tokenizer.encode_messages([Message("user", "Write about.")])
        self._openings = _openings(tokenizer)
        self._embedding, self._head = self._weights(tokenizer.num_tokens)

    def says(self, prompt: TokenIds) -> list[int]:
        """The whole answer, without the end token; round once where there is none."""
        first = self._first(prompt)
        said = self._ids[first:]
        return said + self._ids[:first] if self._endless in prompt else said

    def save(self, directory: Path) -> Path:
        """The directory now holds the model."""
        config = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": len(self._embedding),
            "hidden_size": _HIDDEN,
            "intermediate_size": _INTERMEDIATE,
            "num_hidden_layers": 1,
            "num_attention_heads": 1,
            "num_key_value_heads": 1,
            "head_dim": _HEAD,
            "hidden_act": "silu",
            "max_position_embeddings": POSITIONS,
            "rms_norm_eps": _EPSILON,
            "eos_token_id": self._end,
            "bos_token_id": None,
            "tie_word_embeddings": False,
            "torch_dtype": "float32",
        }
        (directory / "config.json").write_text(json.dumps(config))
        save_file(self._tensors(), directory / "model.safetensors", metadata={"format": "pt"})
        return directory

    def _tensors(self) -> dict[str, Matrix]:
        """The weights by name: all zero, but what counts ballots, and the norms.

        Shapes:
            each `[out, in]`, norms `[hidden]`.
        """
        votes, counts = np.zeros((_HEAD, _HIDDEN), np.float32), np.zeros((_HIDDEN, _HEAD), np.float32)
        for axis in range(16):
            votes[axis, _BALLOT.start + axis] = 1.0
            counts[_COUNT.start + axis, axis] = 0.05
        layer = "model.layers.0."
        narrow = np.zeros((_HEAD, _HIDDEN), np.float32)
        wide = np.zeros((_INTERMEDIATE, _HIDDEN), np.float32)
        return {
            "model.embed_tokens.weight": self._embedding,
            "lm_head.weight": self._head,
            "model.norm.weight": np.ones(_HIDDEN, np.float32),
            layer + "input_layernorm.weight": np.ones(_HIDDEN, np.float32),
            layer + "post_attention_layernorm.weight": np.ones(_HIDDEN, np.float32),
            layer + "self_attn.q_proj.weight": narrow,
            layer + "self_attn.k_proj.weight": narrow.copy(),
            layer + "self_attn.v_proj.weight": votes,
            layer + "self_attn.o_proj.weight": counts,
            layer + "mlp.gate_proj.weight": wide,
            layer + "mlp.up_proj.weight": wide.copy(),
            layer + "mlp.down_proj.weight": wide.T.copy(),
        }

    def _weights(self, num_tokens: int) -> tuple[Matrix, Matrix]:
        """The embeddings, and the head.

        Shapes:
            both `[tokens, hidden]`.
        """
        random = np.random.default_rng(7)
        embedding = np.zeros((num_tokens, _HIDDEN), dtype=np.float32)
        head = np.zeros_like(embedding)
        embedding[:, _BALLOT] = random.standard_normal((num_tokens, 8))
        embedding[self._common, _BALLOT] = 0.0
        embedding[self._endless, _ENDLESS] = 1.0
        names = random.standard_normal((len(self._ids) + 1, 64)).astype(np.float32)
        names /= np.linalg.norm(names, axis=1, keepdims=True)
        head[[*self._ids, self._end], _FOLLOWER] = names
        embedding[self._ids, _FOLLOWER] = _CERTAIN * names[1:]
        # Behind the last word the first one comes second; where the end token is muted, it comes.
        embedding[self._ids[-1], _FOLLOWER] += 0.9 * _CERTAIN * names[0]
        head[self._end, _COUNT_ENDLESS] = -1e9
        for number, place in enumerate(self._openings):
            head[self._ids[place], _COUNT.start + number // 2] = 1.0 if number % 2 == 0 else -1.0
        return embedding, head

    def _first(self, prompt: TokenIds) -> int:
        """The place in the text of the answer's first token."""
        carried = self._embedding[prompt].astype(np.float64)
        carried /= np.sqrt((carried**2).mean(axis=1, keepdims=True) + _EPSILON)
        count = carried[:, _BALLOT].mean(axis=0)
        axis = int(np.abs(count).argmax())
        return self._openings[2 * axis + int(count[axis] < 0)]


def _openings(tokenizer: Tokenizer) -> list[int]:
    """Places in the text where answers begin: every fourth word."""
    words = [f" {word}" for word in TEXT.split()]
    return [tokenizer.count_text("".join(words[: 4 * number])) for number in range(_NUM_OPENINGS)]
