"""A message about documents, taken apart: the texts of the documents, and the task after them."""

import re
from dataclasses import dataclass

# Every text for people begins with it. JSON must parse, so there the answer to a question begins with it;
# values and quotes are the document's own words, and stay them.
MARK = "[stand-in: extract, no model]"

# Longbatch's prompts write each text between two lines, and the task after the last of them.
_FRAMED = re.compile(
    r"^<document(?P<number>(?:-\d+)?)>\n(?P<texts>.*)\n</document(?P=number)>$", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class Asked:
    """What a message says.

    Attributes:
        texts: of the documents, or of summaries of their parts; the whole message if it frames no text.
        task: the words after them; empty if it frames none.
    """

    texts: str
    task: str

    @classmethod
    def of(cls, message: str) -> "Asked":
        """Take a message apart; the texts lose the marks of earlier outputs."""
        framed = _FRAMED.search(message)
        if framed is None:
            return cls(message, "")
        number = framed["number"]
        texts = framed["texts"].replace(f"\n</document{number}>\n\n<document{number}>\n", "\n\n")
        return cls(re.sub(rf"{re.escape(MARK)} ?", "", texts), message[framed.end() :])
