"""The states of requests, and the terms under which one is asked.

queued -> running -> committed -> done is the way of a batch (``deletion``); ``partly done`` is a
request whose models are not all updated yet, ``failed`` one whose rows are erased, but whose job's
verification found something wrong: resuming or retrying the job takes it on. A hold keeps a queued
request back (``held``); who asked may cancel it while it is queued or held, and ask anew then.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from .errors import UsageError
from .request_times import DUE_DAYS, later, parse_time, stamp

QUEUED, HELD, RUNNING, COMMITTED = "queued", "held", "running", "committed"
PARTLY_DONE, DONE, FAILED, CANCELLED = "partly done", "done", "failed", "cancelled"
WAITING = (QUEUED, HELD)
"""States in which no job has a request."""
OPEN = (*WAITING, RUNNING, COMMITTED, PARTLY_DONE, FAILED)
"""States in which a request is still to be fulfilled, and may be overdue."""
STATES = (*OPEN, DONE, CANCELLED)
DELETED = (COMMITTED, PARTLY_DONE, FAILED, DONE)
"""States in which a request's rows are gone, or going for certain."""
MAX_TEXT = 500
"""Longest reference, ground or reason, in characters."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What is said of a request besides its unit; none of it may name the person."""

    reference: str | None = None
    """The number by which another system knows the request, such as a ticket's."""
    requester: str | None = None
    """Who asked, such as a department or a role."""
    ground: str | None = None
    """Why, such as a paragraph of a law."""
    received: str | None = None
    """Date or time at which the request came; now if None."""
    due: str | None = None
    """Date or time by which it must be done; ``DUE_DAYS`` days after ``received`` if None."""


def resolved(terms: Terms, at: datetime | None = None) -> tuple[Terms, str, str]:
    """Return the terms with checked texts, the time received and the time due; UsageError if wrong.

    at: the present time; the clock's if None.
    """
    present = stamp(at)
    received = present
    if terms.received is not None:
        received = parse_time(terms.received, "--received")
    if received > present:
        raise UsageError(
            f"--received is {received}, which is yet to come; name a time that is past"
        )
    due = later(received, timedelta(days=DUE_DAYS))
    if terms.due is not None:
        due = parse_time(terms.due, "--due", end=True)
    if due < received:
        raise UsageError(f"--due is {due}, before the request was received ({received})")
    checked = {
        name: None if text is None else checked_text(text, f"--{name}")
        for name in ("reference", "requester", "ground")
        for text in (getattr(terms, name),)
    }
    return replace(terms, **checked), received, due


def checked_text(text: str, option: str) -> str:
    """Return a user's text without the spaces around it; UsageError unless it is a printable line."""
    stripped = text.strip()
    if not stripped or len(stripped) > MAX_TEXT or not stripped.isprintable():
        raise UsageError(f"{option} must be one line of 1 to {MAX_TEXT} printable characters")
    return stripped


def marks(values: tuple[object, ...]) -> str:
    """Return as many question marks for a query as there are values."""
    return ",".join("?" * len(values))
