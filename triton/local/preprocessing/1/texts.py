"""What the models between text and tokens are started with: their parameters and the tokenizer."""

import json
from pathlib import Path
from typing import Any, TypeAlias

from tokenizers import Tokenizer

# Made by Triton's stub, which has no types.
PbRequest: TypeAlias = Any
PbResponse: TypeAlias = Any


def parameters_of(args: dict[str, str]) -> dict[str, str]:
    """The parameters of config.pbtxt, from what Triton hands to `initialize`."""
    given = json.loads(args["model_config"])["parameters"]
    return {name: value["string_value"] for name, value in given.items()}


def load_tokenizer(parameters: dict[str, str]) -> Tokenizer:
    """The tokenizer of the directory that the parameters name."""
    return Tokenizer.from_file(str(Path(parameters["tokenizer_dir"]) / "tokenizer.json"))
