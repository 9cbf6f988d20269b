"""Times of requests and holds.

They are ISO 8601 in UTC to the millisecond, all of one length, so that the order of the texts is the
order of the times.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta

from .errors import UsageError

DUE_DAYS = 30
"""Days from a request's receipt until it is due, unless told otherwise."""
_SPAN = re.compile(r"([0-9]{1,4})([hdw])")
_UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
_LAST = time(23, 59, 59, 999_000)


def stamp(at: datetime | None = None) -> str:
    """Return a time, or the present one, as the ledger keeps it."""
    moment = datetime.now(UTC) if at is None else at
    return moment.astimezone(UTC).isoformat(timespec="milliseconds")


def later(text: str, span: timedelta) -> str:
    """Return the time that is a span after one of the ledger's."""
    return stamp(datetime.fromisoformat(text) + span)


def parse_time(text: str, option: str, end: bool = False) -> str:
    """Return a user's date or time as the ledger keeps it; UsageError where it is neither.

    A time without a zone is in UTC. A date alone is its first millisecond, or with ``end`` its last.
    """
    stripped = text.strip()
    try:
        try:
            day = date.fromisoformat(stripped)
        except ValueError:
            moment = datetime.fromisoformat(stripped)
        else:
            moment = datetime.combine(day, _LAST if end else time())
        return stamp(moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment)
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"{option} is no date and no time: write it like 2026-12-31 or 2026-12-31T17:00+01:00"
        ) from error


def parse_span(text: str, option: str) -> timedelta:
    """Return a user's span of hours, days or weeks, like 12h, 7d or 2w; UsageError where it is none."""
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{option} is no span of time: write it like 12h, 7d or 2w")
    return int(found[1]) * _UNITS[found[2]]
