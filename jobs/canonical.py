"""JSON in one spelling only: what is signed must not depend on who writes it.

The spelling is RFC 8785, the JSON Canonicalization Scheme: no spaces, members in the order of their
names' UTF-16 code units, numbers as ECMAScript prints doubles, text as UTF-8.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

EXACT = 1 << 53
"""Whole numbers beyond this are not all doubles, so other programs would read them differently."""


class NotCanonicalError(ValueError):
    """A value that JSON has no one spelling for, or a text that is no such JSON."""


def canonical(value: Any) -> bytes:
    """Return the canonical spelling of a JSON value; NotCanonicalError where it has none."""
    if isinstance(value, Mapping):
        return canonical_object({name: canonical(member) for name, member in value.items()})
    if isinstance(value, list | tuple):
        return b"[" + b",".join(map(canonical, value)) + b"]"
    if value is None or isinstance(value, bool):
        return json.dumps(value).encode()
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int | float):
        return _number(value).encode()
    raise NotCanonicalError(f"JSON has no {type(value).__name__}")


def canonical_object(members: Mapping[str, bytes]) -> bytes:
    """Return the canonical spelling of an object from those of its members."""
    spelt = {_text(name): (name.encode("utf-16-be"), member) for name, member in members.items()}
    ordered = sorted(spelt.items(), key=lambda item: item[1][0])
    return b"{" + b",".join(name + b":" + member for name, (_, member) in ordered) + b"}"


def _text(value: str) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise NotCanonicalError("a text with half a surrogate pair") from None


def _number(value: float) -> str:
    """A number as ECMAScript's Number.prototype.toString gives it (RFC 8785, section 3.2.2.3)."""
    if not math.isfinite(value):
        raise NotCanonicalError("a number that is not finite")
    if isinstance(value, int) and abs(value) > EXACT:
        raise NotCanonicalError("a whole number beyond 2^53")
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    _, parts, exponent = Decimal(repr(float(abs(value)))).normalize().as_tuple()
    digits = "".join(map(str, parts))
    point = len(digits) + int(exponent)
    if len(digits) <= point <= 21:
        return sign + digits.ljust(point, "0")
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    rest = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{rest}e{point - 1:+d}"


def read_strictly(text: str) -> Any:
    """Return the value of a JSON text; NotCanonicalError for what programs read differently.

    That is a member named twice, NaN and infinities, whole numbers beyond 2^53 that are no double,
    and nesting beyond what can be read at all. Messages quote nothing of the text.
    """
    try:
        return json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_refused,
            parse_float=_float,
            parse_int=_int,
        )
    except json.JSONDecodeError as error:
        raise NotCanonicalError(
            f"no JSON from line {error.lineno}, column {error.colno} on"
        ) from None
    except RecursionError:
        raise NotCanonicalError("nested too deeply") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise NotCanonicalError("a member that is named twice")
    return found


def _refused(_: str) -> float:
    raise NotCanonicalError("a number that is not finite")


def _float(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refused(text)


def _int(text: str) -> float:
    if len(text) <= 17 and abs(int(text)) <= EXACT:
        return int(text)
    # A double that has no fraction may be written so; other digits would be lost.
    value = float(text)
    if not math.isfinite(value) or _number(value) != text:
        raise NotCanonicalError("a whole number beyond 2^53")
    return value
