"""The schema of receipts: ``receipt_schema.json``, a JSON Schema (draft 2020-12), and its checker.

``receipt_schema_2.json`` is that of receipts which earlier programs issued. The checker knows the keywords that the schema uses; a schema with others is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files
from typing import Any

_NOTES = ("$schema", "$id", "$defs", "title", "description")
"""Keywords that say nothing of what is allowed."""


_FILES = {2: "receipt_schema_2.json", 3: "receipt_schema.json"}
RECEIPT_SCHEMA = max(_FILES)
"""The version of receipts that are issued now."""
SIGNED_SCHEMAS = tuple(_FILES)
"""The versions of receipts that have a place for a signature."""


@cache
def receipt_schema(version: int = RECEIPT_SCHEMA) -> dict[str, Any]:
    """Return a version's schema, one of SIGNED_SCHEMAS, as it is shipped."""
    text = files(__package__).joinpath(_FILES[version]).read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def check_receipt(document: Any, version: int = RECEIPT_SCHEMA) -> str | None:
    """Return where a document is not as a version's schema says and why; None where it is.

    Nothing of the document is quoted but names of members that the schema has.
    """
    schema = receipt_schema(version)
    return next(_unlike(document, schema, schema, "$"), None)


def _unlike(value: Any, schema: dict[str, Any], root: dict[str, Any], at: str) -> Iterator[str]:
    """Yield what is wrong with a value, from outside to inside."""
    if "$ref" in schema:
        yield from _unlike(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root, at)
    for keyword, wanted in schema.items():
        if keyword in _CHECKS and not _CHECKS[keyword](value, wanted):
            yield f"{at} does not fit {keyword} {json.dumps(wanted)}"
    if isinstance(value, dict):
        known = schema.get("properties", {})
        for name in schema.get("required", ()):
            if name not in value:
                yield f"{at}.{name} is missing"
        if schema.get("additionalProperties") is False and set(value) - set(known):
            yield f"{at} has members that the schema does not know"
        for name, inner in known.items():
            if name in value:
                yield from _unlike(value[name], inner, root, f"{at}.{name}")
    if isinstance(value, list) and "items" in schema:
        for number, item in enumerate(value):
            yield from _unlike(item, schema["items"], root, f"{at}[{number}]")


def _is_type(value: Any, wanted: str | list[str]) -> bool:
    names = [wanted] if isinstance(wanted, str) else wanted
    return any(_TYPES[name](value) for name in names)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _has_pattern(value: Any, wanted: str) -> bool:
    """Whether a text has a pattern; "$" means its very end, as in ECMAScript."""
    ending = re.sub(r"\$\Z", r"\\Z", wanted)
    return not isinstance(value, str) or bool(re.search(ending, value, re.ASCII))


_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": _is_number,
    "integer": lambda value: _is_number(value) and value == int(value),
}
_CHECKS: dict[str, Callable[[Any, Any], bool]] = {
    "type": _is_type,
    "const": lambda value, wanted: not isinstance(value, bool) and value == wanted,
    "enum": lambda value, wanted: value in wanted,
    "pattern": _has_pattern,
    "minimum": lambda value, wanted: not _is_number(value) or value >= wanted,
}
KEYWORDS = frozenset(
    {*_NOTES, *_CHECKS, "$ref", "properties", "required", "additionalProperties", "items"}
)
"""What the checker understands."""
