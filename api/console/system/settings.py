"""Settings as the page of the system lists them: by group, with their variables, without secrets."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import SecretStr

from jobs.settings import ENV_PREFIX, Group, Settings

# The account in an address: `https://user:password@host`.
_ACCOUNT: Final = re.compile(r"(?<=://)[^/@\s]*@")
SET: Final = "set, not shown"
NOT_SET: Final = "not set"


@dataclass(frozen=True, slots=True)
class SettingRow:
    """A setting of this process.

    Attributes:
        variable: that sets it.
        value: in words; of a secret, whether there is one.
        is_default: nobody set it to another value.
        meaning: empty if its name says it.
    """

    variable: str
    value: str
    is_default: bool
    meaning: str


def list_settings(settings: Settings) -> Sequence[tuple[str, Sequence[SettingRow]]]:
    """List every setting by its group."""
    return [(name, _rows(name, getattr(settings, name))) for name in type(settings).model_fields]


def _rows(group: str, values: Group) -> Sequence[SettingRow]:
    rows = []
    for name, field in type(values).model_fields.items():
        value = getattr(values, name)
        variable = f"{ENV_PREFIX}{group}__{name}".upper()
        is_default = not field.is_required() and value == field.get_default(call_default_factory=True)
        rows.append(SettingRow(variable, _in_words(value), is_default, field.description or ""))
    return rows


def _in_words(value: object) -> str:
    match value:
        case SecretStr():
            words = SET if value.get_secret_value() else NOT_SET
        case None | "":
            words = NOT_SET
        case bool():
            words = str(value).lower()
        case tuple():
            words = ", ".join(_in_words(each) for each in value) or "none"
        case float():
            words = f"{value:g}"
        case int():
            words = f"{value:,}"
        case _:
            words = _ACCOUNT.sub("", str(value))
    return words
