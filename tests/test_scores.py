"""Scores of clusterings: hand-computed answers, edges, invariants and memory."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge.pipeline import scores
from expunge.pipeline.scores import (
    loss_ratio,
    mean_loss,
    normalized_mutual_information,
    silhouette,
    subsample,
)

# ---- loss


def test_mean_loss_of_a_squares_corners() -> None:
    corners = [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
    assert mean_loss(corners, [[0.0, 0.0], [1.0, 1.0]]) == 0.5
    assert mean_loss(corners, [[0.5, 0.5]]) == 0.5
    assert mean_loss(corners, [[0.5, 0.0], [0.5, 1.0], [9.0, 9.0]]) == 0.25
    assert mean_loss(corners, corners) == 0.0


def test_mean_loss_does_not_depend_on_the_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).random((100, 3), np.float32)
    nearest = ((x[:, None, :].astype(float) - x[None, :7]) ** 2).sum(axis=2).min(axis=1)
    monkeypatch.setattr(scores, "_ROWS_AT_A_TIME", 3 * 8)
    assert mean_loss(x, x[:7]) == pytest.approx(nearest.mean(), rel=1e-12)


def test_loss_ratio_and_its_edges() -> None:
    assert loss_ratio(3.0, 2.0) == 1.5
    assert loss_ratio(0.0, 2.0) == 0.0
    assert loss_ratio(0.0, 0.0) == 1.0
    assert loss_ratio(1e-300, 0.0) == math.inf
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"loss is {bad}"):
            loss_ratio(bad, 1.0)
        with pytest.raises(ValueError, match=f"baseline is {bad}"):
            loss_ratio(1.0, bad)


@pytest.mark.parametrize(
    ("x", "centroids", "words"),
    [
        ([1.0, 2.0], [[1.0]], r"rows have shape \(2,\)"),
        ([[1.0, 2.0]], [[1.0]], r"centroids \(1, 1\)"),
        ([[1.0]], np.empty((0, 1)), "1 rows and 0 centroids"),
        (np.empty((0, 1)), [[1.0]], "0 rows and 1 centroids"),
    ],
)
def test_mean_loss_refuses_other_shapes(x: Any, centroids: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        mean_loss(x, centroids)


# ---- silhouette

LINE = np.array([[0.0], [1.0], [4.0], [6.0]])
"""In the clusters 0, 0, 1, 1: (within, to the other) = (1, 5), (1, 4), (2, 3.5), (2, 5.5)."""


def test_silhouette_of_four_points() -> None:
    expected = (4 / 5 + 3 / 4 + 1.5 / 3.5 + 3.5 / 5.5) / 4
    assert silhouette(LINE, [0, 0, 1, 1]) == pytest.approx(expected, rel=1e-6)
    assert silhouette(LINE, [7, 7, -2, -2], seed=9) == pytest.approx(expected, rel=1e-6)
    # A row alone counts 0: 0 and 1 are 1 apart, 4 is 4 and 3 from them; 6 is 6, 5 and 2 away.
    alone = ((4 - 1) / 4 + (3 - 1) / 3 + 0 + 0) / 4
    assert silhouette(LINE, [0, 0, 1, 2]) == pytest.approx(alone, rel=1e-6)


def test_silhouette_is_none_where_it_is_not_defined() -> None:
    assert silhouette(LINE, [3, 3, 3, 3]) is None
    assert silhouette(LINE, [0, 1, 2, 3]) is None
    assert silhouette(LINE[:1], [0]) is None
    assert silhouette(np.empty((0, 2)), np.empty(0, int)) is None


def test_silhouette_of_many_rows_is_that_of_a_fixed_choice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scores, "SILHOUETTE_ROWS", 50)
    random = np.random.default_rng(3)
    x, labels = random.random((400, 2)), random.integers(0, 3, 400)
    chosen = subsample(400, seed=1)
    assert len(chosen) == 50 and (np.diff(chosen) > 0).all()
    assert silhouette(x, labels, seed=1) == silhouette(x[chosen], labels[chosen], seed=5)
    assert silhouette(x, labels, seed=1) == silhouette(x, labels, seed=1)
    assert silhouette(x, labels, seed=1) != silhouette(x, labels, seed=2)
    # All rows chosen lie in one cluster, though others do not.
    only = np.ones(400, int)
    only[chosen] = 0
    assert silhouette(x, only, seed=1) is None


def test_choice_of_rows() -> None:
    assert subsample(10_000, seed=4).tolist() == list(range(10_000))
    chosen = subsample(10_001, seed=4)
    assert len(chosen) == 10_000 and len(np.unique(chosen)) == 10_000
    assert not np.array_equal(chosen, subsample(10_001, seed=5))
    counts = np.bincount(subsample(100_000, seed=4) // 10_000, minlength=10)
    assert (np.abs(counts - 1000) < 150).all(), "rows come from everywhere"


def test_silhouette_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"rows have shape \(4, 1\), but there are 3 labels"):
        silhouette(LINE, [0, 0, 1])
    with pytest.raises(ValueError, match="type float64; integers"):
        silhouette(LINE, [0.0, 0.5, 1.0, 1.0])


@pytest.mark.slow
def test_memory_of_a_large_silhouette() -> None:
    """10,000 rows chosen of 784 features, in a fresh process whose peak is its own."""
    code = """
