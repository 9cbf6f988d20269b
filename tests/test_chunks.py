"""What reading parts of a version's array costs: bytes and files, counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from expunge.storage import chunks, files, versions
from expunge.storage.schema import ArraySpec


@pytest.mark.parametrize("width", [1, 100, 600, 5000])
@pytest.mark.parametrize("step", [1, 2, 7, 40])
def test_items_that_lie_apart(tmp_path: Path, width: int, step: int) -> None:
    values = np.arange(90 * width, dtype=np.float64).reshape(90, width)
    spec = ArraySpec(("step", "parameter"), values.shape, values.dtype, (40, width))
    version = tmp_path / "version"
    versions.create_version(version, {"trace": spec}, {})
    for index in chunks.chunk_indices(spec):
        chunks.write_chunk(version, "trace", spec, index, values[chunks.chunk_slices(spec, index)])
    items = np.arange(3, 90, step)
    out = np.empty((len(items), width))
    with files.metered() as used:
        chunks.read_items(version, "trace", spec, items, out)
    np.testing.assert_array_equal(out, values[items])
    of_chunks = [part for k in range(3) if len(part := items[items // 40 == k])]
    assert used.files == len(of_chunks)
    # What lies between is read where it is less than a read of each would cost.
    spans = [(int(part[-1] - part[0]) + 1, len(part)) for part in of_chunks]
    read = [8 * width * (a if 8 * width * a <= chunks.READ_BYTES * b else b) for a, b in spans]
    assert used.bytes_read == sum(read)
