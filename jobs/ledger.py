"""The ledger: one SQLite file, and its commit is the only commit.

Only the driver process opens it. Unit ids stand in it in the clear while their request waits; the
receipt's transaction removes them and leaves keyed hashes (``secure_delete`` zeroes what goes).
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..storage.dataset import DataSet
from ..storage.errors import NoSpaceError
from ..storage.metadata import metadata_digest
from ..storage.space import RESERVE, free_bytes, no_space
from .errors import JobError, LockedError, UsageError
from .request_tables import REQUEST_TABLES

LEDGER_VERSION = 4
"""Version of the tables; ``migrating`` brings older ones up to it."""
BUSY_SECONDS = 30.0
"""How long to wait for another process that reads or writes the ledger."""
TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE data_sets (
    name TEXT PRIMARY KEY, generation INTEGER NOT NULL, folder TEXT NOT NULL,
    rows INTEGER NOT NULL, created TEXT NOT NULL, detail TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE models (
    name TEXT PRIMARY KEY, data_set TEXT NOT NULL, generation INTEGER NOT NULL,
    algorithm TEXT NOT NULL, settings TEXT NOT NULL, version INTEGER NOT NULL, rows INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE versions (
    model TEXT NOT NULL, number INTEGER NOT NULL, folder TEXT NOT NULL, digest TEXT NOT NULL,
    job INTEGER NOT NULL, created TEXT NOT NULL, state TEXT NOT NULL, metadata TEXT,
    PRIMARY KEY (model, number)
) WITHOUT ROWID;
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY, kind TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL,
    finished TEXT, asked TEXT NOT NULL, report TEXT NOT NULL
);
CREATE TABLE steps (
    job INTEGER NOT NULL, name TEXT NOT NULL, started TEXT NOT NULL, finished TEXT,
    PRIMARY KEY (job, name)
) WITHOUT ROWID;
CREATE TABLE requests (
    id INTEGER PRIMARY KEY, data_set TEXT NOT NULL, unit INTEGER, unit_hash TEXT NOT NULL,
    state TEXT NOT NULL, received TEXT NOT NULL, job INTEGER, rows INTEGER,
    reference TEXT, requester TEXT, ground TEXT, due TEXT, extended TEXT
);
CREATE TABLE tombstones (
    job INTEGER NOT NULL, data_set TEXT NOT NULL, cell INTEGER NOT NULL, slots BLOB NOT NULL,
    erased TEXT, PRIMARY KEY (job, data_set, cell)
) WITHOUT ROWID;
CREATE TABLE erased_rows (
    data_set TEXT NOT NULL, fingerprint BLOB NOT NULL, PRIMARY KEY (data_set, fingerprint)
) WITHOUT ROWID;
CREATE TABLE receipts (
    id TEXT PRIMARY KEY, request INTEGER NOT NULL, job INTEGER NOT NULL, body TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE receipt_parts (
    job INTEGER NOT NULL, data_set TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (job, data_set)
) WITHOUT ROWID;
CREATE TABLE events (
    id INTEGER PRIMARY KEY, at TEXT NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL,
    hash TEXT NOT NULL
);
CREATE TABLE behind (
    model TEXT PRIMARY KEY, job INTEGER NOT NULL, error TEXT NOT NULL, since TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE cancellations (job INTEGER PRIMARY KEY, asked TEXT NOT NULL);
"""


