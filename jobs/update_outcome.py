"""What an update of a stored regression model hands on to its estimate and its rebase."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..pipeline.frozen import FrozenMean
from ..pipeline.update import Updated


@dataclass(frozen=True, slots=True)
class Outcome:
    """An update, and what it took."""

    updated: Updated
    """Its starts are by ``delta``, whatever gave the change."""
    first_block: int
    """The first block that has a visit; the number of blocks if none has."""
    when: NDArray[np.int64]
    """(v,) the iterations that use deleted rows, ascending."""
    which: NDArray[np.int64]
    """(v,) the row of each use."""
    seconds: float
    """From the deleted rows in memory to the new parameters."""
    preparing: float = 0.0
    """Seconds of ``delta``, where another method gave the parameters and the rebase needs its u."""
    known: tuple[NDArray[np.int64], NDArray[np.float64]] | None = None
    """Iterations (k,), ascending, and w_t (k, P) there: read for the update, kept for its estimate."""
    mean: FrozenMean | None = None
    """Of kind frozen: the terms of the rows that stay, at the old w_{t_s}; None where no row was used."""
