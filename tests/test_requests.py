"""The life of requests: asked once, listed as they are due, cancelled, extended, held."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import INLINE, Cli

from expunge.jobs.cli import run
from expunge.jobs.errors import UsageError
from expunge.jobs.ledger import now
from expunge.jobs.request_life import Chosen, list_requests
from expunge.jobs.request_states import Terms
from expunge.jobs.request_times import parse_span, parse_time
from expunge.jobs.requests import forget
from expunge.jobs.unit_lookup import find_units, refuse_names
from expunge.jobs.workspace import Workspace
from expunge.storage.cells import subject_units
from expunge.storage.dataset import DataSet

Write = Callable[..., Path]
BATCH = ("batch", "run", "--yes", *INLINE)
DATA = ("--data", "t")
PEOPLE = ("Quartermain, Allan", "Quartermain-4711", "quartermain_x")


@pytest.fixture
def ws(cli: Cli, csv_file: Write, tmp_path: Path) -> Path:
    """A workspace with 200 rows in data set t, and no model."""
    rng = np.random.default_rng(4)
    cli("init", tmp_path / "ws")
    cli("data", "import", "t", csv_file(rng.normal(size=(200, 3))), "--format", "csv")
    return tmp_path / "ws"


def ids(found: dict[str, Any], part: str = "requests") -> list[int]:
    return [request["request"] for request in found[part]]


def listed(cli: Cli, *given: object) -> list[int]:
    return ids(cli("request", "list", *given))


# ---- asking


def test_the_same_unit_twice_is_one_request(cli: Cli, ws: Path) -> None:
    first = cli("forget", *DATA, "--unit", "5,6")
    assert first["queued"] == 2 and first["existing"] == []
    again = cli("forget", *DATA, "--unit", "6,7,6")
    assert (again["queued"], again["already_requested"], again["repeated"]) == (1, 1, 1)
    assert again["existing"] == [{"request": 2, "unit": 6, "state": "queued"}]
    assert again["requests"] == [{"request": 3, "unit": 7, "state": "queued"}]
    cli(*BATCH)
    erased = cli("forget", *DATA, "--unit", 5)
    assert erased["already_erased"] == 1 and erased["queued"] == 0
    assert erased["existing"] == [{"request": 1, "unit": 5, "state": "done"}]


def test_two_who_ask_at_once_make_one_request(ws: Path) -> None:
    def ask(number: int) -> dict[str, Any]:
        with Workspace.open(ws) as own:
            return forget(own, "t", np.arange(number, 150), terms=Terms(reference=f"T-{number}"))

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(ask, range(4)))
    assert sum(f["queued"] for f in found) == 150
    given = {(r["unit"], r["request"]) for f in found for r in (*f["requests"], *f["existing"])}
    assert len(given) == 150 and {request for _, request in given} == set(range(1, 151))


def test_a_reference_stands_for_the_same_units(cli: Cli, ws: Path) -> None:
    asked = ("forget", *DATA, "--reference", " T-1 ")
    first = cli(*asked, "--unit", "5,6")
    assert first["reference"] == "T-1"
    again = cli(*asked, "--unit", "6,5")
    assert again["queued"] == 0 and ids(again, "existing") == ids(first)
    assert first["due"] and again["due"] is None
    for others in ("5", "5,6,7", "7,8"):
        error = cli(*asked, "--unit", others, code=2)
        assert "for other units of data set t" in error and "nothing was queued" in error
    assert listed(cli) == [1, 2]
    # A refused or unknown unit leaves no trace of its reference.
    cli("forget", *DATA, "--reference", "T-2", "--unit", 900, code=2)
    assert cli("forget", *DATA, "--reference", "T-2", "--unit", "6,7")["queued"] == 1
    # Request 2 was asked first under T-1, and is found by both.
    assert listed(cli, "--reference", "T-2") == [2, 3]
    assert listed(cli, "--reference", "T-1") == [1, 2]
    assert cli("request", "show", 2)["other_references"] == ["T-2"]
    cli("request", "cancel", 1)
    anew = cli(*asked, "--unit", "5,6")
    assert ids(anew) == [4] and ids(anew, "existing") == [2]


def test_a_request_that_was_cancelled_is_asked_anew(cli: Cli, ws: Path) -> None:
    cli("forget", *DATA, "--unit", "5,6")
    cli("request", "cancel", 1, "--reason", "withdrawn by mail")
    cli("request", "cancel", 2)
    again = cli("forget", *DATA, "--unit", "5,6")
    assert ids(again) == [3, 4] and again["existing"] == []
    cli("request", "cancel", 3)
    assert ids(cli("forget", *DATA, "--unit", "5")) == [5]
    assert cli(*BATCH)["rows"] == 2
    assert cli("request", "list")["counts"] == {"done": 2, "cancelled": 3}
    assert cli("request", "show", 5)["receipt"] == "R00000005"
    assert cli("request", "show", 1)["rows"] is None


def test_terms_are_kept_and_checked(cli: Cli, ws: Path) -> None:
    given = ("--requester", "works council", "--ground", "GDPR Art. 17(1)(b)")
    made = cli("forget", *DATA, "--unit", 1, *given, "--received", "2026-01-31T01:30+02:00")
    assert made["received"] == "2026-01-30T23:30:00.000+00:00"
    assert made["due"] == "2026-03-01T23:30:00.000+00:00"
    found = cli("request", "show", 1)
    assert found["requester"] == given[1] and found["ground"] == given[3] and found["overdue"]
    assert found["due"] == made["due"] and found["history"] == []
    made = cli("forget", *DATA, "--unit", 2, "--received", "2026-01-31", "--due", "2026-02-10")
    assert made["received"] == "2026-01-31T00:00:00.000+00:00"
    assert made["due"] == "2026-02-10T23:59:59.999+00:00"
    for option, value, problem in (
        ("--received", "2999-01-01", "yet to come"),
        ("--received", "Quartermain", "no date and no time"),
        ("--received", "0001-01-01T00:00+10:00", "no date and no time"),
        ("--due", "2001-01-01", "before the request was received"),
        ("--reference", "  ", "printable"),
        ("--requester", "two\nlines", "printable"),
        ("--ground", "x" * 501, "printable"),
    ):
        error = cli("forget", *DATA, "--unit", 3, option, value, code=2)
        assert problem in error and "Quartermain" not in error
    assert listed(cli) == [2, 1]
    cli(*BATCH)
    assert cli("receipt", "show", "R00000001")["received"] == "2026-01-30T23:30:00.000+00:00"


def test_times_and_spans() -> None:
    assert parse_time("20260131", "--due") == "2026-01-31T00:00:00.000+00:00"
    assert parse_time("2026-01-31 10:00", "--due", end=True) == "2026-01-31T10:00:00.000+00:00"
    assert parse_span(" 12h", "--x") == timedelta(hours=12)
    assert parse_span("2w", "--x") == timedelta(days=14)
    for wrong in ("7", "d", "-7d", "7m", "99999d", "7 d"):
        with pytest.raises(UsageError, match="12h, 7d or 2w"):
            parse_span(wrong, "--x")


# ---- listing


def test_lists_choose_and_count(cli: Cli, ws: Path) -> None:
    present = datetime.now(UTC)
    day = timedelta(days=1)
    for unit, age in ((1, 40), (2, 29), (3, 10), (4, 0)):
        cli("forget", *DATA, "--unit", unit, "--received", (present - age * day).isoformat())
    cli("request", "cancel", 3)
    assert listed(cli) == [1, 2, 4, 3]
    assert listed(cli, "--overdue") == [1]
    assert listed(cli, "--due-within", "2d") == [1, 2]
    assert listed(cli, "--due-within", "5w") == [1, 2, 4]
    assert listed(cli, "--state", "cancelled") == [3]
    assert listed(cli, "--state", "queued", "--limit", 2) == [1, 2]
    found = cli("request", "list", "--limit", 1)
    assert found["matching"] == 4 and found["counts"] == {"queued": 3, "cancelled": 1}
    assert [r["overdue"] for r in found["requests"]] == [True]
    assert cli("request", "list", *DATA, "--overdue")["counts"] == {"queued": 1}
    assert "one of queued, held" in cli("request", "list", "--state", "open", code=2)
    assert "no data set named" in cli("request", "list", "--data", "u", code=2)
    with Workspace.open(ws) as open_ws:
        later = list_requests(open_ws, Chosen(overdue=True), 10, present + 20 * day)
        assert ids(later) == [1, 2]


def test_tables_show_what_operators_wrote_as_it_stands(
    cli: Cli, ws: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Square brackets and colons are no markup; what is cut off is said."""
    odd = "[/red] :smile: [bold]"
    cli("forget", *DATA, "--unit", "1,2,3", "--reference", odd)
    cli("request", "extend", 1, "--until", "2999-01-01", "--reason", odd)
    for command in (("request", "list", "--limit", "2"), ("request", "show", "1")):
        assert run(["-w", str(ws), *command]) == 0
        out = capsys.readouterr().out
        assert odd in out
    assert run(["-w", str(ws), "request", "list", "--limit", "2"]) == 0
    assert "and 1 more" in capsys.readouterr().out
    units = ",".join(map(str, range(1, 9)))
    assert run(["-w", str(ws), "forget", *DATA, "--unit", units]) == 0
    out = capsys.readouterr().out
    assert "requests 4 to 8" in out and "there already: request 1, queued" in out
    assert run(["-w", str(ws), "forget", *DATA, "--unit", units]) == 0
    assert "and 3 more" in capsys.readouterr().out
    with Workspace.open(ws) as open_ws, open_ws.ledger.transaction():
        open_ws.ledger.run("UPDATE requests SET id = 12345, unit = 67890 WHERE id = 1")
    for again in (("request", "list"), ("request", "show", "12345")):
        assert run(["-w", str(ws), *again]) == 0
        out = capsys.readouterr().out
        assert "12345" in out and "67890" in out


