"""The planner's prices of kinds lowrank and frozen, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from regression_workspace import opened, start, train
from support import Cli

from expunge.jobs.errors import JobError
from expunge.jobs.provenance_plan import Shape, memory_bytes, plan_provenance
from expunge.jobs.regression_arrays import MEAN, SVD, TRACE
from expunge.pipeline.losses import Loss
from expunge.pipeline.regression import provenance_bytes
from expunge.storage.chunks import chunk_bytes

GIB = 1 << 30
HEARTBEAT = Shape(Loss.SOFTMAX, 5 * 189, 40_000, 500, 5 * 189)
"""Heartbeat (extended): 5 classes x (187 features, their copies' padding and the bias)."""


def test_the_planner_prices_the_new_kinds() -> None:
    shape = Shape(Loss.LOGISTIC, 2000, 1000, 600, 600)
    lowrank = plan_provenance(shape, "lowrank", None, GIB, 1 << 60)
    assert lowrank.disk == 1000 * (2 * 8 * 2000 + 8 + 2 * 4 * 600 * 2000 + 16)
    frozen = plan_provenance(shape, "frozen", None, GIB, 1 << 60)
    exact = provenance_bytes("exact", 2000, 1000, "float32")
    assert 0.65 * exact < frozen.disk < 0.75 * exact
    for kind in ("lowrank", "frozen"):
        small = memory_bytes(kind, shape, "float32")
        assert 0 < small < memory_bytes(kind, shape, "float64")


def test_the_price_of_low_rank_is_what_is_written(cli: Cli, tmp_path: Path) -> None:
    start(cli, tmp_path, "softmax")
    for kind in ("lowrank", "frozen"):
        train(cli, kind, "softmax", "-p", f"provenance={kind}", "-p", "dtype=float32")
        found = opened(tmp_path, kind)
        specs = found.version.specs
        names = (*TRACE, *(SVD if kind == "lowrank" else ("C", *MEAN)))
        written = sum(int(np.prod(specs[n].shape)) * specs[n].dtype.itemsize for n in names)
        size, tau = found.parameters.size, found.settings.iterations
        priced = provenance_bytes(kind, size, tau, "float32", found.settings.rank or None)
        assert written == pytest.approx(priced, rel=0.1)
        assert all(chunk_bytes(specs[n]) > 0 for n in names)


def test_exact_curvature_of_heartbeat_extended_is_refused() -> None:
    disk = 60 * GIB
    exact = provenance_bytes("exact", 945, 40_000, "float32") - 2 * 8 * 945 * 40_000
    assert exact == pytest.approx(71e9, rel=0.02)
    with pytest.raises(JobError, match="provenance=exact needs 72.1 GB of disk") as caught:
        plan_provenance(HEARTBEAT, "exact", None, GIB, disk)
    assert "provenance=averaged fits" in str(caught.value)
    with pytest.raises(JobError, match="provenance=lowrank needs .* provenance=averaged fits"):
        plan_provenance(HEARTBEAT, "lowrank", None, GIB, disk)
    plan = plan_provenance(HEARTBEAT, None, None, GIB, disk)
    assert plan.kind == "averaged" and plan.why.startswith("exact needs 72.1 GB of disk")


def test_low_rank_is_taken_where_nothing_else_fits() -> None:
    """Tiny mini-batches of many parameters: the averages' square matrices don't fit."""
    shape = Shape(Loss.LOGISTIC, 20_000, 40, 5, 5)
    plan = plan_provenance(shape, None, None, 64 * GIB, GIB)
    assert plan.kind == "lowrank" and "averaged 16 GB" in plan.why.replace("needs ", "")
