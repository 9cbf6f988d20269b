"""Shared by the tests of importers: files are written, and read with the checks that always hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from expunge.storage.errors import BadInputError
from expunge.storage.importers import open_source
from expunge.storage.layout import Layout
from expunge.storage.rows import RowSource
from expunge.storage.tabular import TableFile, TableSource

Rows = tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float64] | None]

IRIS = "sepal,petal,species\n1,2,0\n3,4,1\n5,6,2\n"


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read(source: RowSource) -> Rows:
    """All rows of a source, after checks that hold for every block."""
    blocks = list(source.blocks())
    for block in blocks:
        assert block.x.dtype == np.float32 and block.x.flags.c_contiguous
        assert block.rows.dtype == np.int64 and len(block.rows) == len(block.x) > 0
        assert np.isfinite(block.x).all() and not np.signbit(block.x[block.x == 0]).any()
        assert block.x.shape[1] == len(source.feature_names)
    assert source.progress == 1.0
    width = len(source.feature_names)
    rows = np.concatenate([np.empty(0, np.int64), *(block.rows for block in blocks)])
    x = np.concatenate([np.empty((0, width), np.float32), *(block.x for block in blocks)])
    assert (np.diff(rows) > 0).all()
    if source.label_name is None:
        assert all(block.y is None for block in blocks)
        return rows, x, None
    return rows, x, np.concatenate([np.empty(0), *(b.y for b in blocks if b.y is not None)])


def assert_same(left: Rows, right: Rows) -> None:
    np.testing.assert_array_equal(left[0], right[0])
    np.testing.assert_array_equal(left[1].view(np.uint32), right[1].view(np.uint32))
    assert (left[2] is None) == (right[2] is None)
    if left[2] is not None and right[2] is not None:
        np.testing.assert_array_equal(left[2], right[2])


def headerless(
    paths: Sequence[Path], width: int, block_bytes: int, *, drop_invalid: bool = False
) -> TableSource:
    """A source of `width` features whose text is cut every `block_bytes`."""
    layout = Layout(tuple(f"c{i}" for i in range(width)), tuple(range(width)), None)
    return TableSource(
        [TableFile(path, layout, header=False) for path in paths],
        provenance={},
        drop_invalid=drop_invalid,
        block_bytes=block_bytes,
    )


def complaint(path: Path, format: str = "csv", **options: object) -> str:
    """The message that reading a file to its end raises."""
    with pytest.raises(BadInputError) as caught:
        read(open_source([path], format, **options))  # type: ignore[arg-type]  # one option each
    return str(caught.value)
