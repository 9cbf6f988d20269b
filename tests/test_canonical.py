"""Canonical JSON: RFC 8785's own samples, and what is refused."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expunge.jobs.canonical import NotCanonicalError, canonical, canonical_object, read_strictly

NUMBERS = {
    "0000000000000000": "0",
    "8000000000000000": "0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308",
    "ffefffffffffffff": "-1.7976931348623157e+308",
    "4340000000000000": "9007199254740992",
    "c340000000000000": "-9007199254740992",
    "4430000000000000": "295147905179352830000",
    "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23",
    "44b52d02c7e14af7": "1.0000000000000001e+23",
    "444b1ae4d6e2ef4e": "999999999999999700000",
    "444b1ae4d6e2ef4f": "999999999999999900000",
    "444b1ae4d6e2ef50": "1e+21",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "41b3de4355555557": "333333333.33333343",
    "becbf647612f3696": "-0.0000033333333333333333",
    "43143ff3c1cb0959": "1424953923781206.2",
}
"""RFC 8785, appendix B: a double's bits, and how it is written."""
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(("bits", "text"), NUMBERS.items())
def test_numbers_of_the_rfc(bits: str, text: str) -> None:
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical(value) == text.encode()


def test_the_sample_object_of_the_rfc() -> None:
    """RFC 8785, sections 3.2.2 and 3.2.3: numbers, escapes, the order of names."""
    sample = (
        '{"numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001], '
        '"string": "\\u20ac$\\u000F\\u000aA\'\\u0042\\u0022\\u005c\\\\\\"\\/", '
        '"literals": [null, true, false]}'
    )
    assert canonical(read_strictly(sample)).decode() == (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )
    names = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]
    spelt = canonical(dict.fromkeys(names, 0)).decode()
    ordered = ["\\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]
    assert spelt == "{" + ",".join(f'"{name}":0' for name in ordered) + "}"


@settings(max_examples=200, deadline=None)
@given(VALUES)
def test_the_spelling_reads_back_and_is_one_only(value: Any) -> None:
    spelt = canonical(value)
    again = read_strictly(spelt.decode())
    assert canonical(again) == spelt
    assert again == value
    if isinstance(value, dict):
        assert canonical(dict(reversed(value.items()))) == spelt
        assert canonical_object({n: canonical(v) for n, v in value.items()}) == spelt


@pytest.mark.skipif(shutil.which("node") is None, reason="no node to compare with")
def test_numbers_are_written_as_ecmascript_writes_them() -> None:
    values = [struct.unpack(">d", bytes.fromhex(bits))[0] for bits in NUMBERS]
    values += [m * 10.0**e for e in range(-30, 30) for m in (1, 1.5, 123456789.125, 9.999)]
    script = f"console.log(JSON.stringify({json.dumps(values)}.map(String)))"
    done = subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [canonical(value).decode() for value in values]


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), 2**53 + 1, -(2**60), "\ud800", {"\udc00": 1}, b"x", {1, 2}],
)
def test_what_has_no_spelling(value: Any) -> None:
    with pytest.raises(NotCanonicalError):
        canonical([value])


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "a": 1}',
        '[{"a": {"b": 1, "b": 2}}]',
        "NaN",
        "[Infinity]",
        "-Infinity",
        "1e400",
        "9007199254740993",
        "9" * 100_000,
        "[" * 100_000,
        "{",
        "",
        "{} {}",
    ],
)
def test_texts_that_programs_read_differently_are_refused(text: str) -> None:
    with pytest.raises(NotCanonicalError):
        read_strictly(text)


def test_errors_quote_nothing() -> None:
    with pytest.raises(NotCanonicalError) as caught:
        read_strictly('{"person": "Jane Doe", "person": "Jane Doe" x')
    assert "Jane" not in str(caught.value) and "line 1" in str(caught.value)
