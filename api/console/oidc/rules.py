"""Which rule admits the one whom an ID token describes."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from jobs.settings import OidcRule
from jobs.tenants.persons import Person

_EMAIL: Final = "email"
_MAX_NAME: Final = 200


def admitting(claims: Mapping[str, Any], rules: Iterable[OidcRule]) -> OidcRule | None:
    """Return the first rule that admits them; None: no one does."""
    return next((rule for rule in rules if _fits(claims, rule)), None)


def person_of(claims: Mapping[str, Any], rule: OidcRule, rules: Iterable[OidcRule]) -> Person:
    """Describe the one whom this rule admits, with the claims that the rules look at."""
    kept = {each.claim: _find(claims, each.claim) for each in rules}
    if _EMAIL in kept:
        kept["email_verified"] = claims.get("email_verified")
    return Person(claims["iss"], claims["sub"], _name(claims), frozenset(rule.scopes), kept)


def still_admitting(person: Person, rules: Sequence[OidcRule]) -> OidcRule | None:
    """Return the rule that admits a person who is signed in, by the rules as they are now.

    Returns:
        None: no rule does, or one looks at a claim that was not kept when they signed in.
    """
    if any(each.claim not in person.claims for each in rules):
        return None
    return admitting(person.claims, rules)


def _fits(claims: Mapping[str, Any], rule: OidcRule) -> bool:
    found = _find(claims, rule.claim)
    if rule.claim == _EMAIL:
        return _has_email(claims) and _is_address(str(found), rule.value)
    values = found if isinstance(found, list) else [found]
    return any(isinstance(each, str) and each == rule.value for each in values)


def _find(claims: Mapping[str, Any], name: str) -> object:
    """Find a claim by its name, which may itself have dots, or by its path."""
    if name in claims:
        return claims[name]
    found: object = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _has_email(claims: Mapping[str, Any]) -> bool:
    """Return True if the provider vouches for the address."""
    return isinstance(claims.get(_EMAIL), str) and claims.get("email_verified") is True


def _is_address(address: str, wanted: str) -> bool:
    """Compare an address with one, or with a domain; neither depends on capital letters."""
    address, wanted = address.lower(), wanted.lower()
    if not wanted.startswith("@"):
        return address == wanted
    user, _, domain = address.rpartition("@")
    return bool(user) and f"@{domain}" == wanted


def _name(claims: Mapping[str, Any]) -> str:
    """Name them for people to read: nothing but the verified address could be taken for it."""
    if _has_email(claims):
        candidates = [claims[_EMAIL]]
    else:
        candidates = [claims.get(each) for each in ("preferred_username", "name", "sub")]
    named = next((each for each in candidates if isinstance(each, str) and each.strip()), "")
    readable = "".join(each for each in named if each.isprintable())[:_MAX_NAME]
    return readable if _has_email(claims) else readable.replace("@", "(at)")
