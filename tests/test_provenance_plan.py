"""Which kind of provenance is kept: each branch of the planner, with its reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from expunge.jobs.errors import JobError
from expunge.jobs.provenance_plan import Shape, memory_bytes, plan_provenance
from expunge.pipeline.losses import Loss
from expunge.pipeline.provenance import packed_size
from expunge.pipeline.regression import provenance_bytes

SMALL = Shape(Loss.LOGISTIC, 29, 1000, 2000)
WIDE = Shape(Loss.SOFTMAX, 1000, 1000, 500)
GIB = 1 << 30
HUGE = 1 << 60


def test_exact_where_a_step_reads_far_less() -> None:
    plan = plan_provenance(SMALL, None, None, GIB, HUGE)
    assert (plan.kind, plan.dtype) == ("exact", "float32")
    # 4 b P numbers of BaseL against P^2.
    assert plan.why == f"fits; a step reads {4 * 2000 / 29:.0f} times less than BaseL's"
    assert plan.disk == provenance_bytes("exact", 29, 1000, "float32")
    assert plan.disk == 1000 * (2 * 8 * 29 + 8 + 4 * packed_size(29))


def test_exact_for_linear_models_that_fit() -> None:
    shape = Shape(Loss.LINEAR, 1000, 100, 10)
    plan = plan_provenance(shape, None, None, 8 * GIB, HUGE)
    assert (plan.kind, plan.dtype) == ("exact", "float64")
    assert plan.why == "fits; exact for linear models"


def test_averaged_where_exact_would_not_pay() -> None:
    plan = plan_provenance(WIDE, None, None, 8 * GIB, HUGE)
    assert plan.kind == "averaged" and plan.why == "exact would read but 2.0 times less than BaseL"
    assert plan.disk == 1000 * (2 * 8 * 1000 + 8) + 4 * 10 * 1000 * 1001


def test_exact_curvature_larger_than_a_mini_batch_does_not_pay() -> None:
    """Cov (extended): 7 classes of 55 columns in mini-batches of 1,000 rows."""
    shape = Shape(Loss.SOFTMAX, 385, 40_000, 1000, None, 55)
    plan = plan_provenance(shape, None, None, HUGE, HUGE)
    assert plan.kind == "averaged" and "more numbers than its mini-batch has" in plan.why
    larger = replace(shape, batch_rows=10_000)
    assert plan_provenance(larger, None, None, HUGE, HUGE).kind == "exact"


@pytest.mark.parametrize("loss", [Loss.LINEAR, Loss.SOFTMAX])
def test_averaged_where_exact_does_not_fit(loss: Loss) -> None:
    plan = plan_provenance(replace(WIDE, loss=loss), None, None, 8 * GIB, GIB)
    assert plan.kind == "averaged"
    assert plan.why.startswith("exact needs") and "of disk are allowed" in plan.why


def test_exact_where_only_averaged_does_not_fit() -> None:
    # One iteration has one block of either kind: the decomposition takes more memory.
    shape = Shape(Loss.SOFTMAX, 200, 1, 10)
    memory = memory_bytes("exact", shape, "float32")
    assert memory < memory_bytes("averaged", shape, "float32")
    plan = plan_provenance(shape, None, None, memory, HUGE)
    assert plan.kind == "exact" and plan.why.startswith("averaged needs")


@pytest.mark.parametrize(("memory", "disk"), [(1, HUGE), (HUGE, 1)])
def test_nothing_fits(memory: int, disk: int) -> None:
    with pytest.raises(JobError, match="no provenance fits: exact needs") as caught:
        plan_provenance(SMALL, None, None, memory, disk)
    assert "-p provenance=none" in str(caught.value)
    assert "Raise --memory or --disk" in str(caught.value)


def test_what_is_asked_for_is_taken_if_it_fits() -> None:
    for kind in ("exact", "averaged", "none"):
        for dtype in ("float32", "float64"):
            plan = plan_provenance(SMALL, kind, dtype, GIB, HUGE)
            assert (plan.kind, plan.dtype, plan.why) == (kind, dtype, "asked for")
    assert plan_provenance(SMALL, "none", None, 1, 1).disk == 0


@pytest.mark.parametrize(
    ("asked", "shape", "memory", "disk", "instead"),
    [
        ("exact", WIDE, 8 * GIB, GIB, "averaged"),
        ("exact", SMALL, GIB, 1000, "none"),
        ("averaged", Shape(Loss.SOFTMAX, 200, 1, 10), 850_000, HUGE, "exact"),
        ("averaged", SMALL, 1000, GIB, "none"),
    ],
)
def test_what_is_asked_for_and_does_not_fit_names_what_does(
    asked: str, shape: Shape, memory: int, disk: int, instead: str
) -> None:
    with pytest.raises(JobError, match=f"provenance={asked} needs .* of memory; ") as caught:
        plan_provenance(shape, asked, None, memory, disk)
    assert f"provenance={instead} fits" in str(caught.value)
    assert plan_provenance(shape, instead, None, memory, disk).kind == instead


def test_memory_grows_with_what_a_block_holds() -> None:
    for kind in ("exact", "averaged"):
        small = memory_bytes(kind, SMALL, "float32")
        assert 0 < small < memory_bytes(kind, SMALL, "float64")
        assert small < memory_bytes(kind, replace(SMALL, parameters=58), "float32")
        assert small < memory_bytes(kind, replace(SMALL, iterations=4000), "float32")
    assert memory_bytes("none", WIDE, "float64") == 0
