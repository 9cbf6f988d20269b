"""The most memory that a step takes: VmHWM of the driver and of its workers, reset before it.

Linux forgets a process's high-water mark when 5 is written to its ``clear_refs`` (proc(5)). Where
that is not allowed, a peak is that of the process so far.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from time import sleep

from .experiment_priu_measure import peak_bytes
from .fold import Fold

CLEAR = Path("/proc/self/clear_refs")
VISITS = 8
"""Tasks a worker, so that every one gets some."""
SECONDS = 0.02
"""A task's length: while one sleeps, others go to the other workers."""

Peaks = dict[tuple[str, int], int]
"""VmHWM in bytes by host and process."""


def reset_peak() -> None:
    """Forget this process's high-water mark: it begins again at what is used now."""
    with suppress(OSError):
        CLEAR.write_text("5")


def look_at_worker(reset: bool) -> Peaks:
    """Task: return the peak of the process that runs it; reset: begin it anew."""
    found = peak_bytes()
    if reset:
        reset_peak()
    sleep(SECONDS)
    return {(socket.gethostname(), os.getpid()): found}


def reset_peaks(fold: Fold) -> None:
    """Forget the high-water marks of this process and of all workers."""
    _look(fold, reset=True)
    reset_peak()


def largest_peak(fold: Fold) -> int:
    """Return the largest peak of this process and of all workers, in bytes."""
    own = peak_bytes()
    return max(own, *_look(fold, reset=False).values())


def _look(fold: Fold, reset: bool) -> Peaks:
    return fold(look_at_worker, [reset] * (VISITS * fold.workers), _later)


def _later(one: Peaks, other: Peaks) -> Peaks:
    return {key: max(one.get(key, 0), other.get(key, 0)) for key in {*one, *other}}
