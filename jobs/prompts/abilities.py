"""What a request may ask of an engine besides a prompt: the names, and what engines of a model take."""

from collections.abc import Iterable, Mapping
from typing import Final

from jobs.errors import UnsupportedParameterError
from jobs.prompts.guides import GuideKind

# What workers of the release before pass on too, or refuse by name when the job starts.
ALWAYS: Final = frozenset({"temperature", "top_p", "top_k", "min_tokens"})
GUIDED: Final = frozenset(kind.value for kind in GuideKind)
ABILITIES: Final = ALWAYS | GUIDED

# What all engines of a model take. A model that is not in it may be asked for anything: none of its engines
# was seen lately, and the one that gets the job refuses by name what it lacks.
Takes = Mapping[str, frozenset[str]]
UNKNOWN: Final[Takes] = {}


def is_lacking(name: str, model: str, takes: Takes) -> bool:
    """Return True if not every engine of the model takes this."""
    return model in takes and name not in takes[model]


def refusal(param: str, needs: Iterable[str], model: str, takes: Takes) -> UnsupportedParameterError:
    """Word why requests for this model cannot have a field."""
    listed = ", ".join(sorted(takes[model])) or "none of these parameters"
    missing = " and ".join(sorted(needs))
    message = f"{param}: not every engine of the model {model!r} takes {missing}; its engines take {listed}."
    return UnsupportedParameterError(message, param=param)