import resource
import numpy as np
from expunge.pipeline.scores import silhouette
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
x = np.random.default_rng(0).random((20_000, 784), np.float32)
silhouette(x[:100], np.arange(100) % 10)
before = peak()
silhouette(x, np.arange(20_000) % 10)
print(peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 300, "MiB"


# ---- normalized mutual information


def test_mutual_information_by_hand() -> None:
    classes = [0, 0, 1, 1]
    information = 0.5 * math.log(4 / 3) + 0.25 * math.log(2 / 3) + 0.25 * math.log(2)
    entropies = math.log(2), -0.75 * math.log(0.75) - 0.25 * math.log(0.25)
    found = normalized_mutual_information(classes, [0, 0, 0, 1])
    assert found == pytest.approx(information / (sum(entropies) / 2), rel=1e-9)
    assert found == pytest.approx(0.343711, abs=1e-5)
    assert normalized_mutual_information(classes, [5, 5, -1, -1]) == pytest.approx(1.0)
    assert normalized_mutual_information(classes, [0, 1, 0, 1]) == pytest.approx(0.0, abs=1e-12)


def test_mutual_information_at_the_edges() -> None:
    assert normalized_mutual_information([0, 0, 0], [4, 4, 4]) == 1.0
    assert normalized_mutual_information([0, 1, 2], [4, 4, 4]) == 0.0
    assert normalized_mutual_information([7], [1]) == 1.0
    with pytest.raises(ValueError, match="0 classes and 0 labels"):
        normalized_mutual_information(np.empty(0, int), np.empty(0, int))
    with pytest.raises(ValueError, match="2 classes and 3 labels"):
        normalized_mutual_information([0, 1], [0, 1, 2])
    with pytest.raises(ValueError, match="classes have shape"):
        normalized_mutual_information([[0, 1]], [0, 1])


@given(
    pairs=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30),
    names=st.permutations(range(4)),
)
def test_mutual_information_knows_no_names(pairs: list[tuple[int, int]], names: list[int]) -> None:
    classes, labels = np.array(pairs).T
    found = normalized_mutual_information(classes, labels)
    assert 0.0 <= found <= 1.0 + 1e-12
    renamed = np.array(names)[labels]
    assert normalized_mutual_information(classes, renamed) == pytest.approx(found, abs=1e-9)
    assert normalized_mutual_information(labels, classes) == pytest.approx(found, abs=1e-9)
    assert normalized_mutual_information(classes, classes) == pytest.approx(1.0)
