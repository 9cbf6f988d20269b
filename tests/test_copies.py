"""Copies of all rows: which units they are, what an import makes of them, and live twins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from given_rows import GivenRows
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from reading import write
from support import INLINE, Cli

from expunge.jobs.importing import source_of
from expunge.storage import ingest
from expunge.storage.copies import CopiedRows
from expunge.storage.dataset import DataSet
from expunge.storage.errors import BadInputError
from expunge.storage.generators import GaussianMixture
from expunge.storage.importers import open_source
from expunge.storage.rows import RowBlock, RowSource

SALT = bytes(range(16))
Rows = dict[int, tuple[bytes, float]]


def by_unit(source: RowSource) -> Rows:
    """Each unit's row and label; a unit may come only once."""
    found: Rows = {}
    shares = [0.0]
    for block in source.blocks():
        assert (np.diff(block.rows) > 0).all() and len(block.rows) == len(block.x)
        labels = np.zeros(len(block.rows)) if block.y is None else block.y
        for unit, x, y in zip(block.rows.tolist(), block.x, labels.tolist(), strict=True):
            assert unit not in found
            found[unit] = x.tobytes(), y
        shares.append(source.progress)
    assert shares == sorted(shares) and shares[-1] <= 1.0 == source.progress
    return found


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 30),
    copies=st.integers(1, 5),
    block=st.integers(1, 40),
    invalid=st.sets(st.integers(0, 29)),
)
def test_copy_c_of_row_r_is_unit_c_n_plus_r(
    rows: int, copies: int, block: int, invalid: set[int]
) -> None:
    rng = np.random.default_rng(rows)
    x, y = rng.random((rows, 2)), rng.integers(0, 9, rows).astype(float)
    # Invalid rows count, at the end as well: the units are those of the file's lines.
    source = CopiedRows(GivenRows(x, y, block=block, invalid=sorted(invalid)), copies)
    kept = [r for r in range(rows) if r not in invalid]
    expected = {
        c * rows + r: (x[r].astype(np.float32).tobytes(), y[r]) for c in range(copies) for r in kept
    }
    for _ in range(2):
        assert by_unit(source) == expected
        assert source.dropped == copies * (rows - len(kept))
    assert source.provenance["copies"] == copies and source.expected_rows is None


def test_lines_that_are_skipped_count_in_every_copy(tmp_path: Path) -> None:
    one = write(tmp_path / "1.csv", "a,b\nx,1\n2,3\nnan,1\n")
    two = write(tmp_path / "2.csv", "a,b\n4,5\noops\n")
    source = CopiedRows(open_source([one, two], "csv", drop_invalid=True), 3)
    found = by_unit(source)
    assert sorted(found) == [1, 3, 6, 8, 11, 13] and source.dropped == 9
    assert found[1] == found[6] == found[11] != found[3]


def test_generated_rows_have_copies_and_their_number_is_known() -> None:
    one = GaussianMixture(1200, 4000, 2, 3)
    assert one.block_count == 2
    source = CopiedRows(one, 3)
    assert source.expected_rows == 3600 and source.provenance["generator"]
    rows, found = by_unit(GaussianMixture(1200, 4000, 2, 3)), by_unit(source)
    assert found == {u + 1200 * c: row for u, row in rows.items() for c in range(3)}


def test_progress_moves_with_every_copy_of_a_single_block() -> None:
    source = CopiedRows(GivenRows(np.ones((5, 1))), 10)
    shares = [source.progress for _ in source.blocks()]
    assert shares == pytest.approx([i / 10 for i in range(1, 11)])


def test_a_file_that_changes_between_the_passes_is_noticed() -> None:
    class Changing(GivenRows):
        def __init__(self, later: int) -> None:
            super().__init__(np.ones((6, 1)))
            self.later = later

        def blocks(self) -> Iterator[RowBlock]:
            yield from super().blocks()
            self.x = np.ones((self.later, 1), np.float32)

    for later in (5, 7):
        with pytest.raises(BadInputError, match="a file changed while it was being read"):
            list(CopiedRows(Changing(later), 2).blocks())
    assert len(list(CopiedRows(Changing(6), 2).blocks())) == 2


def test_what_has_no_copies(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="copies is 0, but must be at least 1"):
        CopiedRows(GivenRows(np.ones((5, 1))), 0)
    path = write(tmp_path / "x.csv", "a,who\n1,me\n")
    source = open_source([path], "csv", subject="who", salt=SALT)
    with pytest.raises(BadInputError, match="a copy of a person's rows would be the same person's"):
        CopiedRows(source, 2)