# ---- cancelling and extending


def test_only_what_waits_is_cancelled(cli: Cli, ws: Path) -> None:
    cli("forget", *DATA, "--unit", "1,2")
    done = cli("request", "cancel", 1, "--reason", "asked by mistake")
    assert done["state"] == "cancelled" and done["unit"] is None and done["unit_hash"]
    assert [h["reason"] for h in done["history"]] == ["asked by mistake"]
    assert cli("request", "cancel", 1)["history"] == done["history"]
    assert cli(*BATCH)["units"] == 1
    assert "request 2 is done in job 2" in cli("request", "cancel", 2, code=2)
    assert "no request 9" in cli("request", "cancel", 9, code=2)
    assert "no request 9" in cli("request", "show", 9, code=2)
    assert cli("data", "list")["data_sets"][0]["rows"] == 199


def test_a_cancelled_unit_is_cleared_from_the_ledger(cli: Cli, ws: Path) -> None:
    with Workspace.open(ws) as reader:
        cli("forget", *DATA, "--unit", "77")
        cli("hold", "place", *DATA, "--unit", "78", "--ground", "a law suit")
        cli("request", "cancel", 1)
        cli("hold", "lift", 1)
        assert reader.ledger.value("SELECT count(unit) FROM requests") == 0
        assert reader.ledger.value("SELECT count(unit) FROM held_units") == 0
        # The log is empty, so no older page with the ids is left in it.
        assert (ws / "ledger.sqlite-wal").stat().st_size == 0


