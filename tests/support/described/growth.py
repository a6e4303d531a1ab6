"""What an OpenAPI document took back of an earlier one: a caller of that one may break on it.

Requests may ask for less and take more, replies may tell more: new paths, new optional fields, new values of
enumerations. Reported are removals, new required fields of requests, fields that replies may leave out now,
and types or limits that became narrower for requests or wider for replies.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

Schema = dict[str, Any]
Direction = Literal["request", "reply"]

# A limit, and whether a larger one takes more.
_LIMITS = {
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), True),
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems"), False),
}
_METHODS = ("get", "put", "post", "delete", "patch", "head", "options")


def taken_back(old: Schema, new: Schema) -> list[str]:
    """Everything that a caller of `old` may miss in `new`, each as a sentence that begins with its place."""
    return list(dict.fromkeys(_Comparison(old, new).paths()))


@dataclass
class _Comparison:
    old: Schema
    new: Schema
    compared: set[tuple[str, str, Direction]] = field(default_factory=set)

    def paths(self) -> Iterator[str]:
        for path, operations in self.old["paths"].items():
            for method in _METHODS:
                if method not in operations:
                    continue
                place = f"{method.upper()} {path}"
                found = self.new["paths"].get(path, {}).get(method)
                if found is None:
                    yield f"{place}: is gone"
                else:
                    yield from self.operations(place, operations[method], found)

    def operations(self, place: str, old: Schema, new: Schema) -> Iterator[str]:
        if old.get("operationId") != new.get("operationId"):
            yield f"{place}: its operationId changed, which names a method of generated clients"
        yield from self.parameters(place, old.get("parameters", []), new.get("parameters", []))
        before, after = old.get("requestBody"), new.get("requestBody")
        if before is None and after is not None and after.get("required"):
            yield f"{place}: needs a body now"
        if before is not None:
            if after is None:
                yield f"{place}: takes no body any more"
            else:
                if after.get("required") and not before.get("required"):
                    yield f"{place}: needs its body now"
                yield from self.contents(f"{place} body", before, after, "request")
        for status, reply in old["responses"].items():
            if status not in new["responses"]:
                yield f"{place}: does not describe status {status} any more"
            else:
                yield from self.contents(f"{place} {status}", reply, new["responses"][status], "reply")

    def parameters(self, place: str, old: list[Schema], new: list[Schema]) -> Iterator[str]:
        before, after = ({(each["in"], each["name"]): each for each in given} for given in (old, new))
        for key, parameter in after.items():
            if parameter.get("required") and not before.get(key, {}).get("required"):
                yield f"{place}: needs {key[0]} parameter {key[1]} now"
        for key, parameter in before.items():
            if key not in after:
                yield f"{place}: {key[0]} parameter {key[1]} is gone"
            else:
                where = f"{place} parameter {key[1]}"
                yield from self.schemas(where, parameter["schema"], after[key]["schema"], "request")

    def contents(self, place: str, old: Schema, new: Schema, direction: Direction) -> Iterator[str]:
        for kind, described in old.get("content", {}).items():
            found = new.get("content", {}).get(kind)
            if found is None:
                yield f"{place}: {kind} is gone"
            elif "schema" in described:
                yield from self.schemas(place, described["schema"], found.get("schema", {}), direction)
        for header in old.get("headers", {}):
            if header not in new.get("headers", {}):
                yield f"{place}: header {header} is gone"

    def schemas(self, place: str, old: Schema, new: Schema, direction: Direction) -> Iterator[str]:
        if "$ref" in old and "$ref" in new:
            key = (old["$ref"], new["$ref"], direction)
            if key in self.compared:
                return
            self.compared.add(key)
        before, after = list(_variants(self.old, old)), list(_variants(self.new, new))
        if len(before) == len(after) == 1:
            yield from self.variants(place, before[0], after[0], direction)
            return
        for variant in before:
            tries = [self._tried(place, variant, each, direction) for each in after]
            if all(tries):
                yield from min(tries, key=len)
        if direction == "reply" and (more := _all_types(after) - _all_types(before)):
            yield f"{place}: may be {', '.join(sorted(more))} now"

    def _tried(self, place: str, old: Schema, new: Schema, direction: Direction) -> list[str]:
        """Compare two variants, and forget it: another pair may be the one that fits."""
        kept = set(self.compared)
        found = list(self.variants(place, old, new, direction))
        self.compared = kept
        return found

    def variants(self, place: str, old: Schema, new: Schema, direction: Direction) -> Iterator[str]:
        yield from _types(place, old, new, direction)
        yield from _values(place, old, new, direction)
        if direction == "request":
            yield from _limits(place, old, new)
        yield from self.properties(place, old, new, direction)
        for part in ("items", "propertyNames"):
            if part in old and part in new:
                yield from self.schemas(f"{place}[]", old[part], new[part], direction)
        before, after = old.get("additionalProperties", True), new.get("additionalProperties", True)
        if direction == "request" and before is not False and after is False and _is_object(new):
            yield f"{place}: takes no other properties any more"
        elif isinstance(before, dict) and isinstance(after, dict):
            yield from self.schemas(f"{place}.*", before, after, direction)

    def properties(self, place: str, old: Schema, new: Schema, direction: Direction) -> Iterator[str]:
        before, after = old.get("properties", {}), new.get("properties", {})
        needed, kept = set(new.get("required", ())), set(old.get("required", ()))
        if direction == "request":
            yield from (f"{place}.{name}: is required now" for name in sorted(needed - kept))
        else:
            yield from (f"{place}.{name}: may be left out now" for name in sorted(kept - needed))
        for name, described in before.items():
            if name not in after:
                yield f"{place}.{name}: is gone"
            else:
                yield from self.schemas(f"{place}.{name}", described, after[name], direction)


def _variants(document: Schema, schema: Schema) -> Iterator[Schema]:
    """The schemas of which a value must have one, without references and nested choices."""
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        for each in choices:
            yield from _variants(document, each)
    elif isinstance(schema.get("type"), list):
        yield from ({**schema, "type": each} for each in schema["type"])
    else:
        yield schema


def _type_of(schema: Schema) -> str | None:
    if "type" in schema:
        found: str = schema["type"]
        return found
    values = _values_of(schema)
    return {str: "string", bool: "boolean", int: "integer"}.get(type(values[0])) if values else None


def _all_types(variants: list[Schema]) -> set[str]:
    found = {_type_of(each) or "anything" for each in variants}
    return found | {"integer"} if "number" in found else found


def _is_object(schema: Schema) -> bool:
    return schema.get("type") == "object" or "properties" in schema


def _types(place: str, old: Schema, new: Schema, direction: Direction) -> Iterator[str]:
    before, after = _type_of(old), _type_of(new)
    narrow, wide = (before, after) if direction == "request" else (after, before)
    if before == after or wide is None or (narrow, wide) == ("integer", "number"):
        return
    yield f"{place}: was {before or 'anything'}, and is {after or 'anything'}"


def _values_of(schema: Schema) -> list[Any] | None:
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _values(place: str, old: Schema, new: Schema, direction: Direction) -> Iterator[str]:
    before, after = _values_of(old), _values_of(new)
    if after is None:
        if before is not None and direction == "reply":
            yield f"{place}: may be any value now"
    elif before is None:
        if direction == "request":
            yield f"{place}: takes only some values now"
    elif gone := [each for each in before if each not in after]:
        yield f"{place}: {gone} is gone"


def _limits(place: str, old: Schema, new: Schema) -> Iterator[str]:
    for name, takes_more in _LIMITS.items():
        before, after = old.get(name), new.get(name)
        if after is not None and (before is None or (after < before if takes_more else after > before)):
            yield f"{place}: {name} was {before}, and is {after}"
    for name in ("pattern", "format"):
        if new.get(name) is not None and new.get(name) != old.get(name):
            yield f"{place}: {name} was {old.get(name)}, and is {new[name]}"