def test_an_import_plans_cells_for_all_copies(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.random((3000, 40)).astype(np.float32)
    done = ingest.import_rows(
        CopiedRows(GivenRows(x, block=700), 30), tmp_path / "t.zarr", SALT, {}, memory=1 << 20
    )
    data = done.data_set
    assert done.rows == 90_000 and data.attrs["rows_imported"] == 90_000
    # 14.4 MB of features: as many cells as for as many different rows.
    assert data.cells == 16 and int(data.statistics().live.sum()) == 90_000
    assert data.statistics().live.max() == data.capacity < 90_000 / 16 * 1.2
    units = np.concatenate([data.read_units(cell) for cell in range(data.cells)])
    assert sorted(units[units >= 0].tolist()) == list(range(90_000))
    for cell in (0, 9):
        live = data.read_units(cell)[data.read_units(cell) >= 0]
        np.testing.assert_array_equal(data.read_cell(cell)[: len(live)], x[live % 3000])


# ---- the command line


def table(rows: int) -> NDArray[np.float32]:
    return np.random.default_rng(4).random((rows, 4)).astype(np.float32)


def test_a_deleted_copy_leaves_the_other_as_its_live_twin(
    cli: Cli, csv_file: Callable[..., Path], tmp_path: Path
) -> None:
    x = table(150)
    cli("init", tmp_path / "ws")
    made = cli("data", "import", "t", csv_file(x), "--format", "csv", "--copies", 2)
    assert made["rows"] == 300 and cli("data", "show", "t")["source"]["copies"] == 2
    train = ["--algorithm", "q-kmeans", "-p", "n_clusters=3", "-p", "epsilon=0.05"]
    cli("train", "m", "--data", "t", *train, *INLINE)
    twin = csv_file(x[[20]], "twin.csv")
    assert cli("scan", "--rows", twin, code=5)["matches"] >= 2
    cli("forget", "--data", "t", "--unit", 20)
    cli("batch", "run", "--yes", *INLINE)
    data = DataSet.open(tmp_path / "ws" / "data" / "t.zarr")
    units = np.concatenate([data.read_units(cell) for cell in range(data.cells)])
    assert 20 not in units and 170 in units and (units >= 0).sum() == 299
    found = cli("scan", "--rows", twin)
    assert found["matches"] == 0 and found["live_twins"] >= 1
    cli("verify", "m", "--against", "retrain", *INLINE)
    cli("forget", "--data", "t", "--unit", 170)
    cli("batch", "run", "--yes", *INLINE)
    found = cli("scan", "--rows", twin)
    assert found["matches"] == 0 and found["live_twins"] == 0


def test_copies_by_command(cli: Cli, csv_file: Callable[..., Path], tmp_path: Path) -> None:
    cli("init", tmp_path / "ws")
    made = cli("data", "generate", "g", "--like", "higgs", "--rows", 500, "--copies", 4)
    assert (made["rows"], made["dropped"]) == (2000, 0)
    path = write(tmp_path / "s.csv", "a,who\n1,me\n2,you\nx,me\n")
    made = cli("data", "import", "s", path, "--format", "csv", "--drop", "who", "--drop-invalid",
               "--copies", 3)  # fmt: skip
    assert (made["rows"], made["dropped"]) == (6, 3)
    refused = cli("data", "import", "p", path, "--format", "csv", "--subject", "who",
                  "--copies", 2, code=2)  # fmt: skip
    assert "leave out --subject or --copies" in refused
    assert [row["name"] for row in cli("data", "list")["data_sets"]] == ["g", "s"]
    assert len(cli("job", "list")["jobs"]) == 2
    # Random features are the row's: its copies have the same.
    given = ["--format", "csv", "--drop-invalid", "--drop", "who", "--random-features", 2]
    cli("data", "import", "r", path, *given, "--copies", 2)
    data = DataSet.open(tmp_path / "ws" / "data" / "r.zarr")
    stored: dict[int, list[float]] = {}
    for cell in range(data.cells):
        live = [unit for unit in data.read_units(cell).tolist() if unit >= 0]
        stored |= dict(zip(live, data.read_cell(cell).tolist(), strict=False))
    assert sorted(stored) == [0, 1, 3, 4]
    assert stored[0] == stored[3] != stored[1] == stored[4] and len(stored[0]) == 3


def test_a_job_recorded_before_there_were_copies_is_opened_as_it_was() -> None:
    asked = {"kind": "generate", "like": "higgs", "rows": 9, "features": None, "clusters": None}
    source = source_of({**asked, "seed": 1}, SALT, lambda what, share: None)
    assert "copies" not in source.provenance and source.expected_rows == 9


def test_more_copies_than_any_disk_holds_are_refused_at_once() -> None:
    source = CopiedRows(GivenRows(np.zeros((5, 2)), None), 1 << 40)
    with pytest.raises(BadInputError, match=r"1,099,511,627,776 copies of 5 rows or more are"):
        list(source.blocks())
