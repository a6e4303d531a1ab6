"""The fields of an extraction as pages show them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from jobs.extractions.fields import field_names
from jobs.extractions.views import ExtractionWithValues, FieldReply, SourceReply

# Of a field that many parts say; the downloads have all.
_MAX_SOURCES: Final = 5
_MAX_PAGES: Final = 10


@dataclass(frozen=True, slots=True)
class FieldRow:
    """A field with what the document says of it.

    Attributes:
        rule: how the values of parts become one.
        reply: None: it is not settled.
    """

    name: str
    rule: str
    reply: FieldReply | None

    @property
    def is_found(self) -> bool:
        """Whether the document says it."""
        return self.reply is not None and self.reply["found"]

    @property
    def value(self) -> str | None:
        """The value as a text; None: there is none."""
        if self.reply is None or not self.is_found:
            return None
        value = self.reply["value"]
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    @property
    def sources(self) -> Sequence[SourceReply]:
        """Where the document says so, the first few of them."""
        return [] if self.reply is None else self.reply["sources"][:_MAX_SOURCES]

    @property
    def num_more(self) -> int:
        """How many sources there are besides."""
        return 0 if self.reply is None else len(self.reply["sources"]) - len(self.sources)

    @property
    def pages(self) -> list[tuple[int, int]]:
        """The pages that say so, each range once, the first few of them."""
        sources = [] if self.reply is None else self.reply["sources"]
        ranges = ((each["pages"][0], each["pages"][1]) for each in sources if each["pages"])
        return list(dict.fromkeys(ranges))[:_MAX_PAGES]

    @property
    def is_doubtful(self) -> bool:
        """Whether a quote is not in the text."""
        return self.reply is not None and any(
            each["quote_in_text"] is False for each in self.reply["sources"]
        )


@dataclass(frozen=True, slots=True)
class ShownExtraction:
    """An extraction as callers of the API see it, with its fields in their order, by name."""

    shown: ExtractionWithValues
    fields: Mapping[str, FieldRow]

    @property
    def num_found(self) -> int | None:
        """How many fields have a value; None: they are not settled."""
        return sum(each.is_found for each in self.fields.values()) if self.shown["fields"] else None


def shown_extraction(shown: ExtractionWithValues) -> ShownExtraction:
    """Put each field of the schema beside what was found of it."""
    settled = {each["field"]: each for each in shown["fields"]}
    rules, names = shown["joins"], field_names(shown["schema"])
    return ShownExtraction(shown, {each: FieldRow(each, rules[each], settled.get(each)) for each in names})
