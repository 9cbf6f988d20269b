"""Generated rows: reproducible block by block, and HIGGS-like rows with the statistics of HIGGS.

The statistics are compared with reference_stats.json (18,477 rows of HIGGS): the generated value
must lie within four standard errors of a sample of *that* size. This holds for all of: means;
standard deviations (normal-theory error, the stricter one here); seven quantiles of every
feature; the three probabilities of every b-tag; class prior; class means; all 378 pairwise
correlations; logistic regression's accuracy. It does not hold for the standard deviations within
a class: with a planted logistic label the classes differ in spread less than in HIGGS.
"""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from expunge.storage.errors import BadInputError
from expunge.storage.generators import (
    BotnetLike,
    CovtypeLike,
    GaussianMixture,
    GeneratedRows,
    HeartbeatLike,
    HiggsLike,
)
from expunge.storage.higgs_like import load_constants, planted_probabilities
from expunge.storage.rows import RowSource

REFERENCE = Path(__file__).parents[2] / "shared" / "data" / "reference_stats.json"
LIMIT = 4.0
"""Standard errors."""

Rows = tuple[NDArray[np.float32], NDArray[np.float64]]


def read_all(source: RowSource) -> Rows:
    blocks = list(source.blocks())
    labels = [block.y for block in blocks if block.y is not None]
    return np.concatenate([block.x for block in blocks]), np.concatenate(labels)


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    if not REFERENCE.exists():
        pytest.skip("needs ../shared/data/reference_stats.json")
    table: dict[str, Any] = json.loads(REFERENCE.read_text())["higgs"]
    return table


@pytest.fixture(scope="module")
def higgs() -> Rows:
    return read_all(HiggsLike(400_000, seed=2014))


def assert_near(
    measured: NDArray[Any], expected: Any, standard_error: NDArray[Any] | float
) -> None:
    errors = np.abs(measured - np.asarray(expected)) / standard_error
    assert errors.max() <= LIMIT, f"{errors.max():.1f} standard errors at {errors.argmax()}"


# Streams


def sources(rows: int, seed: int) -> list[RowSource]:
    return [
        HiggsLike(rows, seed),
        CovtypeLike(rows, seed),
        HeartbeatLike(rows, seed),
        BotnetLike(rows, seed),
        GaussianMixture(rows, 3, 5, seed),
        GaussianMixture(rows, 2_000, 4, seed),
    ]


@pytest.mark.parametrize("short", [1, 7, 2_097, 65_536, 65_537])
def test_first_rows_do_not_depend_on_the_number_of_rows(short: int) -> None:
    long = sources(70_000, 3)[:5] + sources(4_200, 3)[5:]
    for few, many in zip(sources(short, 3), long, strict=True):
        if many.expected_rows is None or many.expected_rows < short:
            continue
        x, y = read_all(few)
        more_x, more_y = read_all(many)
        assert x.shape[0] == short
        np.testing.assert_array_equal(x, more_x[:short])
        np.testing.assert_array_equal(y, more_y[:short])


def test_same_parameters_give_the_same_rows_and_other_seeds_others() -> None:
    for first, again, other in zip(sources(500, 8), sources(500, 8), sources(500, 9), strict=True):
        x, y = read_all(first)
        np.testing.assert_array_equal(x, read_all(again)[0])
        np.testing.assert_array_equal(y, read_all(again)[1])
        differ = x != read_all(other)[0]
        # Zeros of one-hot blocks and of padded beats often stay.
        assert differ.any(axis=1).all() and differ.any(axis=0).mean() > 0.8


@pytest.mark.parametrize(
    "source",
    [
        HiggsLike(140_000, 5),
        CovtypeLike(140_000, 5),
        HeartbeatLike(50_000, 5),
        BotnetLike(75_000, 5),
        GaussianMixture(9_000, 1_000, 3, 5),
    ],
    ids=lambda s: s.kind,
)
def test_blocks_can_be_made_alone_and_cover_all_rows(source: GeneratedRows) -> None:
    blocks, shares = [], []
    for block in source.blocks():
        blocks.append(block)
        shares.append(source.progress)
    assert len(blocks) == source.block_count == 3
    assert shares == sorted(shares) and shares[-1] == 1.0
    np.testing.assert_array_equal(
        np.concatenate([block.rows for block in blocks]), np.arange(source.expected_rows)
    )
    for index in (2, 0, 1):
        alone = source.block(index)
        np.testing.assert_array_equal(alone.x, blocks[index].x)
        assert alone.y is not None and blocks[index].y is not None
        np.testing.assert_array_equal(alone.y, blocks[index].y)
    assert not np.array_equal(blocks[0].x[:100], blocks[1].x[:100])
    with pytest.raises(BadInputError, match="block 3 does not exist: there are 3"):
        source.block(3)


def test_blocks_have_the_promised_types() -> None:
    for source in sources(300, 1):
        block = next(iter(source.blocks()))
        assert block.rows.dtype == np.int64 and block.x.dtype == np.float32
        assert block.y is not None and block.y.dtype == np.float64
        assert block.x.flags.c_contiguous and block.x.shape == (300, len(source.feature_names))
        assert np.isfinite(block.x).all()
        assert source.dropped == 0 and source.expected_rows == 300


