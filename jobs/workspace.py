"""The workspace: a folder with data sets, models, the ledger and one lock."""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from ..storage import files
from ..storage.fence import Fence, FenceHeldError, make_fence, take_over
from ..storage.ingest import partial_path
from .errors import LockedError, UsageError
from .ledger import LEDGER_VERSION, Ledger, now
from .migrating import migrate

HOLDER_BYTES = 512
"""Size of the lock's file, which says who holds it."""
_VERSION = re.compile(r"v\d{6}-[0-9a-f]{8}\.zarr(\.partial)?(\.swept)?")
_SPILL = re.compile(r"[0-9a-f]{8}(\.lock|\.swept)?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Workspace:
    """An open workspace; a context manager that closes the ledger."""

    def __init__(self, root: Path, ledger: Ledger) -> None:
        self.root = root
        self.ledger = ledger
        self._held: Fence | None = None

    @classmethod
    def create(cls, root: Path, salt: bytes | None = None) -> Self:
        """Make a workspace in a folder that is new or empty.

        salt: 16 bytes for what need not be secret and has to come out the same again; else random.
        """
        root = root.absolute()
        if root.exists() and (not root.is_dir() or any(root.iterdir())):
            raise UsageError(f"{root} exists and is not an empty folder; name another")
        root.mkdir(parents=True, exist_ok=True)
        for name in ("data", "models", "spill"):
            (root / name).mkdir()
        make_fence(root / "fence")
        files.write_new(root / "lock", b" " * HOLDER_BYTES)
        ledger = Ledger.create(root / "ledger.sqlite", _new_salt() if salt is None else salt)
        files.sync_folder(root)
        return cls(root, ledger)

    @staticmethod
    def find(root: Path) -> Path:
        """Return the absolute path of an existing workspace; UsageError if there is none."""
        root = root.absolute()
        if not (root / "ledger.sqlite").is_file():
            raise UsageError(f"{root} is not a workspace: make one with expunge init {root}")
        return root

    @classmethod
    def open(cls, root: Path) -> Self:
        """Open an existing workspace; workers get its absolute path."""
        root = cls.find(root)
        ws = cls(root, Ledger.open(root / "ledger.sqlite"))
        if ws.ledger.version < LEDGER_VERSION:
            try:
                ws._migrate()
            except BaseException:
                ws.ledger.close()
                raise
        return ws

    def _migrate(self) -> None:
        """Bring the ledger of an earlier program up to date, while nobody else works here."""
        with (self.root / "lock").open("r+") as file:
            if not _lock_now(file):
                raise LockedError(_held_by(file.name))
            migrate(self.ledger, self.root)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.ledger.close()

    @contextmanager
    def spill_folder(self) -> Iterator[Path]:
        """Yield a new folder for what does not fit in workers' memory: plain rows may lie there.

        It is swept at the end, or, after a crash, when the workspace's lock is taken next: as long
        as this process lives, it holds a lock beside the folder.
        """
        folder = self.root / "spill" / secrets.token_hex(4)
        lock = folder.with_suffix(".lock")
        with lock.open("a") as file:
            _lock_now(file)
            folder.mkdir()
            try:
                yield folder
            finally:
                files.sweep(folder)
                lock.unlink()

    def data_path(self, name: str) -> Path:
        """The folder of a data set."""
        return self.root / "data" / f"{name}.zarr"

    def new_version_path(self, model: str, number: int) -> Path:
        """A folder name for a model version that was never used before."""
        folder = self.root / "models" / model
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"v{number:06d}-{secrets.token_hex(4)}.zarr"

    def relative(self, path: Path) -> str:
        """A path below the workspace, as the ledger keeps it."""
        return str(path.relative_to(self.root))

    @contextmanager
    def lock(self, purpose: str) -> Iterator[Fence]:
        """Hold the workspace alone; LockedError at once, saying who holds it since when.

        The kernel lets go of a dead holder's lock, so there is nothing to clean up after a crash.
        Garbage of crashed jobs is swept when the lock is taken. Yields the fence under which
        workers may write: theirs of earlier holders end here. Inside a block that holds the lock
        it is held already.
        """
        if self._held is not None:
            yield self._held
            return
        with (self.root / "lock").open("r+") as file:
            if not _lock_now(file):
                raise LockedError(_held_by(file.name))
            # In place and of the same length: a full disk does not keep anybody from the lock.
            _write_holder(file, _holder(purpose))
            try:
                fence = self._take_fence()
                self._mark_interrupted()
                self.sweep_garbage()
                self._held = fence
                yield fence
            finally:
                self._held = None
                _write_holder(file, "")

    def renew_fence(self) -> None:
        """Take the fence anew, with the lock held: what a job that failed left running writes no more."""
        self._held = self._take_fence()

    @classmethod
    @contextmanager
    def scheduling(cls, root: Path, purpose: str) -> Iterator[None]:
        """Be the workspace's only scheduler; LockedError at once, saying who is.

        Others may work meanwhile: a scheduler opens the workspace, and takes ``lock``, for each of
        its batches.
        """
        path = cls.find(root) / "schedule.lock"
        path.touch()
        with path.open("r+") as file:
            if not _lock_now(file):
                raise LockedError(_held_by(file.name, "schedule"))
            _write_holder(file, _holder(purpose))
            try:
                yield
            finally:
                _write_holder(file, "")

    def note_dead_jobs(self) -> None:
        """Show jobs of dead processes as interrupted, if nobody holds the lock."""
        with (self.root / "lock").open("r+") as file:
            if _lock_now(file):
                self._mark_interrupted()

    def _take_fence(self) -> Fence:
        try:
            return take_over(self.root / "fence")
        except FenceHeldError as error:
            raise LockedError(str(error)) from error

    def _mark_interrupted(self) -> None:
        """Whoever gets the lock knows that every job still said to run has lost its driver."""
        if self.ledger.row("SELECT id FROM jobs WHERE state = 'running'") is None:
            return
        with self.ledger.transaction():
            self.ledger.run("UPDATE jobs SET state = 'interrupted' WHERE state = 'running'")

    def sweep_garbage(self) -> list[str]:
        """Remove whatever the ledger does not name: partial imports, crashed and retired versions.

        Only what bears a name that this program gives is touched; strangers' files stay. Call with
        the lock held; returns the folders that were removed.
        """
        ledger = self.ledger
        named = {r["folder"] for r in ledger.rows("SELECT folder FROM data_sets")}
        named |= {
            r["folder"] for r in ledger.rows("SELECT folder FROM versions WHERE state = 'live'")
        }
        named |= self._staged()
        imports = self._import_names()
        found = [p for p in (self.root / "data").iterdir() if p.name in imports]
        found += [p for p in (self.root / "models").glob("*/*") if _VERSION.fullmatch(p.name)]
        garbage = [p for p in found if p.is_dir() and self.relative(p) not in named]
        for path in garbage:
            files.sweep(path.with_name(path.name.removesuffix(".swept")))
        self._sweep_spill()
        return [self.relative(p) for p in garbage]

    def _staged(self) -> set[str]:
        """The folders that trainings which can be resumed go on with."""
        reports = self.ledger.rows(
            "SELECT report FROM jobs WHERE kind = 'train' AND state IN ('running', 'interrupted')"
        )
        found = (json.loads(row["report"]).get("staged") for row in reports)
        return {folder for folder in found if folder is not None}

    def _sweep_spill(self) -> None:
        """Remove spill folders whose process is gone: their lock is free, or is not there any more.

        A worker that outlives its driver for a moment may make its folder anew without a lock.
        """
        spill = self.root / "spill"
        names = {p.name.split(".")[0] for p in spill.iterdir() if _SPILL.fullmatch(p.name)}
        for folder in (spill / name for name in names):
            lock = folder.with_suffix(".lock")
            if not lock.exists():
                files.sweep(folder)
                continue
            with lock.open("a") as file:
                if _lock_now(file):
                    files.sweep(folder)
                    lock.unlink()

    def _import_names(self) -> set[str]:
        """The names that imports have given to folders, finished or staged or half swept."""
        kinds = "('import', 'generate')"
        asked = self.ledger.rows(f"SELECT asked FROM jobs WHERE kind IN {kinds}")
        folders = [self.data_path(json.loads(row["asked"])["name"]) for row in asked]
        staged = [partial_path(folder) for folder in folders]
        return {p.name + end for p in (*folders, *staged) for end in ("", ".swept")}

    def check_name(self, kind: str, name: str) -> None:
        """UsageError unless a new data set or model may be called so."""
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} can't be the name of a {kind}: use letters, digits, '.', '_' and '-'"
            )
        table = "data_sets" if kind == "data set" else "models"
        if self.ledger.row(f"SELECT name FROM {table} WHERE name = ?", name) is not None:
            raise UsageError(f"there is a {kind} named {name!r} already; choose another name")


def _holder(purpose: str) -> str:
    """Who takes a lock, for those who come later."""
    who = {"purpose": purpose, "pid": os.getpid(), "host": socket.gethostname(), "since": now()}
    return json.dumps(who)


def _write_holder(file: IO[str], text: str) -> None:
    os.pwrite(file.fileno(), text.encode()[:HOLDER_BYTES].ljust(HOLDER_BYTES), 0)


def _lock_now(file: IO[str]) -> bool:
    """Take a file's lock unless another process has it; the kernel lets go of a dead one's."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _new_salt() -> bytes:
    return secrets.token_bytes(16)


def _held_by(lock: str, what: str = "workspace") -> str:
    try:
        holder = json.loads(Path(lock).read_text())
        who = f"{holder['purpose']}, process {holder['pid']} on {holder['host']}"
        return f"the {what} is in use by {who}, since {holder['since']}; try again later"
    except (json.JSONDecodeError, KeyError, OSError):
        return f"the {what} is in use by another process; try again later"
