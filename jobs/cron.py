"""When batches are due: cron expressions, as crontab(5) has them, in a time zone.

APScheduler numbers weekdays from Monday and asks for both of day and weekday where crontab asks for
either, so expressions are read here, and its triggers are given plain lists of numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Protocol
from zoneinfo import ZoneInfo

from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger

from .errors import UsageError

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_LONGEST = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_INSTANT = timedelta(microseconds=1)
_APART = timedelta(seconds=0.5)
"""Less than lies between two due times."""


class Trigger(Protocol):
    """What tells due times: those of APScheduler do."""

    def get_next_fire_time(
        self, previous_fire_time: datetime | None, now: datetime
    ) -> datetime | None:
        """Return the first due time from ``now`` on, if any."""
        ...


@dataclass(frozen=True, slots=True)
class Field:
    """One of an expression's five fields: the numbers that it allows, ascending."""

    text: str
    numbers: tuple[int, ...]
    free: bool
    """Whether it allows everything since it is ``*``."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Due times: a cron expression and the time zone that it is meant in."""

    text: str
    zone_name: str
    zone: tzinfo
    minute: Field
    hour: Field
    day: Field
    month: Field
    weekday: Field
    """Sunday is 0."""

    def days(self) -> list[tuple[Field | None, Field | None]]:
        """Which (days, weekdays) are meant, each pair for itself; None allows all.

        Where both are limited, crontab takes a date on which either holds.
        """
        day = None if self.day.free else self.day
        weekday = None if self.weekday.free else self.weekday
        return (
            [(day, weekday)] if day is None or weekday is None else [(day, None), (None, weekday)]
        )

    def trigger(self) -> Trigger:
        """The due times as APScheduler takes them."""
        found = [
            CronTrigger(
                minute=_listed(self.minute),
                hour=_listed(self.hour),
                day="*" if day is None else _listed(day),
                month=_listed(self.month),
                day_of_week="*" if weekday is None else _from_monday(weekday),
                timezone=self.zone,
            )
            for day, weekday in self.days()
        ]
        trigger: Trigger = found[0] if len(found) == 1 else OrTrigger(found)
        return trigger


def parse_schedule(text: str, zone_name: str) -> Schedule:
    """Return the schedule that an expression means; UsageError saying what is wrong with it."""
    zone = _zone(zone_name)
    parts = text.split()
    if len(parts) != 5:
        raise UsageError(
            f"--cron is {text!r}, {len(parts)} field(s); give five: minute, hour, day of the month, "
            "month, day of the week, like '0 2 * * *' for every night at two"
        )
    minute = _field("minute", parts[0], 0, 59)
    hour = _field("hour", parts[1], 0, 23)
    day = _field("day of the month", parts[2], 1, 31)
    month = _field("month", parts[3], 1, 12, MONTHS)
    weekday = _weekdays(parts[4])
    _refuse_unclear(day, weekday)
    if weekday.free and day.numbers[0] > max(_LONGEST[m - 1] for m in month.numbers):
        raise UsageError(f"--cron is {text!r}: no month that it names has such a day")
    return Schedule(" ".join(parts), zone_name, zone, minute, hour, day, month, weekday)


def latest_due(trigger: Trigger, after: datetime, until: datetime) -> datetime | None:
    """Return the last due time after ``after`` and at most at ``until``, in UTC; None without one.

    Found by halving the span, so that a year of minutes costs a few steps.
    """

    # In UTC: sums of local times lose which of an hour's two turns is meant when clocks go back.
    until = end = until.astimezone(UTC)

    def next_due(moment: datetime) -> datetime | None:
        found = trigger.get_next_fire_time(None, moment + _INSTANT)
        return None if found is None or found > until else found.astimezone(UTC)

    last = next_due(after.astimezone(UTC))
    while last is not None and end - last > _APART:
        middle = last + (end - last) / 2
        later = next_due(middle)
        if later is None:
            end = middle
        else:
            last = later
    return last


def _zone(name: str) -> tzinfo:
    """The time zone of a name; UTC needs no database."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise UsageError(
            f"--timezone is {name!r}; give a name of the IANA database, like UTC or Europe/Berlin"
        ) from error


def _field(name: str, text: str, low: int, high: int, names: tuple[str, ...] = ()) -> Field:
    """Read one field: parts separated by commas, each ``*``, a number, a range, or those by steps."""
    numbers: set[int] = set()
    for part in text.split(","):
        span, slash, step_text = part.partition("/")
        step = _number(name, text, step_text, 1, high - low + 1) if slash else 1
        if span == "*":
            first, last = low, high
        else:
            ends = [_number(name, text, end, low, high, names) for end in span.split("-", 1)]
            if slash and len(ends) == 1:
                raise _bad(name, text, f"a step needs a range, like {span}-{high}/{step_text}")
            first, last = ends[0], ends[-1]
            if first > last:
                raise _bad(name, text, f"{span} runs backwards: write it as two ranges")
        numbers.update(range(first, last + 1, step))
    free = text.startswith("*") and len(numbers) == high - low + 1
    return Field(text, tuple(sorted(numbers)), free)


def _weekdays(text: str) -> Field:
    """Read the last field, in which 7 is Sunday too."""
    found = _field("day of the week", text, 0, 7, WEEKDAYS)
    numbers = tuple(sorted({number % 7 for number in found.numbers}))
    return Field(text, numbers, found.free)


def _number(
    name: str, field: str, text: str, low: int, high: int, names: tuple[str, ...] = ()
) -> int:
    """A number, or the three letters of a month or weekday."""
    if text.lower() in names:
        return names.index(text.lower()) + (low if names is MONTHS else 0)
    digits = text.isascii() and text.isdigit() and len(text) <= 2
    if not digits or not low <= int(text) <= high:
        also = f" or {names[0]} to {names[-1]}" if names else ""
        raise _bad(name, field, f"{text!r} is not a number from {low} to {high}{also}")
    return int(text)


def _bad(name: str, text: str, why: str) -> UsageError:
    return UsageError(
        f"--cron: the {name} is {text!r}: {why}; a field is *, numbers, ranges like 1-5, or steps "
        "like */15, separated by commas"
    )


def _refuse_unclear(day: Field, weekday: Field) -> None:
    """UsageError where cron programs disagree: both fields limited, and one begins with ``*``."""
    if day.free or weekday.free:
        return
    for name, field in (("day of the month", day), ("day of the week", weekday)):
        if field.text.startswith("*"):
            numbers = _listed(field)
            raise UsageError(
                f"--cron: the {name} is {field.text!r} and the other day is limited too; programs "
                f"disagree whether one or both must hold: write {numbers} to mean that one does"
            )


def _listed(field: Field) -> str:
    return ",".join(map(str, field.numbers))


def _from_monday(weekday: Field) -> str:
    """The weekdays as APScheduler counts them: Monday is 0."""
    return ",".join(str(number) for number in sorted((d + 6) % 7 for d in weekday.numbers))
