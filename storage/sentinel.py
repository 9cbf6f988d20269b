"""The scan that proves rows gone: it searches every byte below some folders for their values."""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from .bytesearch import WORD, Words, build_searchers, join_patterns, search, word_buffer
from .errors import BadInputError, MissingError, StorageError

SHORTEST_PATTERN = WORD
"""Bytes; anything shorter turns up by chance."""
STORED_MATCHES = 10_000
"""A report lists this many matches at most; all are counted."""
BLOCK_BYTES = 4 << 20
"""How much of a file is searched at a time; each thread holds one block."""

IsLive = Callable[[Path, int, int], bool]
"""Whether the bytes (file, offset, length) belong to a living row with the same values."""
OnProgress = Callable[[int, int], None]
"""Told the bytes searched so far and the bytes that there are to search."""

_Result = TypeVar("_Result")


class PatternSet:
    """The byte patterns of one scan, each with the rows that it belongs to.

    Args:
        patterns: (pattern, key, encoding): the bytes, the number of the row, and how these
            bytes encode it, such as "float32 row". A pattern that comes again is searched once
            and keeps all its owners.

    Raises:
        BadInputError: a pattern is shorter than SHORTEST_PATTERN bytes.
    """

    undistinctive: tuple[tuple[int, str], ...]
    """(key, encoding) of the patterns whose bytes are all equal. They are not searched: any
    zeroed page would match."""

    def __init__(self, patterns: Iterable[tuple[bytes, int, str]]) -> None:
        owners: dict[bytes, dict[tuple[int, str], None]] = {}
        undistinctive: dict[tuple[int, str], None] = {}
        for pattern, key, encoding in patterns:
            if len(pattern) < SHORTEST_PATTERN:
                raise BadInputError(
                    f"the {encoding!r} pattern of row {key} has {len(pattern)} bytes, which would "
                    f"turn up by chance: give at least {SHORTEST_PATTERN} bytes of the row"
                )
            if pattern.count(pattern[0]) == len(pattern):
                undistinctive[key, encoding] = None
            else:
                owners.setdefault(bytes(pattern), {})[key, encoding] = None
        self.undistinctive = tuple(undistinctive)
        self._owners = [tuple(each) for each in owners.values()]
        self._lengths = [len(pattern) for pattern in owners]
        self._text = join_patterns(list(owners))
        self._searchers = build_searchers(self._text)

    def __len__(self) -> int:
        """Return how many different patterns are searched."""
        return len(self._owners)

    @property
    def longest(self) -> int:
        """Bytes of the longest pattern; 0 without patterns."""
        return max(self._lengths, default=0)

    def owners(self, number: int) -> tuple[tuple[int, str], ...]:
        """Return (key, encoding) of every row that has the pattern of this number."""
        return self._owners[number]

    def length(self, number: int) -> int:
        """Return the bytes of the pattern of this number."""
        return self._lengths[number]

    def find(self, words: Words, size: int, owned: int) -> NDArray[np.int64]:
        """Search a buffer as `bytesearch.search` does: (matches, 2) offsets and numbers."""
        return search(words, size, owned, self._text, self._searchers)


@dataclass(frozen=True, slots=True)
class Match:
    """Bytes of a row that are still on the disk."""

    file: Path
    offset: int
    """Byte of the file where the pattern begins."""
    key: int
    encoding: str


@dataclass(frozen=True, slots=True)
class ScanReport:
    """What a scan saw. Nothing of the searched rows is left exactly if `found` is 0."""

    matches: tuple[Match, ...]
    """By file and offset, one for each row that has the pattern; the first STORED_MATCHES."""
    found: int
    """Places where a pattern stands that is no live twin's, listed in `matches` or not."""
    keys_found: frozenset[int]
    """The rows of all these places, listed in `matches` or not."""
    live_twins: int
    """Places that `is_live` assigned to a living row."""
    files: int
    """Files that were read; several names of one file count once."""
    bytes: int
    """Bytes that were searched."""
    skipped: tuple[str, ...]
    """What is not a regular file or folder, and why it was not read."""


