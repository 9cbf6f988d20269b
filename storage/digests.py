"""The digests of a version's chunks: kept in the version as an array, joined into its own digest.

The array ``digests`` is uint8 (chunk, byte), in the order of array names and chunk indices.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from . import files
from .chunks import Index, chunk_count, chunk_indices, write_chunk
from .errors import BadInputError
from .schema import ArraySpec, chunk_path

ChunkDigests = Mapping[str, Mapping[Index, str]]
"""The hex SHA-256 of every chunk, by array and index."""
DIGESTS = "digests"
"""The name of the array of digests."""
DIGEST_BYTES = 32


def digests_spec(specs: Mapping[str, ArraySpec]) -> ArraySpec:
    """Return the spec of the array of digests of these arrays' chunks."""
    count = sum(map(chunk_count, specs.values()))
    return ArraySpec(
        ("chunk", "byte"), (count, DIGEST_BYTES), np.dtype(np.uint8), (max(1, count), DIGEST_BYTES)
    )


def write_digests(path: Path, specs: Mapping[str, ArraySpec], digests: ChunkDigests) -> None:
    """Write the array of digests, which has no file where there are no chunks."""
    ordered = [digests[n][i] for n in sorted(specs) for i in chunk_indices(specs[n])]
    if ordered:
        table = np.frombuffer(bytes.fromhex("".join(ordered)), np.uint8)
        write_chunk(path, DIGESTS, digests_spec(specs), (0, 0), table.reshape(-1, DIGEST_BYTES))


def read_digests(path: Path, specs: Mapping[str, ArraySpec]) -> ChunkDigests:
    """Return the stored digests; MissingError or CorruptError where they can't be all there."""
    spec = digests_spec(specs)
    if not spec.shape[0]:
        return {name: {} for name in specs}
    file = chunk_path(path, DIGESTS, 0, 0)
    # Before memory is taken for as many as damaged metadata may say.
    files.check_size(file, spec.shape[0] * DIGEST_BYTES)
    table = files.read_whole(file)
    rows = (table[i : i + DIGEST_BYTES].hex() for i in range(0, len(table), DIGEST_BYTES))
    return {n: {i: next(rows) for i in chunk_indices(specs[n])} for n in sorted(specs)}


def merkle_root(specs: Mapping[str, ArraySpec], digests: ChunkDigests) -> str:
    """Return a version's digest: SHA-256 over sorted lines, one a chunk.

    A line is ``name|dtype|shape|chunks|index|chunk digest``; an array of size 0 has one
    with the last two empty. Raises BadInputError unless there is a digest for each chunk and for no other.
    """
    lines: list[str] = []
    for name, spec in specs.items():
        given = digests.get(name, {})
        wanted = list(chunk_indices(spec))
        if given.keys() != set(wanted):
            stray = sorted(given.keys() ^ set(wanted))
            raise BadInputError(
                f"{len(given)} digests given for the {len(wanted)} chunks of {name}: chunk "
                f"{stray[0]} has no digest or is not in the array"
            )
        head = f"{name}|{spec.dtype.str}|{_joined(spec.shape)}|{_joined(spec.chunks)}|"
        lines += [f"{head}{_joined(i)}|{given[i]}" for i in wanted] or [f"{head}|"]
    if unknown := sorted(digests.keys() - specs.keys()):
        raise BadInputError(f"digests given for {unknown[0]}, which is not among the arrays")
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def _joined(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))
