"""Generated rows for regressions against the statistics of the data sets that they resemble.

Covtype-like rows are compared with reference_stats.json (92,962 rows): means, also those of each
class, lie within four standard errors of a sample of that size, or within one in a thousand where a
column is nearly constant; correlations within 0.04; quantiles within 4% of the rows. Heartbeat-like
rows are compared with the same file and, class by class, with the beats themselves. Softmax
regression, fitted by scikit-learn on 30,000 rows, is as accurate as on the real rows within 2%.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from support import Cli

from expunge.storage import covtype_like, heartbeat_like
from expunge.storage.generators import CovtypeLike, HeartbeatLike
from expunge.storage.importers import open_features
from expunge.storage.rows import RowSource
from expunge.storage.tabular_published import PUBLISHED

LIMIT = 4.0
"""Standard errors."""
AREAS, SOILS = slice(10, 14), slice(14, 54)

Rows = tuple[NDArray[np.float64], NDArray[np.float64]]


def read_all(source: RowSource) -> Rows:
    blocks = list(source.blocks())
    labels = [block.y for block in blocks if block.y is not None]
    x = np.concatenate([block.x for block in blocks])
    return x.astype(np.float64), np.concatenate(labels)


@pytest.fixture(scope="module")
def covtype() -> Rows:
    return read_all(CovtypeLike(300_000, seed=7))


@pytest.fixture(scope="module")
def heartbeat() -> Rows:
    return read_all(HeartbeatLike(100_000, seed=7))


@pytest.fixture
def reference(real_data: Path) -> dict[str, Any]:
    table: dict[str, Any] = json.loads((real_data / "reference_stats.json").read_text())
    return table


def accuracy(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Share of 30,000 rows that a softmax regression on 30,000 others is right about."""
    spread = x.std(axis=0)
    x = (x[:60_000] - x.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    model = LogisticRegression(tol=0.01, max_iter=200).fit(x[:30_000], y[:30_000])
    return float(model.score(x[30_000:], y[30_000:60_000]))


def assert_means(x: NDArray[np.float64], mean: Any, deviation: Any, count: int) -> None:
    error = np.abs(x.mean(axis=0) - np.array(mean))
    allowed = np.maximum(LIMIT * np.array(deviation) / np.sqrt(count), 0.001)
    assert (error <= allowed).all(), (
        f"{(error / allowed).max():.2f} at {(error / allowed).argmax()}"
    )


# Covtype


def test_covtype_columns_are_those_of_the_reference(reference: dict[str, Any]) -> None:
    source = CovtypeLike(1, 0)
    assert list(source.feature_names) == reference["covtype_ramp"]["columns"]
    assert source.feature_names == PUBLISHED["covtype"].unlabelled
    assert source.label_name == PUBLISHED["covtype"].label


def test_covtype_blocks_are_one_hot_and_measures_whole_numbers(covtype: Rows) -> None:
    x, y = covtype
    for block in (x[:, AREAS], x[:, SOILS]):
        assert (block.sum(axis=1) == 1).all() and set(np.unique(block)) == {0.0, 1.0}
    assert (x == np.rint(x)).all() and not np.signbit(x[x == 0]).any()
    assert set(np.unique(y)) == set(range(1, 8))
    lowest, highest = x[:, :10].min(axis=0), x[:, :10].max(axis=0)
    law = covtype_like.load_constants().law
    assert (lowest >= law.lowest).all() and (highest <= law.highest).all()


def test_covtype_means_and_deviations(covtype: Rows, reference: dict[str, Any]) -> None:
    x, expected = covtype[0], reference["covtype_ramp"]
    assert_means(x, expected["mean"], expected["std"], expected["n"])
    deviation = np.array(expected["std"])
    allowed = np.maximum(LIMIT * deviation / np.sqrt(2 * expected["n"]), 0.003)
    assert (np.abs(x.std(axis=0) - deviation) <= allowed).all()


def test_covtype_class_priors_and_means(covtype: Rows, reference: dict[str, Any]) -> None:
    x, y = covtype
    expected = reference["covtype_ramp"]
    for label, count in expected["class_counts"].items():
        prior, rows = count / expected["n"], y == float(label)
        error = np.sqrt(prior * (1 - prior) / expected["n"])
        assert abs(rows.mean() - prior) <= LIMIT * error
        of_class = expected["per_class"][label]
        assert_means(x[rows], of_class["mean"], of_class["std"], count)


def test_covtype_quantiles_and_correlations(covtype: Rows, reference: dict[str, Any]) -> None:
    x, expected = covtype[0][:, :10], reference["covtype_ramp"]
    for text, quantiles in expected["quantiles10"].items():
        cut, p = np.array(quantiles), float(text)
        assert ((x <= cut).mean(axis=0) >= p - 0.04).all(), text
        assert ((x < cut).mean(axis=0) <= p + 0.04).all(), text
    measured = np.asarray(np.corrcoef(x, rowvar=False))
    assert np.abs(measured - np.array(expected["corr10"])).max() < 0.04


def test_covtype_ground_tells_of_the_elevation(covtype: Rows) -> None:
    """Ground and measures depend on each other within a class, as they do in nature."""
    x, y = covtype
    rows = x[y == 2.0]
    low = rows[:, 0] < np.quantile(rows[:, 0], 0.2)
    high = rows[:, 0] > np.quantile(rows[:, 0], 0.8)
    difference = rows[low][:, SOILS].mean(axis=0) - rows[high][:, SOILS].mean(axis=0)
    assert np.abs(difference).max() > 0.1


def test_softmax_regression_is_about_as_accurate_as_on_covtype(
    covtype: Rows, reference: dict[str, Any]
) -> None:
    found = accuracy(*covtype)
    assert abs(found - reference["covtype_ramp"]["logreg_acc"]) < 0.02 and 0.70 < found < 0.75


def test_copula_factors_belong_to_correlation_matrices() -> None:
    law = covtype_like.load_constants().law
    np.testing.assert_allclose((law.factors**2).sum(axis=2), 1.0, atol=1e-3)
    assert (np.diagonal(law.factors, axis1=1, axis2=2) > 0).all()
    assert (np.diff(law.knots, axis=2) >= 0).all()
    assert (law.cumulative[:-1] < law.cumulative[1:]).all()
    assert law.cumulative[-1] == pytest.approx(1.0, abs=1e-6)


# Heartbeat


def test_heartbeat_columns_are_those_of_the_format(heartbeat: Rows) -> None:
    x, y = heartbeat
    source = HeartbeatLike(1, 0)
    assert source.feature_names == PUBLISHED["heartbeat"].unlabelled
    assert source.label_name == PUBLISHED["heartbeat"].label
    assert x.min() == 0.0 and x.max() == 1.0 and not np.signbit(x).any()
    assert set(np.unique(y)) == set(range(5))


def test_heartbeat_priors_means_and_deviations(heartbeat: Rows, reference: dict[str, Any]) -> None:
    x, y = heartbeat
    expected = reference["heartbeat"]
    priors = np.array(expected["counts"]) / expected["n"]
    measured = np.bincount(y.astype(int)) / y.size
    error = np.sqrt(priors * (1 - priors) / expected["n"] + priors * (1 - priors) / y.size)
    assert (np.abs(measured - priors) <= LIMIT * error).all()
    assert np.abs(x.mean(axis=0) - expected["mean"]).max() < 0.005
    assert np.abs(x.std(axis=0) - expected["std"]).max() < 0.006


def test_heartbeat_class_curves(heartbeat: Rows, real_data: Path) -> None:
    with np.load(real_data / "heartbeat_109441.npz") as arrays:
        real_x, real_y = arrays["X"].astype(np.float64), arrays["y"]
    x, y = heartbeat
    for label in range(5):
        rows, real = x[y == label], real_x[real_y == label]
        error = real.std(axis=0) * np.sqrt(1 / len(rows) + 1 / len(real))
        differ = np.abs(rows.mean(axis=0) - real.mean(axis=0))
        assert (differ <= np.maximum(LIMIT * error, 0.001)).all(), label
        allowed = 0.01 + 1.2 / np.sqrt(min(len(rows), len(real)))
        assert np.abs(rows.std(axis=0) - real.std(axis=0)).max() < allowed, label


def test_heartbeat_neighbours_move_together(heartbeat: Rows) -> None:
    rows = heartbeat[0][heartbeat[1] == 0.0][:, 10:60]
    correlations = np.asarray(np.corrcoef(rows, rowvar=False))
    assert np.median(np.diagonal(correlations, 1)) > 0.4


def test_softmax_regression_is_about_as_accurate_as_on_heartbeats(
    heartbeat: Rows, reference: dict[str, Any]
) -> None:
    found = accuracy(*heartbeat)
    assert abs(found - reference["heartbeat"]["logreg_acc"]) < 0.02


def test_heartbeat_variances_add_up() -> None:
    law = heartbeat_like.load_constants().law
    assert np.isfinite(law.own).all() and (law.own >= 0).all()
    assert heartbeat_like.load_constants().normals == law.common.shape[1] + 187


# The command line


@pytest.mark.parametrize(("like", "features"), [("covtype", 54), ("heartbeat", 187)])
def test_rows_are_generated_and_rows_of_the_format_predicted(
    cli: Cli, tmp_path: Path, like: str, features: int
) -> None:
    cli("init", tmp_path / "ws")
    made = cli("data", "generate", "g", "--like", like, "--rows", 300, "--seed", 3)
    assert (made["rows"], made["features"]) == (300, features)
    x = (CovtypeLike if like == "covtype" else HeartbeatLike)(300, 3).block(0).x
    path = tmp_path / "rows.csv"
    np.savetxt(path, x[:5], fmt="%.9g", delimiter=",")
    again = next(iter(open_features([path], like, PUBLISHED[like].unlabelled).blocks())).x
    np.testing.assert_array_equal(again, x[:5])
    refused = cli("data", "generate", "h", "--like", like, "--rows", 5, "--clusters", 2, code=2)
    assert "belong to --like gaussian" in refused
    refused = cli("data", "generate", "h", "--like", "moons", "--rows", 5, code=2)
    assert all(name in refused for name in ("known:", "botnet", "covtype", "heartbeat", "gaussian"))