def scan_tree(
    folders: Sequence[Path],
    patterns: PatternSet,
    *,
    is_live: IsLive | None = None,
    on_progress: OnProgress | None = None,
    threads: int = 2,
    block_bytes: int = BLOCK_BYTES,
) -> ScanReport:
    """Search every byte of all regular files below the folders, at every offset.

    Symbolic links are not followed (except those given as `folders`). A file with several names
    is read once and reported under the first one, in the order of the folders and of the names
    in them. Files that vanish meanwhile are no error; files that others write to meanwhile may
    be seen in either state, so keep writers out. File names and attributes are not searched.

    Memory: `threads` blocks, each longer than `block_bytes` by the longest pattern, and about 60
    bytes more for each match in them; the patterns; and the names of the files.

    Args:
        folders: where to search; they may overlap.
        patterns: what to search for.
        is_live: see `IsLive`; called in this thread, once for each place that was found.
        on_progress: see `OnProgress`; called in this thread.
        threads: how many blocks are searched at the same time.
        block_bytes: how much of a file is read at a time.

    Raises:
        MissingError: one of the folders does not exist.
        BadInputError: one of the folders is not a folder, or a number is below 1.
        StorageError: a file or folder cannot be read.
    """
    if threads < 1 or block_bytes < 1:
        raise BadInputError(
            f"threads={threads} and block_bytes={block_bytes} must both be at least 1"
        )
    listing = _list_files(folders)
    tally = _Tally(patterns, is_live)
    # A match belongs to the block where it begins; its end may lie beyond.
    read_bytes = block_bytes + max(patterns.longest - 1, 0)
    buffers: SimpleQueue[Words] = SimpleQueue()
    for _ in range(threads):
        buffers.put(word_buffer(read_bytes))

    def search_block(block: _Block) -> tuple[int, NDArray[np.int64]]:
        words = buffers.get()
        try:
            size = _read_block(block, words, read_bytes)
            return min(size, block_bytes), patterns.find(words, size, block_bytes)
        finally:
            buffers.put(words)

    with ExitStack() as opened:
        blocks = _blocks(listing.files, block_bytes, opened)
        # Left before `opened` is: no thread reads any more when the files are closed.
        with closing(_map_in_order(search_block, blocks, threads)) as results:
            for block, (size, found) in results:
                tally.add(block, size, found)
                if block.is_last:
                    block.file.close()
                if on_progress is not None:
                    on_progress(tally.bytes, max(listing.bytes, tally.bytes))
    return tally.report(listing.skipped)


class _Tally:
    """What has been found so far."""

    def __init__(self, patterns: PatternSet, is_live: IsLive | None) -> None:
        self._patterns = patterns
        self._is_live = is_live
        self._matches: list[Match] = []
        self._keys: set[int] = set()
        self._found = 0
        self._live_twins = 0
        self._files = 0
        self.bytes = 0

    def add(self, block: _Block, size: int, found: NDArray[np.int64]) -> None:
        """Count a searched block of `size` bytes and its (matches, 2) offsets and patterns."""
        self._files += block.is_last
        self.bytes += size
        for offset, number in found.tolist():
            length = self._patterns.length(number)
            if self._is_live is not None and self._is_live(
                block.path, block.start + offset, length
            ):
                self._live_twins += 1
            else:
                self._add_match(block.path, block.start + offset, number)

    def _add_match(self, file: Path, offset: int, number: int) -> None:
        self._found += 1
        for key, encoding in self._patterns.owners(number):
            self._keys.add(key)
            if len(self._matches) < STORED_MATCHES:
                self._matches.append(Match(file, offset, key, encoding))

    def report(self, skipped: Sequence[str]) -> ScanReport:
        return ScanReport(
            matches=tuple(self._matches),
            found=self._found,
            keys_found=frozenset(self._keys),
            live_twins=self._live_twins,
            files=self._files,
            bytes=self.bytes,
            skipped=tuple(skipped),
        )


