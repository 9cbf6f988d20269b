"""The fence: a worker that outlives its driver cannot write late.

One file holds the token of the driver that has the workspace. Whoever writes on a driver's behalf
brings that driver's token, and holds a shared lock on the file while it writes. An order with
another token is refused, and a new driver waits for writers of the old one to end before it puts
its own token there. Tokens are random and never come again.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import files
from .errors import StorageError

WAIT_SECONDS = 20.0
"""How long a new driver waits for writers of an older one."""
_POLL_SECONDS = 0.05


class StaleOrderError(StorageError):
    """The order to write was given by a driver that has been replaced."""


class FenceHeldError(StorageError):
    """A writer of an older driver does not end."""


@dataclass(frozen=True, slots=True)
class Fence:
    """A driver's right to write: pass it to whoever writes for the driver."""

    path: Path
    token: str

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write inside the block; StaleOrderError if a newer driver has taken over."""
        with self.path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            if file.read() != self.token:
                raise StaleOrderError(
                    f"{self.path}: the order to write was given by a job that another has replaced"
                )
            yield


def take_over(path: Path, wait: float | None = None) -> Fence:
    """Replace all earlier drivers, durably, and return the new one's fence.

    wait: seconds to wait for writers of an earlier driver, WAIT_SECONDS if None; then
    FenceHeldError names them.
    """
    deadline = time.monotonic() + (WAIT_SECONDS if wait is None else wait)
    token = secrets.token_hex(16)
    with path.open("r+") as file:
        while not _try_exclusive(file.fileno()):
            if time.monotonic() > deadline:
                raise FenceHeldError(
                    f"a worker of an earlier job is still writing ({_holders(file.fileno())}); "
                    "end that process, then try again"
                )
            time.sleep(_POLL_SECONDS)
        # In place and of the same length: a full disk can't keep a new driver from taking over.
        os.pwrite(file.fileno(), token.encode(), 0)
        os.fsync(file.fileno())
    return Fence(path, token)


def make_fence(path: Path) -> None:
    """Make the fence's file, with a token that is nobody's."""
    files.write_new(path, secrets.token_hex(16).encode())


def _try_exclusive(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holders(descriptor: int) -> str:
    """The processes of this host that hold a lock on the file, as far as the kernel tells."""
    inode = str(os.fstat(descriptor).st_ino)
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return "process unknown"
    fields = [line.split() for line in lines]
    pids = sorted({f[4] for f in fields if len(f) > 5 and f[5].split(":")[-1] == inode})
    return f"process {', '.join(pids)}" if pids else "process unknown"