def test_wide_rows_come_in_smaller_blocks() -> None:
    block = next(iter(GaussianMixture(100_000, 50_000, 2, 0).blocks()))
    assert block.x.nbytes <= 16 * 2**20


def test_provenance_is_enough_to_make_the_rows_again() -> None:
    higgs = HiggsLike(10, 3).provenance
    assert (higgs["generator"], higgs["rows"], higgs["seed"]) == ("higgs-like-1", 10, 3)
    assert higgs["constants"] == load_constants().digest
    for source, kind in ((CovtypeLike(10, 3), "covtype"), (HeartbeatLike(10, 3), "heartbeat")):
        told = source.provenance
        assert (told["generator"], told["rows"], told["seed"]) == (f"{kind}-like-1", 10, 3)
        assert len(str(told["constants"])) == 16
    assert BotnetLike(10, 3).provenance == {
        "generator": "botnet-like-1",
        "rows": 10,
        "seed": 3,
        "numpy": np.__version__,
    }
    assert GaussianMixture(10, 4, 2, 3, 0.5).provenance["deviation"] == 0.5
    mixture = GaussianMixture(10, 4, 2, 3).provenance
    assert mixture == {
        "generator": "gaussian-mixture-1",
        "rows": 10,
        "seed": 3,
        "numpy": np.__version__,
        "features": 4,
        "clusters": 2,
        "deviation": 0.05,
    }


@pytest.mark.parametrize(("rows", "seed", "message"), [(0, 1, "rows is 0"), (5, -1, "seed is -1")])
def test_rows_like_published_ones_refuse_bad_parameters(rows: int, seed: int, message: str) -> None:
    for kind in (HiggsLike, CovtypeLike, HeartbeatLike, BotnetLike):
        with pytest.raises(BadInputError, match=message):
            kind(rows, seed)


@pytest.mark.parametrize("position", range(4))
def test_gaussian_mixture_refuses_bad_parameters(position: int) -> None:
    parameters = [5, 5, 5, 5]
    parameters[position] = -2
    name = ("rows", "features", "clusters", "seed")[position]
    with pytest.raises(BadInputError, match=f"{name} is -2, but must be at least"):
        GaussianMixture(*parameters)


# HIGGS-like rows against the reference


def test_higgs_columns_are_those_of_the_reference(reference: dict[str, Any]) -> None:
    source = HiggsLike(1, 0)
    assert list(source.feature_names) == reference["columns"]
    assert source.label_name == "label"


def test_higgs_means_and_deviations(higgs: Rows, reference: dict[str, Any]) -> None:
    x = higgs[0].astype(np.float64)
    deviation, n = np.array(reference["std"]), reference["n"]
    assert_near(x.mean(axis=0), reference["mean"], deviation / np.sqrt(n))
    assert_near(x.std(axis=0), deviation, deviation / np.sqrt(2 * n))


def test_higgs_quantiles(higgs: Rows, reference: dict[str, Any]) -> None:
    """Share of rows at or below the reference's quantile; b-tags jump there, so they bracket it."""
    tagged = np.array([name in reference["btag_values"] for name in reference["columns"]])
    rounding = np.where(tagged, 0.002, 0.0)
    for text, quantiles in reference["quantiles"].items():
        p, cut = float(text), np.array(quantiles)
        error = LIMIT * np.sqrt(p * (1 - p) / reference["n"])
        assert ((higgs[0] <= cut + rounding).mean(axis=0) >= p - error).all(), text
        assert ((higgs[0] < cut - rounding).mean(axis=0) <= p + error).all(), text


def test_higgs_b_tags_take_three_values(higgs: Rows, reference: dict[str, Any]) -> None:
    for name, probabilities in reference["btag_values"].items():
        column = higgs[0][:, reference["columns"].index(name)]
        values, counts = np.unique(column, return_counts=True)
        np.testing.assert_allclose(values, [float(v) for v in probabilities], atol=0.006)
        p = np.array(list(probabilities.values()))
        assert_near(counts / counts.sum(), p, np.sqrt(p * (1 - p) / reference["n"]))


def test_higgs_correlations(higgs: Rows, reference: dict[str, Any]) -> None:
    pairs = np.triu_indices(28, 1)
    expected = np.array(reference["corr"])[pairs]
    measured = np.asarray(np.corrcoef(higgs[0].astype(np.float64), rowvar=False))[pairs]
    assert_near(measured, expected, (1 - expected**2) / np.sqrt(reference["n"]))


def test_higgs_class_prior_and_class_means(higgs: Rows, reference: dict[str, Any]) -> None:
    x, y = higgs
    for label, count in reference["class_counts"].items():
        rows, prior = y == float(label), count / reference["n"]
        error = np.sqrt(prior * (1 - prior) / reference["n"])
        assert_near(np.array([rows.mean()]), prior, error)
        of_class = reference["per_class"][label]
        error_of_mean = np.array(of_class["std"]) / np.sqrt(count)
        assert_near(x[rows].mean(axis=0, dtype=np.float64), of_class["mean"], error_of_mean)


