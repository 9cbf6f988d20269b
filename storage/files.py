"""The one place where data and model files are opened: reads, writes and syncs, all counted.

Counting happens where files are opened, so that a deletion's counters say what it touched and not
what it meant to touch.
"""

from __future__ import annotations

import errno
import itertools
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .errors import CorruptError, MissingError
from .space import no_space

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full disk and of a used-up quota."""
NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP)
"""Error numbers of a file system that can't link a file (again)."""
PARTIAL = ".partial"
"""What the names of files end with that are not whole yet."""


@dataclass(slots=True)
class Meter:
    """What was read and written while the meter ran."""

    files: int = 0
    """Files opened."""
    bytes_read: int = 0
    bytes_written: int = 0
    cells: set[tuple[str, int]] = field(default_factory=set)
    """(data set folder's name, cell) of every cell of which anything was read."""

    def add(self, other: Meter) -> None:
        """Count another meter's readings too."""
        self.files += other.files
        self.bytes_read += other.bytes_read
        self.bytes_written += other.bytes_written
        self.cells |= other.cells


_running: ContextVar[tuple[Meter, ...]] = ContextVar("expunge_meters", default=())


@contextmanager
def metered() -> Iterator[Meter]:
    """Count what this thread reads and writes inside the block; meters may be nested."""
    meter = Meter()
    token = _running.set((*_running.get(), meter))
    try:
        yield meter
    finally:
        _running.reset(token)


def absorb(readings: Meter) -> None:
    """Add what was counted elsewhere, e.g. in a worker, to every running meter."""
    for meter in _running.get():
        meter.add(readings)


def count(*, files: int = 0, read: int = 0, written: int = 0) -> None:
    """Add to every running meter."""
    for meter in _running.get():
        meter.files += files
        meter.bytes_read += read
        meter.bytes_written += written


def count_cell(data_set: str, cell: int) -> None:
    """Note that something of a cell is read."""
    for meter in _running.get():
        meter.cells.add((data_set, cell))


def read_into(path: Path, out: NDArray[np.generic]) -> None:
    """Fill a contiguous array with the whole of a file, whose size must be the array's.

    Raises MissingError without the file and CorruptError for another size.
    """
    view = out.data.cast("B")
    with _opened(path, os.O_RDONLY) as descriptor:
        size = os.fstat(descriptor).st_size
        if size != len(view):
            raise CorruptError(f"{path}: {size} bytes found, {len(view)} expected")
        _read_all(descriptor, view, 0, path)
    count(files=1, read=len(view))


def read_whole(path: Path) -> bytes:
    """Return all bytes of a file; MissingError without it."""
    with _opened(path, os.O_RDONLY) as descriptor:
        out = bytearray(os.fstat(descriptor).st_size)
        _read_all(descriptor, memoryview(out), 0, path)
    count(files=1, read=len(out))
    return bytes(out)


def check_size(path: Path, expected: int) -> None:
    """Raise MissingError without the file and CorruptError unless it has so many bytes."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise MissingError(f"{path} is missing") from None
    if size != expected:
        raise CorruptError(f"{path}: {size} bytes found, {expected} expected")


def read_at(path: Path, offsets: NDArray[np.int64], out: NDArray[np.generic]) -> None:
    """Fill row i of a contiguous array with the file's bytes at offsets[i]; neighbours in one read."""
    if not len(offsets):
        return
    view = out.data.cast("B")
    width = len(view) // len(offsets)
    with _opened(path, os.O_RDONLY) as descriptor:
        at = offsets.tolist()
        for start, stop in runs(offsets, width):
            _read_all(descriptor, view[start * width : stop * width], at[start], path)
    count(files=1, read=len(view))


def write_at(path: Path, offsets: NDArray[np.int64], rows: NDArray[np.generic]) -> None:
    """Overwrite the file's bytes at offsets[i] with row i, in place, and sync the file."""
    if not len(offsets):
        return
    data = np.ascontiguousarray(rows)
    view = data.data.cast("B")
    width = len(view) // len(offsets)
    with _opened(path, os.O_RDWR) as descriptor:
        size = os.fstat(descriptor).st_size
        if int(offsets.max()) + width > size:
            raise CorruptError(f"{path}: {size} bytes found, {int(offsets.max()) + width} needed")
        for start, stop in runs(offsets, width):
            _write_all(descriptor, view[start * width : stop * width], int(offsets[start]))
        os.fsync(descriptor)
    count(files=1, written=len(view))


def write_new(path: Path, data: NDArray[np.generic] | bytes) -> None:
    """Write a file that is not there yet, and sync it (not its folder)."""
    whole = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else np.ascontiguousarray(data)
    view = whole.data.cast("B")
    try:
        with _opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as descriptor:
            _write_all(descriptor, view, 0)
            os.fsync(descriptor)
    except OSError as error:
        if error.errno in FULL:
            raise no_space(path.parent, path.name, len(view)) from error
        raise
    count(files=1, written=len(view))


