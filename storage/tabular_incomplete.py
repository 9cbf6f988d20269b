"""Text files with gaps: rows in which a marker stands for a missing value are skipped and counted.

A marker is taken for a number and its row left out afterwards, so that everything else on the line
is checked as in any other file, and messages name the line that it has in the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from .columns import Values
from .errors import BadInputError
from .layout import Layout
from .tabular import BLOCK_BYTES, TableFile, TableSource
from .tabular_diagnosis import TextBlock
from .tabular_published import Gaps


class IncompleteSource(TableSource):
    """Rows of text files without those that lack a feature, and without the files' dummy rows."""

    def __init__(
        self,
        files: Sequence[TableFile],
        gaps: Gaps,
        *,
        provenance: dict[str, str | int | float],
        drop_invalid: bool = False,
        salt: bytes = b"",
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        super().__init__(
            files,
            provenance=provenance,
            drop_invalid=drop_invalid,
            salt=salt,
            block_bytes=block_bytes,
        )
        self._gaps = gaps
        self._first_lines = {file.path: 1 + int(file.header) for file in files}

    def _values(self, piece: TextBlock) -> tuple[Values, NDArray[np.int64]]:
        filled, complete = self._filled(piece)
        values, offsets = super()._values(filled)
        # What is wrong with an incomplete row otherwise is told as of any other.
        kept = complete[offsets] | ~values.sound
        return values.only(kept), offsets[kept]

    def _fault(self, piece: TextBlock, offset: int) -> BadInputError:
        # The offset counts rows that were kept: the first fault of all is the one meant.
        return super()._fault(self._filled(piece)[0], 0)

    def _filled(self, piece: TextBlock) -> tuple[TextBlock, NDArray[np.bool_]]:
        """The piece with numbers in its gaps, and (n,) whether a row had none."""
        lines = bytes(piece.text).split(b"\n")
        complete = np.ones(piece.count, np.bool_)
        for i in range(piece.count):
            is_first = piece.first_line + i == self._first_lines[piece.path]
            filled = _filled_line(lines[i], piece.layout, self._gaps, is_first)
            if filled is not None:
                lines[i], complete[i] = filled, False
        return replace(piece, text=b"\n".join(lines)), complete


def _filled_line(line: bytes, layout: Layout, gaps: Gaps, is_first: bool) -> bytes | None:
    """A line with numbers in place of missing features, or a dummy row's label made a proper one.

    None where the line is neither; so are lines with other faults, which the parser refuses.
    """
    if not is_first and gaps.missing not in line:
        return None
    fields = line.split(b",")
    if len(fields) != len(layout.columns):
        return None
    if all(field.strip() == gaps.dummy for field in fields):
        if layout.label is not None and layout.label_values:
            fields[layout.label] = b"%g" % layout.label_values[0]
        return b",".join(fields)
    missing = [i for i in layout.features if fields[i].strip() == gaps.missing]
    for i in missing:
        fields[i] = fields[i].replace(gaps.missing, b"0")
    return b",".join(fields) if missing else None
