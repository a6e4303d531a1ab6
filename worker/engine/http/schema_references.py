"""References within a schema, by names that llama.cpp's compiler does not know, as pointers that it does.

Source: JSON Schema 2020-12, sections 8.2 and 9; RFC 6901 of pointers. `$dynamicRef` is followed to the anchor
of that name in the outermost schema, which is right where it is extended there, or to its own.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote, urldefrag, urljoin

_IDENTIFIERS: Final = frozenset({"$id", "$anchor", "$dynamicAnchor", "$dynamicRef", "$ref"})
# JSON that is no schema, whatever its names.
_VALUES: Final = frozenset({"const", "enum", "default", "examples"})
_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,8}")
_KNOWN: Final = re.compile(r"#/(\$defs|definitions)/\w+")


def with_pointers(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema with references into its own `$defs` alone; those that lead nowhere are left out."""
    if not any(_names(schema)):
        return dict(schema)
    return _Resources(schema).rewritten()


class _Resources:
    """The parts of one schema by their URIs and anchors."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._home = ""
        self._by_uri: dict[str, Any] = {"": root}
        self._anchors: dict[tuple[str, str], Any] = {}
        self._dynamic: set[tuple[str, str]] = set()
        self._bases: dict[int, str] = {}
        self._hoisted: dict[int, tuple[str, Any]] = {}
        self._scan(root, "")

    def rewritten(self) -> dict[str, Any]:
        """Rewrite all references, and put what they lead to into the schema's `$defs`."""
        found: dict[str, Any] = self._rewritten(self._root, self._home)
        added: dict[str, Any] = {}
        while len(added) < len(self._hoisted):
            for name, target in [*self._hoisted.values()][len(added) :]:
                added[name] = self._rewritten(target, self._bases.get(id(target), self._home))
        if added:
            found["$defs"] = {**found.get("$defs", {}), **added}
        return found

    def _scan(self, value: Any, base: str) -> None:  # noqa: ANN401  # JSON
        """Note the URI, anchors and base of each part."""
        if isinstance(value, dict):
            if isinstance(given := value.get("$id"), str):
                base, _ = _resolved(base, given)
                self._by_uri.setdefault(base, value)
                if value is self._root:
                    self._home = base
            self._bases[id(value)] = base
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(name := value.get(keyword), str):
                    self._anchors.setdefault((base, name), value)
                    self._dynamic |= {(base, name)} if keyword == "$dynamicAnchor" else set()
            for name, each in value.items():
                if name not in _VALUES:
                    self._scan(each, base)
        elif isinstance(value, list):
            for each in value:
                self._scan(each, base)

    def _rewritten(self, value: Any, base: str) -> Any:  # noqa: ANN401  # JSON
        if isinstance(value, list):
            return [self._rewritten(each, base) for each in value]
        if not isinstance(value, dict):
            return value
        base = self._bases.get(id(value), base)
        found = {
            name: each if name in _VALUES else self._rewritten(each, base)
            for name, each in value.items()
            if not (name in _IDENTIFIERS and isinstance(each, str))
        }
        for keyword in ("$ref", "$dynamicRef"):
            reference = value.get(keyword)
            if isinstance(reference, str) and (pointer := self._pointer(reference, base, keyword)):
                found.setdefault("$ref", pointer)
        return found

    def _pointer(self, reference: str, base: str, keyword: str) -> str | None:
        """Return where the referenced part is in the schema that is made; None: it has none."""
        target = self._target(reference, base, is_dynamic=keyword == "$dynamicRef")
        if not isinstance(target, dict):
            return None
        if base == self._home and _KNOWN.fullmatch(reference):
            return reference
        if target is self._root:
            return "#"
        name, _ = self._hoisted.setdefault(id(target), (self._free_name(), target))
        return f"#/$defs/{name}"

    def _free_name(self) -> str:
        taken = self._root.get("$defs")
        name = f"_{len(self._hoisted)}"
        while isinstance(taken, dict) and name in taken:
            name = f"_{name}"
        return name

    def _target(self, reference: str, base: str, *, is_dynamic: bool) -> Any:  # noqa: ANN401  # JSON
        uri, fragment = _resolved(base, reference)
        if fragment and not fragment.startswith("/"):
            outermost = (self._home, fragment)
            if is_dynamic and {(uri, fragment), outermost} <= self._dynamic:
                return self._anchors[outermost]
            return self._anchors.get((uri, fragment))
        found = self._by_uri.get(uri)
        for step in fragment.split("/")[1:]:
            found = _step(found, unquote(step).replace("~1", "/").replace("~0", "~"))
        return found


def _step(value: Any, step: str) -> Any:  # noqa: ANN401  # JSON
    if isinstance(value, dict):
        return value.get(step)
    if isinstance(value, list) and _INDEX.fullmatch(step) and int(step) < len(value):
        return value[int(step)]
    return None


def _resolved(base: str, reference: str) -> tuple[str, str]:
    """Return the URI and the fragment of a reference; one that is no URI leads nowhere."""
    try:
        uri, fragment = urldefrag(urljoin(base, reference))
    except ValueError:
        return f"invalid:{reference}", ""
    return uri, fragment


def _names(value: Any) -> Iterator[str]:  # noqa: ANN401  # JSON
    """Yield the identifiers and references in a schema."""
    if isinstance(value, dict):
        for name, each in value.items():
            if name in _IDENTIFIERS and isinstance(each, str):
                yield name
            elif name not in _VALUES:
                yield from _names(each)
    elif isinstance(value, list):
        for each in value:
            yield from _names(each)