@dataclass(frozen=True, slots=True)
class _Listing:
    """What lies below some folders."""

    files: tuple[Path, ...]
    """The first name of every regular file."""
    bytes: int
    skipped: tuple[str, ...]


def _list_files(folders: Sequence[Path]) -> _Listing:
    """Walk the folders in the order of names; take every file (inode) once."""
    waiting = [path for folder in folders for path in _children_of_root(folder)][::-1]
    files: dict[tuple[int, int], Path] = {}
    total = 0
    skipped: dict[str, None] = {}
    while waiting:
        path = waiting.pop()
        try:
            status = path.lstat()
            if stat.S_ISDIR(status.st_mode):
                waiting.extend(reversed(_children(path)))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise _unreadable(path, error) from error
        inode = (status.st_dev, status.st_ino)
        if stat.S_ISREG(status.st_mode):
            total += status.st_size if inode not in files else 0
            files.setdefault(inode, path)
        elif stat.S_ISLNK(status.st_mode):
            skipped[f"{path}: a symbolic link, not followed"] = None
        elif not stat.S_ISDIR(status.st_mode):
            skipped[f"{path}: neither a regular file nor a folder"] = None
    return _Listing(tuple(files.values()), total, tuple(skipped))


def _children_of_root(folder: Path) -> list[Path]:
    try:
        return _children(folder)
    except FileNotFoundError as error:
        raise MissingError(f"cannot scan {folder}: there is no such folder") from error
    except NotADirectoryError as error:
        raise BadInputError(f"cannot scan {folder}: give a folder, not a file") from error
    except OSError as error:
        raise _unreadable(folder, error) from error


def _children(folder: Path) -> list[Path]:
    return [folder / name for name in sorted(os.listdir(folder))]


def _unreadable(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"cannot read {path} ({error.strerror}); the scan proves nothing unless it reads every "
        "file: run it as a user who may, or take the file out of the scanned folders"
    )


@dataclass(frozen=True, slots=True)
class _Block:
    """Part of an open file."""

    path: Path
    file: FileIO
    start: int
    """The block's first byte."""
    is_last: bool


def _open_without_following(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW)


def _blocks(files: Sequence[Path], block_bytes: int, opened: ExitStack) -> Iterator[_Block]:
    """Open the files one by one, to be closed by `opened`, and cut them into blocks.

    An empty file has one block. Files that have vanished are left out.
    """
    for path in files:
        try:
            file = FileIO(path, opener=_open_without_following)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise _unreadable(path, error) from error
        opened.enter_context(file)
        size = max(os.fstat(file.fileno()).st_size, 1)
        for start in range(0, size, block_bytes):
            yield _Block(path, file, start, is_last=start + block_bytes >= size)


def _read_block(block: _Block, words: Words, size: int) -> int:
    """Read `size` bytes from the block's start on, fewer at the file's end; return how many."""
    data = words.view(np.uint8).data
    done = 0
    while done < size:
        try:
            count = os.preadv(block.file.fileno(), [data[done:size]], block.start + done)
        except OSError as error:
            raise _unreadable(block.path, error) from error
        if count == 0:
            break
        done += count
    return done


def _map_in_order(
    function: Callable[[_Block], _Result], blocks: Iterable[_Block], threads: int
) -> Generator[tuple[_Block, _Result], None, None]:
    """Apply the function in threads; yield (block, result) in order, few blocks ahead."""
    pending: deque[tuple[_Block, Future[_Result]]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="scan") as pool:
        try:
            for block in blocks:
                pending.append((block, pool.submit(function, block)))
                if len(pending) > 2 * threads:
                    oldest, result = pending.popleft()
                    yield oldest, result.result()
            while pending:
                oldest, result = pending.popleft()
                yield oldest, result.result()
        finally:
            for _, result in pending:
                result.cancel()
