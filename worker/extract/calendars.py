"""Calendar entries (iCalendar) as text: what, when, where, and who.

A library would build objects of every value and refuse damaged ones; here each line is shown or left out.
"""

import re
from typing import Final

_FOLD: Final = re.compile(r"\r?\n[ \t]")
_LINE: Final = re.compile(r"([A-Za-z0-9-]+)((?:;(?:[^\":;]|\"[^\"]*\")*)*):(.*)", re.DOTALL)
_NAME_PARAMETER: Final = re.compile(r";CN=(\"[^\"]*\"|[^;:]*)", re.IGNORECASE)
_ANSWER: Final = re.compile(r";PARTSTAT=\"?(ACCEPTED|DECLINED|TENTATIVE|DELEGATED)\b", re.IGNORECASE)
_ZONE: Final = re.compile(r";TZID=(\"[^\"]*\"|[^;:]*)", re.IGNORECASE)
_TIME: Final = re.compile(r"(\d{4})(\d\d)(\d\d)(?:T(\d\d)(\d\d)(\d\d)?(Z?))?")
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_KINDS: Final = {
    "VEVENT": "Event",
    "VTODO": "Task",
    "VJOURNAL": "Journal entry",
    "VFREEBUSY": "Free and busy",
}
_METHODS: Final = {
    "REQUEST": "Invitation",
    "REPLY": "Reply to an invitation",
    "CANCEL": "Cancellation",
    "COUNTER": "Proposal of another time",
}
_SHOWN: Final = {
    "SUMMARY": "Summary",
    "DTSTART": "Start",
    "DTEND": "End",
    "DUE": "Due",
    "DURATION": "Duration",
    "RRULE": "Repeats",
    "EXDATE": "Except",
    "RDATE": "Also",
    "LOCATION": "Place",
    "STATUS": "Status",
    "ORGANIZER": "Organizer",
    "ATTENDEE": "Attendees",
    "CATEGORIES": "Categories",
    "COMMENT": "Comment",
    "URL": "Link",
    "FREEBUSY": "Times",
    "DESCRIPTION": "Description",
}
_TIMES: Final = frozenset({"DTSTART", "DTEND", "DUE", "EXDATE", "RDATE", "FREEBUSY"})
_PEOPLE: Final = frozenset({"ORGANIZER", "ATTENDEE"})


def calendar_text(source: str) -> str:
    """Return the entries of a calendar as lines of text; empty if it has none."""
    blocks: list[str] = []
    entry: dict[str, list[str]] | None = None
    kind = method = ""
    above: list[str] = []  # components within an entry, such as alarms, which are left out
    for line in _FOLD.sub("", source.strip()).replace("\r\n", "\n").split("\n"):
        found = _LINE.match(line)
        if not found:
            continue
        name, parameters, value = found[1].upper(), found[2], found[3].strip()
        if name == "METHOD" and entry is None:
            method = _METHODS.get(value.upper(), "")
        elif name == "BEGIN" and value.upper() in _KINDS and entry is None:
            entry, kind = {}, _KINDS[value.upper()]
        elif name == "BEGIN" and entry is not None:
            above.append(value)
        elif name == "END" and entry is not None and above:
            above.pop()
        elif name == "END" and entry is not None:
            blocks.append(_entry_text(entry, method or kind))
            entry = None
        elif entry is not None and not above and name in _SHOWN:
            entry.setdefault(name, []).append(_shown(name, parameters, value))
    if entry:  # cut off
        blocks.append(_entry_text(entry, method or kind))
    return "\n\n".join(blocks)


def _entry_text(entry: dict[str, list[str]], head: str) -> str:
    lines = [f"{head}:"]
    for name, label in _SHOWN.items():
        values = [value for value in entry.get(name, ()) if value]
        if values:
            lines.append(f"{label}: " + ", ".join(values))
    return "\n".join(lines)


def _shown(name: str, parameters: str, value: str) -> str:
    if name in _PEOPLE:
        address = re.sub(r"^mailto:", "", value, flags=re.IGNORECASE)
        common = _NAME_PARAMETER.search(parameters)
        person = common[1].strip('" ') if common else ""
        shown = f"{person} <{address}>" if person and person != address else address
        answer = _ANSWER.search(parameters)
        return f"{shown} ({answer[1].lower()})" if answer else shown
    if name in _TIMES:
        zone = _ZONE.search(parameters)
        return _TIME.sub(_time_text, value) + (f" ({zone[1].strip(chr(34))})" if zone else "")
    return _ESCAPED.sub(lambda found: "\n" if found[1] in "nN" else found[1], value).strip()


def _time_text(found: "re.Match[str]") -> str:
    year, month, day, hour, minute, _, is_utc = found.groups()
    clock = f" {hour}:{minute}" if hour else ""
    return f"{year}-{month}-{day}{clock}" + (" UTC" if is_utc else "")
