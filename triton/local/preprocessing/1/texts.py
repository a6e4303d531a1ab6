"""The parameters and the tokenizer of the models between text and tokens."""

import json
from pathlib import Path
from typing import Any, TypeAlias

from tokenizers import Tokenizer

# Objects of Triton's stub, which has no types.
PbRequest: TypeAlias = Any
PbResponse: TypeAlias = Any


def parameters_of(args: dict[str, str]) -> dict[str, str]:
    """Read config.pbtxt's parameters from the arguments of `initialize`."""
    given = json.loads(args["model_config"])["parameters"]
    return {name: value["string_value"] for name, value in given.items()}


def load_tokenizer(parameters: dict[str, str]) -> Tokenizer:
    """Load the tokenizer from the directory in the parameters."""
    return Tokenizer.from_file(str(Path(parameters["tokenizer_dir"]) / "tokenizer.json"))