def test_logistic_regression_is_about_as_accurate_as_on_higgs(
    higgs: Rows, reference: dict[str, Any]
) -> None:
    x, y = higgs
    x = (x[:200_000] - np.float32(reference["mean"])) / np.float32(reference["std"])
    model = LogisticRegression().fit(x[:100_000], y[:100_000])
    accuracy = model.score(x[100_000:], y[100_000:200_000])
    p = reference["logreg_acc"]
    assert_near(np.array([accuracy]), p, np.sqrt(p * (1 - p) / reference["n"]))


# HIGGS-like rows by themselves


def test_labels_follow_the_planted_probabilities(higgs: Rows) -> None:
    x, y = higgs
    p = planted_probabilities(x)
    assert set(np.unique(y)) == {0.0, 1.0}
    order = np.argsort(p)
    for rows in np.array_split(order, 10):
        error = np.sqrt((p[rows] * (1 - p[rows])).mean() / rows.size)
        assert abs(y[rows].mean() - p[rows].mean()) <= LIMIT * error
    assert p[order[-1000:]].mean() - p[order[:1000]].mean() > 0.5  # the bins are far apart


def test_higgs_values_are_physical(higgs: Rows) -> None:
    names = HiggsLike(1, 0).feature_names
    for name, column in zip(names, higgs[0].T, strict=True):
        if name.endswith(("pT", "_pt", "magnitude")) or name.startswith("m_"):
            assert column.min() > 0, name
        if name.endswith(("_phi", "_eta")):
            assert np.abs(column).max() < (1.75 if name.endswith("_phi") else 3.0), name


def test_continuous_features_have_no_heaps_at_their_ends(higgs: Rows) -> None:
    for name, column in zip(HiggsLike(1, 0).feature_names, higgs[0].T, strict=True):
        if not name.endswith("btag"):
            assert np.count_nonzero(column == column.max()) < 10, name
            assert np.count_nonzero(column == column.min()) < 10, name


def test_copula_factor_belongs_to_a_correlation_matrix() -> None:
    law = load_constants().law
    factor = law.columns_of_factor.T
    np.testing.assert_allclose((factor**2).sum(axis=1), 1.0, atol=1e-5)
    assert (np.diag(factor) > 0).all() and not np.triu(factor, 1).any()
    assert (np.diff(np.delete(law.knots, law.tags, axis=0), axis=1) >= 0).all()


# Gaussian mixture


def test_mixture_components_lie_around_their_centres() -> None:
    source = GaussianMixture(60_000, 6, 5, seed=4)
    x, y = read_all(source)
    assert source.label_name == "cluster" and source.feature_names[5] == "x5"
    assert ((source.centres >= 0) & (source.centres < 1)).all()
    for cluster in range(5):
        rows = x[y == cluster].astype(np.float64)
        assert abs(rows.shape[0] - 12_000) < 5 * np.sqrt(60_000 * 0.2 * 0.8)
        error = 0.05 / np.sqrt(rows.shape[0])
        assert np.abs(rows.mean(axis=0) - source.centres[cluster]).max() < 5 * error
        np.testing.assert_allclose(rows.std(axis=0), 0.05, rtol=0.05)
        correlations = np.asarray(np.corrcoef(rows, rowvar=False))[np.triu_indices(6, 1)]
        assert np.abs(correlations).max() < 5 / np.sqrt(rows.shape[0])


def test_mixture_centres_are_spread_and_depend_on_the_seed() -> None:
    few, many = GaussianMixture(1, 2, 50, seed=1), GaussianMixture(9, 2, 50, seed=1)
    np.testing.assert_array_equal(few.centres, many.centres)
    assert not np.array_equal(few.centres, GaussianMixture(1, 2, 50, seed=2).centres)
    distances = [np.linalg.norm(a - b) for a, b in itertools.combinations(few.centres, 2)]
    assert min(distances) < 0.1 < np.median(distances)  # some neighbours overlap, most do not


def test_a_single_cluster_is_allowed() -> None:
    x, y = read_all(GaussianMixture(20, 1, 1, 0))
    assert x.shape == (20, 1) and not y.any()


@pytest.mark.parametrize("rows", [83, 83 * 3 + 1, 83 * 9])
def test_blocks_made_ahead_come_in_order(rows: int) -> None:
    """As many as there are, each as it is by itself; whoever stops early leaves no thread behind."""
    source = GaussianMixture(rows, 50_000, 2, 0)
    found = list(source.blocks())
    assert len(found) == source.block_count
    for index, block in enumerate(found):
        alone = source.block(index)
        assert (block.rows == alone.rows).all() and (block.x == alone.x).all()
    assert source.progress == 1.0
    before = threading.active_count()
    blocks = source.blocks()
    next(blocks)
    blocks.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before