def test_a_reader_of_the_ledger_keeps_a_cancelled_unit_in_its_log(
    cli: Cli, ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("forget", *DATA, "--unit", "77")
    with closing(sqlite3.connect(ws / "ledger.sqlite", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM requests").fetchall()
        monkeypatch.setattr("expunge.jobs.ledger.BUSY_SECONDS", 0.2)
        error = cli("request", "cancel", 1, code=75)
        assert "request 1 is cancelled, but" in error and "again later" in error
    assert cli("request", "cancel", 1)["state"] == "cancelled"


def test_the_due_time_is_put_off_with_a_reason(cli: Cli, ws: Path) -> None:
    made = cli("forget", *DATA, "--unit", "1,2")
    cli("request", "extend", 1, "--until", "2998-01-01", "--reason", "many requests")
    found = cli("request", "extend", 1, "--until", "2999-01-01T12:00", "--reason", "still many")
    assert found["due"] == "2999-01-01T12:00:00.000+00:00" and found["extended"] == "still many"
    assert [h["reason"] for h in found["history"]] == ["many requests", "still many"]
    assert [h["before"] for h in found["history"]] == [
        made["due"],
        "2998-01-01T23:59:59.999+00:00",
    ]
    error = cli("request", "extend", 1, "--until", "2998-06-01", "--reason", "x", code=2)
    assert "due at 2999-01-01" in error
    assert "printable" in cli(
        "request", "extend", 1, "--until", "3000-01-01", "--reason", " ", code=2
    )
    cli("request", "extend", 1, "--until", "3000-01-01", code=2)
    cli("request", "cancel", 2)
    error = cli("request", "extend", 2, "--until", "2999-01-01", "--reason", "x", code=2)
    assert "nothing to extend" in error


# ---- privacy


def test_a_mistyped_reference_is_free_once_its_requests_are_cancelled(cli: Cli, ws: Path) -> None:
    asked = ("forget", *DATA, "--reference", "T-1")
    cli("forget", *DATA, "--unit", "6")
    made = cli(*asked, "--unit", "5,6")
    # Of the request that was there first, under another name, the reference is a further one.
    cli("request", "cancel", ids(made)[0])
    assert "cancel all its requests" in cli(*asked, "--unit", "50,60", code=2)
    cli("request", "cancel", ids(made, "existing")[0])
    assert cli(*asked, "--unit", "50,60")["queued"] == 2
    assert "cancel all its requests" in cli(*asked, "--unit", "5,6", code=2)


@pytest.mark.parametrize(
    "text", ["of {}.", "{}!", "(see {}?)", "file/{}", "{}'s wish", "- {} -", "<{}>"]
)
def test_a_subject_is_refused_with_punctuation_around_it(text: str) -> None:
    units = subject_units(["P-0044"], bytes(16))
    with pytest.raises(UsageError, match="names a subject"):
        refuse_names([text.format("P-0044")], units, bytes(16))
    refuse_names([text.format("P-0045"), "P-004 4"], units, bytes(16))


def test_no_subject_is_written_anywhere(
    cli: Cli, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Subjects stand in no file of the workspace, no output and no error, whatever is asked of them."""
    rows = "".join(f'{i},"{PEOPLE[i % 3] if i < 9 else i}"\n' for i in range(60))
    (tmp_path / "people.csv").write_text("v,who\n" + rows)
    (tmp_path / "gone.txt").write_text("\n".join((*PEOPLE, "Quartermain unknown")))
    cli("init", tmp_path / "ws")
    cli("data", "import", "t", tmp_path / "people.csv", "--format", "csv", "--subject", "who")
    said: list[Any] = []
    many = (*DATA, "--subjects-file", tmp_path / "gone.txt")
    one = (*DATA, "--subject", PEOPLE[1])
    said.append(cli("forget", *many, code=2))
    said.append(cli("forget", *many, "--missing", "ignore", "--reference", "T-1"))
    said.append(cli("hold", "place", *many, "--ground", "a law suit", code=2))
    said.append(cli("hold", "place", *one, "--ground", "a law suit"))
    said.append(cli("forget", *one, code=4))
    # A person as reference or reason is refused, also as a word of it.
    for option in ("--reference", "--requester", "--ground"):
        for text in (PEOPLE[1], f" {PEOPLE[1]}", f"of ({PEOPLE[1]})"):
            error = cli("forget", *one, option, text, code=2)
            assert "names a subject" in error
            said.append(error)
    error = cli("forget", *DATA, "--subject", PEOPLE[0], "--requester", PEOPLE[0], code=2)
    assert "names a subject" in error
    said.append(error)
    said.append(cli("hold", "place", *one, "--ground", PEOPLE[1], code=2))
    number = said[4]["existing"][0]["request"] if isinstance(said[4], dict) else 2
    said.append(cli("request", "cancel", number, "--reason", PEOPLE[1], code=2))
    late = ("--until", "2999-01-01", "--reason", PEOPLE[1])
    said.append(cli("request", "extend", number, *late, code=2))
    said += [cli("request", "list"), cli("hold", "list"), cli("hold", "show", 1)]
    check_files(tmp_path)
    said += [cli("hold", "lift", 1), cli("request", "cancel", number), cli(*BATCH)]
    said += [cli("receipt", "list"), cli("request", "show", 1)]
    check_files(tmp_path)
    assert "uartermain" not in repr(said)


def check_files(root: Path) -> None:
    files = [path for path in (root / "ws").rglob("*") if path.is_file()]
    assert len(files) > 10
    for path in files:
        assert b"uartermain" not in path.read_bytes(), path


# ---- many


def test_units_are_found_as_one_by_one(ws: Path) -> None:
    with Workspace.open(ws) as open_ws:
        _, data_set = open_ws.ledger.open_data_set("t", open_ws.root)
        stored = np.concatenate([data_set.read_units(c) for c in range(data_set.cells)])
        rng = np.random.default_rng(2)
        for size in (0, 1, 2, 40, 300):
            units = np.unique(rng.integers(0, 300, size))
            found = find_units(data_set, units, open_ws.ledger.salt)
            np.testing.assert_array_equal(found.live, units[np.isin(units, stored)])
            np.testing.assert_array_equal(found.missing, units[~np.isin(units, stored)])


@pytest.mark.slow
def test_a_hundred_thousand_requests_in_bounded_space(
    cli: Cli, ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each cell is read once, statements are counted, and the ledger with its log stays small."""
    many = 100_000
    cli("data", "generate", "g", "--like", "gaussian", "--rows", 110_000, "--features", 2)
    read: list[int] = []
    reading = DataSet.read_units

    def counted(data_set: DataSet, cell: int) -> np.ndarray:
        read.append(cell)
        return reading(data_set, cell)

    monkeypatch.setattr(DataSet, "read_units", counted)
    with Workspace.open(ws) as open_ws:
        asked: list[str] = []
        open_ws.ledger._connection.set_trace_callback(asked.append)
        found = forget(open_ws, "g", np.arange(many), terms=Terms(reference="T-1"))
        files = list(ws.glob("ledger.sqlite*"))
        assert len(files) == 3 and sum(file.stat().st_size for file in files) < 200e6
        open_ws.ledger._connection.set_trace_callback(None)
        assert found["queued"] == many and len(read) == len(set(read))
        selects = [text for text in asked if text.lstrip().startswith("SELECT")]
        assert len(selects) < 2 * many / 500
        plan = open_ws.ledger.rows(
            "EXPLAIN QUERY PLAN SELECT * FROM requests WHERE state IN ('queued', 'held') AND due < ?",
            now(),
        )
        assert "requests_by_state" in plan[0]["detail"]
        again = forget(open_ws, "g", np.arange(many), terms=Terms(reference="T-1"))
        assert again["already_requested"] == many and again["existing"] == found["requests"]
        some = list_requests(open_ws, Chosen(state="queued"), 7)
        assert ids(some) == list(range(1, 8)) and some["counts"] == {"queued": many}
