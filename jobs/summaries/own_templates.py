"""Callers' own templates: what they ask of a text in their words, in place of ours. Pure.

Ours stays what comes before: which lines enclose the document, and that it gives no instructions. So what
all requests about a text have in common is read once, and a document cannot speak as the template does.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Self

from jobs.errors import InvalidRequestError
from jobs.states.summary import NodeKind

MAX_TEMPLATE_CHARS: Final = 4000  # of one part, as of `instructions`
_PLACEHOLDER: Final = re.compile(r"\{\{\s*(\w{1,32})\s*\}\}", re.ASCII)


@dataclass(frozen=True, slots=True)
class PartRules:
    """The placeholders that one part of a template may have.

    Attributes:
        allowed: names of placeholders.
        needed: those without which what the caller asks for would be left out.
    """

    allowed: Collection[str]
    needed: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class OwnTemplate:
    """A caller's own template: a text for each kind of job that it words; ours words the others."""

    parts: Mapping[NodeKind, str]

    @classmethod
    def of(cls, given: Mapping[str, str | None]) -> Self:
        """Build one of the parts of a request, by the names of kinds; parts that are None are left out."""
        return cls({NodeKind(name): text for name, text in given.items() if text is not None})

    def check(self, rules: Mapping[NodeKind, PartRules]) -> None:
        """Check its placeholders.

        Raises:
            InvalidRequestError: one is unknown, missing or there twice; `param` names the part.
        """
        if not self.parts:
            names = ", ".join(kind.value for kind in rules)
            raise InvalidRequestError(f"template: must have one at least of {names}.", param="template")
        for kind, text in self.parts.items():
            if fault := _fault(text, rules[kind]):
                param = f"template.{kind.value}"
                raise InvalidRequestError(f"{param}: {fault}", param=param)

    def versions(self, defaults: Mapping[NodeKind, str]) -> dict[str, Any]:
        """Name the version of each template: a hash of the caller's words and of ours around them."""
        return {
            kind.value: _version(self.parts[kind], version) if kind in self.parts else version
            for kind, version in defaults.items()
        }

    def as_json(self) -> dict[str, str]:
        """Return the parts by name, in the order of kinds."""
        return {kind.value: self.parts[kind] for kind in NodeKind if kind in self.parts}


def fill(text: str, values: Mapping[str, str]) -> str:
    """Put values in place of placeholders, all at once: what a value holds is not looked through."""
    return _PLACEHOLDER.sub(lambda found: values[found[1]], text)


def versions_of(defaults: Mapping[NodeKind, str], own: OwnTemplate | None) -> dict[str, Any]:
    """Name the version of each template of a row, by kind."""
    return (own or OwnTemplate({})).versions(defaults)


def _version(text: str, ours: str) -> str:
    whole = f"{ours}\n{text}"
    return f"custom-{sha256(whole.encode()).hexdigest()[:12]}"


def _fault(text: str, rules: PartRules) -> str | None:
    """Return what is wrong with the placeholders of a part; None: nothing is."""
    if len(text) > MAX_TEMPLATE_CHARS:
        return f"must not exceed {MAX_TEMPLATE_CHARS} characters."
    names = _PLACEHOLDER.findall(text)
    known = ", ".join(f"{{{{{each}}}}}" for each in sorted(rules.allowed))
    if "{{" in _PLACEHOLDER.sub("", text):
        return f"{{{{ begins a placeholder; there are {known}."
    for name in names:
        if name not in rules.allowed:
            return f"there is no placeholder {{{{{name}}}}} here; there are {known}."
        if names.count(name) > 1:
            return f"{{{{{name}}}}} must be there once at most."
    for name in sorted(rules.needed):
        if name not in names:
            return f"must have the placeholder {{{{{name}}}}}: what is asked for would be left out."
    return None