def write_whole(path: Path, data: NDArray[np.generic] | bytes) -> None:
    """Write and sync a file under another name, then give it its own: one that is there is whole.

    Replaces an earlier file without touching its bytes, which another version may link. Twice at
    once is harmless; a crash leaves at most a file for ``sweep_partials``.
    """
    partial = _partial(path)
    try:
        write_new(partial, data)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def link_whole(source: Path, target: Path) -> None:
    """Give a file a second name, in place of what bears it; copy it where it can't be linked."""
    partial = _partial(target)
    try:
        os.link(source, partial)
        os.replace(partial, target)
    except FileNotFoundError:
        raise MissingError(f"{source} is missing, or the folder {target.parent}") from None
    except OSError as error:
        if error.errno in FULL:
            raise no_space(target.parent, target.name, 0) from error
        if error.errno not in NO_LINK:
            raise
        write_whole(target, read_whole(source))
    finally:
        # Where both names are the same file already, a rename does nothing.
        partial.unlink(missing_ok=True)


def _partial(path: Path) -> Path:
    return path.with_name(f"{path.name}.{secrets.token_hex(8)}{PARTIAL}")


def sweep_partials(path: Path) -> None:
    """Remove for good what crashed writers left in a group's folder and in its arrays' folders.

    A writer that is alive after all may rename its file at any moment: what has lost its name to
    that is a whole file and not zeroed, and what is unlinked first can't be renamed any more.
    """
    for pattern in (f"*{PARTIAL}", f"*/*{PARTIAL}"):
        for partial in path.glob(pattern):
            with suppress(FileNotFoundError), _opened(partial, os.O_RDWR) as descriptor:
                os.unlink(partial)
                _zero_opened(descriptor, names=0)


def runs(offsets: NDArray[np.int64], width: int) -> list[tuple[int, int]]:
    """Return the index ranges (start, stop) in which each offset follows the last by ``width``."""
    if len(offsets) == 1:
        return [(0, 1)]
    cuts = np.flatnonzero(offsets[1:] - offsets[:-1] != width) + 1
    edges = [0, *cuts.tolist(), len(offsets)]
    return list(itertools.pairwise(edges))


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(path: Path) -> None:
    """Make every file and every name below a folder durable."""
    for folder, _, names in os.walk(path, topdown=False):
        for name in names:
            with _opened(Path(folder) / name, os.O_RDONLY) as descriptor:
                os.fsync(descriptor)
        sync_folder(Path(folder))


def sweep(path: Path) -> None:
    """Remove a folder for good: rename it away, zero what no other name links, unlink, sync.

    A file that another version still links is only unlinked: its link count decides. Safe to
    repeat, and does nothing where the folder is gone or is a symbolic link: what a link leads to is
    not ours.
    """
    if path.is_symlink():
        return
    grave = path.with_name(f"{path.name}.swept")
    if path.exists() and path != grave:
        if grave.exists():
            _remove(grave)
        path.rename(grave)
        sync_folder(path.parent)
    if grave.exists():
        _remove(grave)
        sync_folder(path.parent)


def _remove(tree: Path) -> None:
    for folder, folders, names in os.walk(tree, topdown=False):
        for name in names:
            _zero(Path(folder) / name)
            os.unlink(Path(folder) / name)
        for name in folders:
            inner = Path(folder) / name
            (os.unlink if inner.is_symlink() else os.rmdir)(inner)
        sync_folder(Path(folder))
    os.rmdir(tree)


def _zero(path: Path) -> None:
    """Overwrite a file with zeros, unless another name links it or it is a symbolic link."""
    if path.is_symlink():
        return
    with _opened(path, os.O_RDWR) as descriptor:
        _zero_opened(descriptor, names=1)


def _zero_opened(descriptor: int, names: int) -> None:
    """Overwrite an open file with zeros, unless it has more than so many names."""
    status = os.fstat(descriptor)
    if status.st_nlink > names:
        return
    block = bytes(min(status.st_size, 1 << 20))
    position = 0
    while position < status.st_size:
        part = memoryview(block)[: status.st_size - position]
        _write_all(descriptor, part, position)
        position += len(part)
    os.fsync(descriptor)
    count(files=1, written=status.st_size)


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
    except FileNotFoundError:
        raise MissingError(f"{path} is missing") from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _read_all(descriptor: int, view: memoryview, offset: int, path: Path) -> None:
    """Fill a view from an offset on; an OSError names the file, which tells whose failure it is."""
    done = got = _read_some(descriptor, view, offset, path)
    while done < len(view):
        if got == 0:
            raise CorruptError(f"{path}: the file ends at byte {offset + done}; more was expected")
        got = _read_some(descriptor, view[done:], offset + done, path)
        done += got


def _read_some(descriptor: int, view: memoryview, offset: int, path: Path) -> int:
    try:
        return os.preadv(descriptor, [view], offset)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _write_all(descriptor: int, view: memoryview, offset: int) -> None:
    done = 0
    while done < len(view):
        done += os.pwrite(descriptor, view[done:], offset + done)