def now() -> str:
    """Return the time as ISO 8601 in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class Ledger:
    """An open ledger; use ``transaction`` for anything that writes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = _connect(path)

    @classmethod
    def create(cls, path: Path, salt: bytes) -> Ledger:
        """Make a new ledger file."""
        ledger = cls(path)
        with ledger.transaction():
            for statement in (TABLES + REQUEST_TABLES).split(";"):
                ledger.run(statement)
            ledger.set("schema_version", str(LEDGER_VERSION))
            ledger.set("salt", salt.hex())
            ledger.event("workspace", {"schema_version": LEDGER_VERSION})
        return ledger

    @classmethod
    def open(cls, path: Path) -> Ledger:
        """Open a ledger of this version or an older one; JobError for a newer one."""
        ledger = cls(path)
        try:
            version = ledger.setting("schema_version")
        except sqlite3.DatabaseError as error:
            ledger.close()
            raise JobError(f"{path} is not a ledger ({error})") from error
        if version is None or int(version) > LEDGER_VERSION:
            ledger.close()
            cure = "it can't be read" if version is None else "use the newer program that made it"
            raise JobError(
                f"{path} has schema version {version}; this program reads {LEDGER_VERSION}: {cure}"
            )
        return ledger

    def close(self) -> None:
        self._connection.close()

    @property
    def salt(self) -> bytes:
        """The secret key of row placement and of pseudonyms: 16 bytes."""
        return bytes.fromhex(self.setting("salt") or "")

    @property
    def version(self) -> int:
        """The version of the tables."""
        return int(self.setting("schema_version") or 0)

    def setting(self, name: str) -> str | None:
        """Return what the workspace is told once for all, by name; None where it was not told."""
        found: str | None = self.value("SELECT value FROM meta WHERE key = ?", name)
        return found

    def set(self, name: str, value: str) -> None:
        """Keep a setting; call inside a transaction."""
        self.run("INSERT OR REPLACE INTO meta VALUES (?, ?)", name, value)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit everything inside at once, or nothing."""
        with self._room():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _room(self) -> Iterator[None]:
        """Say it plainly when SQLite finds the disk full."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if _for_lack_of_room(error, self._path):
                raise no_space(self._path.parent, "the ledger", RESERVE) from error
            if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
                raise LockedError("another process writes the ledger; try again later") from error
            raise

    def run(self, statement: str, *values: Any) -> int:
        """Execute a statement; return the last inserted row's id."""
        return self._connection.execute(statement, values).lastrowid or 0

    def run_many(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        """Execute a statement once a row."""
        self._connection.executemany(statement, rows)

    def rows(self, query: str, *values: Any) -> list[dict[str, Any]]:
        """Return a query's rows as dictionaries."""
        cursor = self._connection.execute(query, values)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def row(self, query: str, *values: Any) -> dict[str, Any] | None:
        """Return the first row of a query, if any."""
        found = self.rows(query, *values)
        return found[0] if found else None

    def value(self, query: str, *values: Any) -> Any:
        """Return the first value of the first row of a query, or None."""
        row = self._connection.execute(query, values).fetchone()
        return None if row is None else row[0]

    def event(self, kind: str, body: dict[str, Any]) -> None:
        """Append to the hash-chained log; call inside a transaction."""
        before = self.value("SELECT hash FROM events ORDER BY id DESC LIMIT 1") or ""
        at, text = now(), json.dumps(body, sort_keys=True)
        chained = chain_hash(before, at, kind, text)
        self.run(
            "INSERT INTO events (at, kind, body, hash) VALUES (?, ?, ?, ?)", at, kind, text, chained
        )

    def begin_job(self, kind: str, asked: dict[str, Any]) -> int:
        """Record a job as running, with what was asked for; return its id."""
        with self.transaction():
            return self.insert_job(kind, asked)

    def insert_job(self, kind: str, asked: dict[str, Any]) -> int:
        """``begin_job`` inside a transaction."""
        job = self.run(
            "INSERT INTO jobs (kind, state, created, asked, report) "
            "VALUES (?, 'running', ?, ?, '{}')",
            kind,
            now(),
            json.dumps(asked),
        )
        self.event("job", {"job": job, "kind": kind, "state": "running"})
        return job

    def restart_job(self, job: int) -> None:
        """Record that a job which was interrupted, or whose verification failed, runs again."""
        with self.transaction():
            self.run("UPDATE jobs SET state = 'running' WHERE id = ?", job)
            self.run(
                "UPDATE requests SET state = 'committed' WHERE job = ? AND state = 'failed'", job
            )
            self.event("job", {"job": job, "state": "running"})

    def ask_job(self, job: int, asked: dict[str, Any]) -> None:
        """Keep what is asked of a job by now; call inside a transaction."""
        self.run("UPDATE jobs SET asked = ? WHERE id = ?", json.dumps(asked), job)

    def report_job(self, job: int, report: dict[str, Any]) -> None:
        """Keep what a running job has to tell so far; call inside a transaction."""
        self.run("UPDATE jobs SET report = ? WHERE id = ?", json.dumps(report), job)

    @contextmanager
    def step(self, job: int, name: str) -> Iterator[None]:
        """Record a step before it starts and after it ends; steps are safe to repeat."""
        with self.transaction():
            self.run("INSERT OR REPLACE INTO steps VALUES (?, ?, ?, NULL)", job, name, now())
        yield
        with self.transaction():
            self.run("UPDATE steps SET finished = ? WHERE job = ? AND name = ?", now(), job, name)

    @contextmanager
    def failing(self, job: int) -> Iterator[None]:
        """Close the job as failed if the block raises an error (not if the process is killed)."""
        try:
            yield
        except Exception as error:
            self.fail_job(job, error)
            raise

    def fail_job(self, job: int, error: Exception) -> None:
        """Close a job as failed; where even that fails, it counts as interrupted later.

        Only the error's kind is kept: its text may quote a file's cell.
        """
        with suppress(NoSpaceError), self.transaction():
            self.give_back(job, "failed", {"error": type(error).__name__})

    def give_back(self, job: int, state: str, report: dict[str, Any]) -> None:
        """Close a job that has not committed, its requests queued again; call inside a transaction.

        A wish to cancel it ends with it.
        """
        self.run("UPDATE requests SET state = 'queued', job = NULL WHERE job = ?", job)
        self.run("DELETE FROM cancellations WHERE job = ?", job)
        self.end_job(job, state, report)

    def end_job(self, job: int, state: str, report: dict[str, Any]) -> None:
        """Close a job; call inside a transaction."""
        self.run(
            "UPDATE jobs SET state = ?, finished = ?, report = ? WHERE id = ?",
            state,
            now(),
            json.dumps(report),
            job,
        )
        self.event("job", {"job": job, "state": state})

    def open_data_set(self, name: str, root: Path) -> tuple[dict[str, Any], DataSet]:
        """Return a data set's row and the data set, which must hold as many rows as recorded.

        JobError if not: a folder that was restored from a backup holds erased rows again.
        """
        row = self.data_set(name)
        data_set = DataSet.open(root / row["folder"])
        live = int(data_set.statistics().live.sum())
        pending = self.value(
            "SELECT count(*) FROM tombstones WHERE data_set = ? AND erased IS NULL", name
        )
        if live != row["rows"] and not pending:
            raise JobError(
                f"data set {name} holds {live} rows on the disk, the ledger knows {row['rows']}: it "
                "was changed from outside (restored from a backup?); put back the newest state"
            )
        return row, data_set

    def data_set(self, name: str) -> dict[str, Any]:
        """Return a data set's row; UsageError naming those there are."""
        found = self.row("SELECT * FROM data_sets WHERE name = ?", name)
        if found is None:
            raise UsageError(_unknown("data set", name, self._names("data_sets")))
        return found

    def model(self, name: str) -> dict[str, Any]:
        """Return a model's row joined with its current version; UsageError if unknown."""
        found = self.row(
            "SELECT m.*, v.folder, v.digest, v.metadata, v.created FROM models m JOIN versions v "
            "ON v.model = m.name AND v.number = m.version WHERE m.name = ?",
            name,
        )
        if found is None:
            raise UsageError(_unknown("model", name, self._names("models")))
        return found

    def _names(self, table: str) -> list[str]:
        return [r["name"] for r in self.rows(f"SELECT name FROM {table} ORDER BY name")]

    def add_version(self, model: str, number: int, folder: str, digest: str, job: int) -> None:
        """Make a version the model's only live one; call inside a transaction."""
        self.run("UPDATE versions SET state = 'retired' WHERE model = ?", model)
        self.run(
            "INSERT INTO versions VALUES (?, ?, ?, ?, ?, ?, 'live', ?)",
            model,
            number,
            folder,
            digest,
            job,
            now(),
            metadata_digest(self._path.parent / folder),
        )

    def job(self, job: int) -> dict[str, Any]:
        """Return a job's row with its steps; UsageError if unknown."""
        found = self.row("SELECT * FROM jobs WHERE id = ?", job)
        if found is None:
            raise UsageError(f"there is no job {job}; expunge job list shows them")
        found["steps"] = self.rows(
            "SELECT name, started, finished FROM steps WHERE job = ? ORDER BY started", job
        )
        found["asked"] = json.loads(found["asked"])
        found["report"] = json.loads(found["report"])
        return found

    def truncate_log(self) -> None:
        """Fold the write-ahead log into the file and empty it, so that no old page stays.

        Raises LockedError while another process reads the ledger and so keeps old pages alive.
        """
        busy = self.value("PRAGMA wal_checkpoint(TRUNCATE)")
        if busy:
            raise LockedError(
                "another process reads the ledger, so deleted unit ids can't be cleared from its log"
            )


def chain_hash(before: str, at: str, kind: str, body: str) -> str:
    """Return the hash of an event that follows the event with hash ``before``."""
    return hashlib.sha256(f"{before}\n{at}\n{kind}\n{body}".encode()).hexdigest()


def _connect(path: Path) -> sqlite3.Connection:
    # The driver's threads may take turns with the connection; it is never used by two at once.
    connection = sqlite3.connect(
        path, isolation_level=None, timeout=BUSY_SECONDS, check_same_thread=False
    )
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "secure_delete = ON"):
        try:
            connection.execute(f"PRAGMA {pragma}")
        except sqlite3.DatabaseError as error:
            connection.close()
            if _for_lack_of_room(error, path):
                raise no_space(path.parent, "the ledger", RESERVE) from error
            raise JobError(f"{path} can't be opened as a ledger ({error})") from error
    return connection


def _for_lack_of_room(error: sqlite3.DatabaseError, path: Path) -> bool:
    """Whether SQLite failed since the disk is full; opening then reports an I/O error."""
    kind = error.sqlite_errorcode & 0xFF
    if kind == sqlite3.SQLITE_FULL:
        return True
    failed = kind in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
    return failed and free_bytes(path.parent) < RESERVE


def _unknown(what: str, name: str, known: list[str]) -> str:
    there = ", ".join(known) if known else "none yet"
    return f"there is no {what} named {name!r}; known: {there}"
