"""What an engine is: workers that share an engine's row must agree on all of it."""

from dataclasses import dataclass, fields

from jobs.errors import LongbatchError


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """What an engine serves, and where.

    Attributes:
        model: the name by which callers ask for it, whose queue it takes from.
        served_model: the model's name at its server, or the model behind its aliases.
        tokenizer: fingerprint of the tokenizer by which its prompts are counted.
        address: of its server; a loopback address is preceded by the host's id.
    """

    model: str
    served_model: str
    tokenizer: str
    address: str

    def differences(self, other: "EngineIdentity") -> list[str]:
        """Describe, for each field that differs, what the other has and what this one has."""
        found = []
        for each in fields(self):
            mine, theirs = getattr(self, each.name), getattr(other, each.name)
            if mine != theirs:
                shown = (value[:12] if each.name == "tokenizer" else value for value in (theirs, mine))
                found.append("{} {}, not {}".format(each.name.replace("_", " "), *shown))
        return found


class EngineNameTakenError(LongbatchError):
    """Another worker feeds another engine under this name.

    Wait until it has gone, or give this engine a name of its own.
    """

    code = "engine_name_taken"

    def __init__(self, name: str, mine: EngineIdentity, theirs: EngineIdentity) -> None:
        """Args: name: of the engine. theirs: what the row of this name says."""
        differences = "; ".join(mine.differences(theirs))
        super().__init__(
            f"the engine name {name!r} is in use for another engine ({differences}): set"
            " LONGBATCH_ENGINE__NAME of one of the two workers to another name, or stop the other"
        )
