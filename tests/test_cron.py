"""Cron expressions mean what crontab(5) says, in any time zone, also where clocks are changed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expunge.jobs.cron import latest_due, parse_schedule
from expunge.jobs.errors import UsageError

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


def due(text: str, after: datetime, until: datetime, zone: str = "UTC") -> list[datetime]:
    """All due times after one moment up to another, in UTC."""
    trigger, found = parse_schedule(text, zone).trigger(), []
    moment = after
    while (one := trigger.get_next_fire_time(None, moment + timedelta(microseconds=1))) is not None:
        moment = one.astimezone(UTC)
        if moment > until:
            break
        found.append(moment)
    return found


def days(text: str) -> list[int]:
    """The days of January 2026, which begins on a Thursday, that a nightly expression names."""
    found = due(f"0 2 {text}", NEW_YEAR, NEW_YEAR + timedelta(days=31))
    assert {(t.hour, t.minute) for t in found} <= {(2, 0)}
    return [t.day for t in found]


def test_weekdays_count_from_sunday_and_seven_is_sunday_too() -> None:
    sundays = [4, 11, 18, 25]
    assert days("* * 0") == days("* * 7") == days("* * sun") == days("* * SUN") == sundays
    assert days("* * 5-7") == days("* * fri,sat,sun")
    assert days("* * 1-5") == [d for d in range(1, 32) if (d + 3) % 7 not in (0, 6)]
    assert days("* * */2") == [d for d in range(1, 32) if (d + 3) % 7 in (0, 2, 4, 6)]


def test_day_and_weekday_are_alternatives() -> None:
    assert days("13 * fri") == [2, 9, 13, 16, 23, 30]
    assert days("13 * *") == [13]
    assert days("* 2 *") == []
    assert days("31 jan,feb *") == [31]


@given(
    minutes=st.sets(st.integers(0, 59), min_size=1, max_size=3),
    hours=st.sets(st.integers(0, 23), min_size=1, max_size=3),
    dates=st.none() | st.sets(st.integers(1, 6), min_size=1, max_size=3),
    weekdays=st.none() | st.sets(st.integers(0, 7), min_size=1, max_size=3),
)
@settings(deadline=None, max_examples=25)
def test_due_times_are_those_of_the_definition(
    minutes: set[int], hours: set[int], dates: set[int] | None, weekdays: set[int] | None
) -> None:
    def written(numbers: set[int] | None) -> str:
        return "*" if numbers is None else ",".join(map(str, numbers))

    text = " ".join([written(minutes), written(hours), written(dates), "*", written(weekdays)])
    after, until = NEW_YEAR - timedelta(minutes=1), NEW_YEAR + timedelta(days=4)

    def meant(moment: datetime) -> bool:
        named = dates is not None and moment.day in dates
        falls = weekdays is not None and moment.isoweekday() % 7 in {d % 7 for d in weekdays}
        free = dates is None and weekdays is None
        return moment.minute in minutes and moment.hour in hours and (named or falls or free)

    every = (NEW_YEAR + timedelta(minutes=m) for m in range(4 * 24 * 60 + 1))
    expected = [moment for moment in every if meant(moment)]
    assert due(text, after, until) == expected
    assert latest_due(parse_schedule(text, "UTC").trigger(), after, until) == (
        expected[-1] if expected else None
    )


def test_a_night_on_which_clocks_go_forward_has_its_batch() -> None:
    found = due(
        "30 2 * * *",
        datetime(2026, 3, 28, 12, tzinfo=UTC),
        datetime(2026, 3, 30, 12, tzinfo=UTC),
        "Europe/Berlin",
    )
    assert found == [
        datetime(2026, 3, 29, 1, 30, tzinfo=UTC),
        datetime(2026, 3, 30, 0, 30, tzinfo=UTC),
    ]


def test_the_last_due_time_is_found_where_clocks_go_back() -> None:
    trigger = parse_schedule("0 * * * *", "Europe/Berlin").trigger()
    start = datetime(2026, 10, 24, 22, 30, tzinfo=UTC)
    for hours in range(1, 6):
        until = start + timedelta(hours=hours)
        assert latest_due(trigger, start, until) == until.replace(minute=0)


def test_the_last_due_time_of_years_takes_few_steps() -> None:
    class Counted:
        calls = 0

        def get_next_fire_time(self, previous: datetime | None, now: datetime) -> datetime | None:
            self.calls += 1
            return trigger.get_next_fire_time(previous, now)

    trigger = parse_schedule("* * * * *", "UTC").trigger()
    counted = Counted()
    until = datetime(2036, 5, 4, 3, 2, 1, tzinfo=UTC)
    assert latest_due(counted, NEW_YEAR, until) == until.replace(second=0)
    assert counted.calls < 50


def test_a_due_time_counts_once() -> None:
    trigger = parse_schedule("0 2 * * *", "UTC").trigger()
    two = NEW_YEAR.replace(hour=2)
    assert latest_due(trigger, NEW_YEAR, two) == two
    assert latest_due(trigger, two, two + timedelta(hours=1)) is None
    assert latest_due(trigger, two, NEW_YEAR) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 2 * *", "4 field(s); give five"),
        ("", "0 field(s); give five"),
        ("@daily", "1 field(s); give five"),
        ("60 2 * * *", "the minute is '60': '60' is not a number from 0 to 59"),
        ("0 24 * * *", "the hour is '24'"),
        ("0 2 0 * *", "the day of the month is '0'"),
        ("0 2 * 13 *", "'13' is not a number from 1 to 12 or jan to dec"),
        ("0 2 * * 8", "'8' is not a number from 0 to 7 or sun to sat"),
        ("0 2 * * sunday", "'sunday' is not a number"),
        ("*/0 2 * * *", "'0' is not a number from 1 to 60"),
        ("000000099 2 * * *", "'000000099' is not a number"),
        ("1,,2 2 * * *", "'' is not a number"),
        ("5/10 2 * * *", "a step needs a range, like 5-59/10"),
        ("30-10 2 * * *", "30-10 runs backwards"),
        ("0 2 31 2 *", "no month that it names has such a day"),
        ("0 2 30-31 feb *", "no month that it names has such a day"),
        ("0 2 */2 * 1", "disagree whether one or both must hold: write 1,3,5"),
        ("0 2 1 * */3", "disagree whether one or both must hold: write 0,3,6"),
        ("½ 2 * * *", "'½' is not a number"),
    ],
)
def test_bad_expressions_are_named_with_a_cure(text: str, message: str) -> None:
    with pytest.raises(UsageError) as found:
        parse_schedule(text, "UTC")
    assert message in str(found.value)


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../etc/passwd", "Europe", "utc+1", "\0"])
def test_bad_time_zones_are_named_with_a_cure(zone: str) -> None:
    with pytest.raises(UsageError, match="give a name of the IANA database"):
        parse_schedule("0 2 * * *", zone)


def test_leap_days_are_possible() -> None:
    assert due("0 2 29 2 *", NEW_YEAR, datetime(2029, 1, 1, tzinfo=UTC)) == [
        datetime(2028, 2, 29, 2, tzinfo=UTC)
    ]
