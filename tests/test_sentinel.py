"""The scan finds exactly what a naive search finds, whatever the patterns, files and blocks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from io import FileIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from expunge.storage import bytesearch, sentinel
from expunge.storage.errors import BadInputError, MissingError, StorageError
from expunge.storage.sentinel import Match, PatternSet, scan_tree

SECRET = b"row 17 of the census"
Place = tuple[str, int, bytes]


def numbered(patterns: Iterable[bytes]) -> PatternSet:
    return PatternSet((pattern, key, "raw") for key, pattern in enumerate(patterns))


def naive(files: dict[str, bytes], patterns: Iterable[bytes]) -> list[Place]:
    """Every place of every pattern, by `bytes.find`."""
    places = []
    for name, content in files.items():
        for pattern in set(patterns):
            at = content.find(pattern)
            while at >= 0:
                places.append((name, at, pattern))
                at = content.find(pattern, at + 1)
    return sorted(places)


def scanned(folder: Path, patterns: Sequence[bytes], block_bytes: int, threads: int) -> list[Place]:
    """Every place that `scan_tree` finds, for patterns that are all different."""
    report = scan_tree([folder], numbered(patterns), block_bytes=block_bytes, threads=threads)
    assert report.found == len(report.matches)
    assert list(report.matches) == sorted(report.matches, key=lambda m: (m.file, m.offset))
    return sorted((m.file.name, m.offset, patterns[m.key]) for m in report.matches)


def write(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for name, content in files.items():
        (folder / name).write_bytes(content)


# Few symbols and periodic bytes: patterns that overlap, repeat and share prefixes and windows.
symbols = st.sampled_from([b"\0", b"a", b"ab", b"\0\0\x80\x3f", bytes(8), b"abcdefgh", b"\xff"])
texts = st.lists(symbols, max_size=60).map(b"".join)


@st.composite
def problems(draw: st.DrawFn) -> tuple[dict[str, bytes], list[bytes]]:
    """Files, and patterns of which many are cut out of them."""
    random = draw(st.binary(max_size=300))
    files = {
        f"{number}.bin": draw(texts) + random[draw(st.integers(0, 300)) :] + draw(texts)
        for number in range(draw(st.integers(1, 3)))
    }
    patterns = draw(st.lists(st.binary(min_size=8, max_size=40), max_size=5))
    for _ in range(draw(st.integers(0, 25))):
        content = draw(st.sampled_from(sorted(files.values())))
        start = draw(st.integers(0, len(content)))
        length = draw(st.sampled_from([8, 9, 14, 15, 16, 38, 39, 64, 134, 135, 200]))
        patterns.append(content[start : start + length])
    return files, sorted({each for each in patterns if len(each) >= 8 and len(set(each)) > 1})


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(problems(), st.integers(1, 70), st.integers(1, 3), st.sampled_from([0, 1, 16]))
def test_agrees_with_bytes_find(
    tmp_path: Path,
    problem: tuple[dict[str, bytes], list[bytes]],
    block_bytes: int,
    threads: int,
    shared_by: int,
) -> None:
    files, patterns = problem
    write(tmp_path / "tree", files)
    with pytest.MonkeyPatch.context() as patch:
        # Small limits: wide windows come up with few patterns, and results with many resumptions.
        patch.setattr(bytesearch, "SHARED_BY", shared_by)
        patch.setattr(bytesearch, "_FOUND_ROWS", 1)
        found = scanned(tmp_path / "tree", patterns, block_bytes, threads)
    assert found == naive(files, patterns)


def test_two_thousand_rows_at_any_offset(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    patterns = [rng.bytes(int(length)) for length in rng.integers(8, 300, 2000)]
    pieces: list[bytes] = []
    for pattern in patterns:
        pieces += [rng.bytes(int(rng.integers(0, 30))), pattern]
    files = {"a": b"".join(pieces[:2500]), "b": b"".join(pieces[2500:])}
    write(tmp_path / "tree", files)
    expected = naive(files, patterns)
    assert len(expected) >= 2000
    assert scanned(tmp_path / "tree", patterns, 4099, 2) == expected


@pytest.mark.parametrize(("features", "widest"), [(7, 1), (12, 4), (40, 16)])
def test_rows_of_zeros_and_ones(tmp_path: Path, features: int, widest: int) -> None:
    """No eight bytes tell such rows apart; the wider windows that do are used where they fit."""
    rng = np.random.default_rng(2)
    rows = np.unique(rng.integers(0, 2, (600, features)).astype(np.float32), axis=0)
    content = rows.tobytes()
    patterns = [row.tobytes() for row in rows[1:400] if row.any() and not row.all()]
    searchers = bytesearch.build_searchers(bytesearch.join_patterns(patterns))
    assert max(len(each.multipliers) for each in searchers) == widest
    write(tmp_path / "tree", {"rows": content})
    expected = naive({"rows": content}, patterns)
    assert len(expected) >= len(patterns)
    assert scanned(tmp_path / "tree", patterns, 1000, 2) == expected


def test_window_avoids_what_many_patterns_share() -> None:
    rng = np.random.default_rng(3)
    shared = bytes(range(1, 33))
    patterns = [shared + bytes(32) + rng.bytes(16) for _ in range(50)]
    (searcher,) = bytesearch.build_searchers(bytesearch.join_patterns(patterns))
    assert searcher.table.offsets.min() > len(shared)
    assert np.diff(searcher.table.group_starts).max() == 1


@pytest.mark.parametrize("size", [8, 14, 15, 16, 20])
@pytest.mark.parametrize("threads", [1, 3])
def test_first_last_and_straddling_bytes(tmp_path: Path, size: int, threads: int) -> None:
    pattern = SECRET[:size]
    write(tmp_path / "tree", {"one": pattern, "cut": pattern[:-1]})
    assert scanned(tmp_path / "tree", [pattern], 1, threads) == [("one", 0, pattern)]
    for before in range(70):
        write(tmp_path / "tree", {"file": b"." * before + pattern})
        assert scanned(tmp_path / "tree", [pattern], 32, threads) == [("file", before, pattern)]


def test_one_flipped_bit_is_no_match(tmp_path: Path) -> None:
    pattern = np.arange(3, 60, dtype=np.float32).tobytes()
    for at in range(len(pattern)):
        changed = bytearray(pattern)
        changed[at] ^= 1
        write(tmp_path / "tree", {"row": bytes(changed)})
        assert scanned(tmp_path / "tree", [pattern], 1 << 16, 1) == []


def test_report_counts_files_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "a" / "deep").mkdir(parents=True)
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "empty").touch()
    (tmp_path / "a" / "deep" / "file").write_bytes(SECRET * 3)
    (tmp_path / "b" / "other").write_bytes(bytes(100))
    seen: list[tuple[int, int]] = []
    report = scan_tree(
        [tmp_path / "a", tmp_path / "b", tmp_path],
        numbered([SECRET]),
        on_progress=lambda done, total: seen.append((done, total)),
        block_bytes=16,
    )
    assert (report.files, report.bytes, report.found) == (3, 160, 3)
    assert report.skipped == () and report.live_twins == 0
    assert report.matches[0] == Match(tmp_path / "a" / "deep" / "file", 0, 0, "raw")
    assert seen[-1] == (160, 160) and seen == sorted(seen)


def test_no_patterns_and_no_files(tmp_path: Path) -> None:
    assert scan_tree([tmp_path], numbered([SECRET])).files == 0
    (tmp_path / "file").write_bytes(SECRET)
    report = scan_tree([tmp_path], PatternSet([]))
    assert (report.files, report.bytes, report.matches) == (1, len(SECRET), ())


def test_hard_links_are_read_once(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "z").write_bytes(SECRET)
    os.link(tmp_path / "z", tmp_path / "a" / "twin")
    os.link(tmp_path / "z", tmp_path / "y")
    report = scan_tree([tmp_path], numbered([SECRET]))
    assert (report.files, report.bytes) == (1, len(SECRET))
    assert report.matches == (Match(tmp_path / "a" / "twin", 0, 0, "raw"),)


def test_links_and_pipes_are_skipped_but_named(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    write(outside, {"secret": SECRET})
    inside.mkdir()
    (inside / "file").symlink_to(outside / "secret")
    (inside / "folder").symlink_to(outside)
    (inside / "loop").symlink_to(inside)
    os.mkfifo(inside / "pipe")
    report = scan_tree([inside], numbered([SECRET]))
    assert (report.files, report.found) == (0, 0)
    assert report.skipped == (
        f"{inside / 'file'}: a symbolic link, not followed",
        f"{inside / 'folder'}: a symbolic link, not followed",
        f"{inside / 'loop'}: a symbolic link, not followed",
        f"{inside / 'pipe'}: neither a regular file nor a folder",
    )
    assert scan_tree([inside / "folder"], numbered([SECRET])).found == 1


def test_live_twins_are_told_by_address(tmp_path: Path) -> None:
    pattern = SECRET[:16]
    write(tmp_path / "tree", {"x": pattern * 5})
    asked: list[tuple[str, int, int]] = []

    def is_live(file: Path, offset: int, length: int) -> bool:
        asked.append((file.name, offset, length))
        return offset in (16, 48)

    report = scan_tree([tmp_path / "tree"], numbered([pattern]), is_live=is_live, block_bytes=24)
    assert asked == [("x", offset, 16) for offset in range(0, 80, 16)]
    assert report.live_twins == 2 and report.found == 3
    assert [match.offset for match in report.matches] == [0, 32, 64]


def test_equal_patterns_keep_all_their_owners(tmp_path: Path) -> None:
    write(tmp_path / "tree", {"x": b"--" + SECRET})
    patterns = PatternSet(
        [(SECRET, 4, "float32 row"), (SECRET, 9, "float32 row"), (SECRET, 4, "raw")]
        + [(SECRET, 9, "float32 row")]
    )
    assert len(patterns) == 1
    report = scan_tree([tmp_path / "tree"], patterns)
    assert [(m.offset, m.key, m.encoding) for m in report.matches] == [
        (2, 4, "float32 row"),
        (2, 9, "float32 row"),
        (2, 4, "raw"),
    ]
    assert report.found == 1 and report.keys_found == {4, 9}


def test_stored_matches_are_capped_but_all_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sentinel, "STORED_MATCHES", 3)
    write(tmp_path / "tree", {"x": SECRET * 10 + SECRET[::-1]})
    report = scan_tree([tmp_path / "tree"], numbered([SECRET, SECRET[::-1]]))
    assert (len(report.matches), report.found) == (3, 11)
    assert report.keys_found == {0, 1}


def test_short_and_undistinctive_patterns(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="'label' pattern of row 5 has 7 bytes"):
        PatternSet([(b"1234567", 5, "label")])
    with pytest.raises(BadInputError, match="0 bytes"):
        PatternSet([(b"", 5, "label")])
    patterns = PatternSet(
        [(bytes(40), 1, "float32 row"), (b"\xff" * 8, 2, "ids"), (SECRET, 3, "raw")]
        + [(bytes(16), 1, "float32 row")]
    )
    assert patterns.undistinctive == ((1, "float32 row"), (2, "ids"))
    write(tmp_path / "tree", {"x": bytes(100) + b"\xff" * 100})
    assert len(patterns) == 1
    assert scan_tree([tmp_path / "tree"], patterns).found == 0


def test_bad_arguments(tmp_path: Path) -> None:
    patterns = numbered([SECRET])
    with pytest.raises(MissingError, match="no such folder"):
        scan_tree([tmp_path / "gone"], patterns)
    (tmp_path / "file").touch()
    with pytest.raises(BadInputError, match="give a folder"):
        scan_tree([tmp_path / "file"], patterns)
    with pytest.raises(BadInputError, match="threads=0"):
        scan_tree([tmp_path], patterns, threads=0)
    with pytest.raises(BadInputError, match="block_bytes=0"):
        scan_tree([tmp_path], patterns, block_bytes=0)


def test_vanished_files_are_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "tree", {"a": SECRET, "b": SECRET, "c": SECRET})
    lstat = Path.lstat

    def vanishing_open(path: Path, opener: Callable[[str, int], int]) -> FileIO:
        if path.name == "c":
            path.unlink()
        return FileIO(path, opener=opener)

    def vanishing_lstat(path: Path) -> os.stat_result:
        if path.name == "a":
            path.unlink()
        return lstat(path)

    monkeypatch.setattr(sentinel, "FileIO", vanishing_open)
    monkeypatch.setattr(Path, "lstat", vanishing_lstat)
    report = scan_tree([tmp_path / "tree"], numbered([SECRET]))
    assert [match.file.name for match in report.matches] == ["b"]
    assert (report.files, report.bytes) == (1, len(SECRET))


def test_file_cut_short_while_it_is_read(tmp_path: Path) -> None:
    write(tmp_path / "tree", {"x": SECRET * 100})

    def cut(done: int, total: int) -> None:
        os.truncate(tmp_path / "tree" / "x", 0)

    report = scan_tree(
        [tmp_path / "tree"], numbered([SECRET]), on_progress=cut, block_bytes=20, threads=1
    )
    assert 1 <= report.found <= 5
    assert report.bytes == 20 * report.found


def refuse(*args: object, **kwargs: object) -> None:
    raise PermissionError(13, "Permission denied")


@pytest.mark.parametrize("function", ["listdir", "open", "preadv"])
def test_what_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    write(tmp_path / "tree", {"x": SECRET})
    monkeypatch.setattr(os, function, refuse)
    name = "tree" if function == "listdir" else "tree/x"
    with pytest.raises(StorageError, match=rf"cannot read {tmp_path / name} \(Permission denied\)"):
        scan_tree([tmp_path / "tree"], numbered([SECRET]))


def open_files() -> list[str]:
    descriptors = Path("/proc/self/fd")
    if not descriptors.is_dir():
        pytest.skip("needs /proc/self/fd to count open files")
    return sorted(os.listdir(descriptors))


def test_few_files_are_open_at_a_time(tmp_path: Path) -> None:
    write(tmp_path / "tree", {str(number): SECRET for number in range(60)})
    before = len(open_files())
    counts: list[int] = []
    scan_tree(
        [tmp_path / "tree"],
        numbered([SECRET]),
        on_progress=lambda done, total: counts.append(len(open_files())),
    )
    assert len(counts) == 60 and max(counts) <= before + 5
    assert len(open_files()) == before


def test_files_are_closed_after_an_error(tmp_path: Path) -> None:
    write(tmp_path / "tree", {str(number): SECRET * 9 for number in range(9)})
    before = open_files()

    def fail(file: Path, offset: int, length: int) -> bool:
        raise RuntimeError("asked the wrong one")

    with pytest.raises(RuntimeError, match="wrong one"):
        scan_tree([tmp_path / "tree"], numbered([SECRET]), is_live=fail, block_bytes=50)
    assert open_files() == before
