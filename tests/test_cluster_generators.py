"""Generated rows for clustering: Gaussians that overlap as the k-means paper's, and Botnet-like rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.metrics import normalized_mutual_info_score
from support import Cli

from expunge.jobs.importing import source_of
from expunge.storage import botnet_like
from expunge.storage.errors import BadInputError
from expunge.storage.generators import BotnetLike, GaussianMixture
from expunge.storage.rows import RowSource

LIMIT = 4.0
"""Standard errors."""

Rows = tuple[NDArray[np.float32], NDArray[np.float64]]


def read_all(source: RowSource) -> Rows:
    blocks = list(source.blocks())
    labels = [block.y for block in blocks if block.y is not None]
    return np.concatenate([block.x for block in blocks]), np.concatenate(labels)


# Gaussian mixture


@pytest.mark.parametrize("deviation", [0.0, -0.1, np.nan, np.inf, 1e38])
def test_gaussian_mixture_refuses_a_deviation_that_gives_no_numbers(deviation: float) -> None:
    with pytest.raises(BadInputError, match="deviation is .* above zero and finite"):
        GaussianMixture(5, 5, 5, 5, deviation)


def test_deviation_scales_the_noise_alone() -> None:
    near, far = GaussianMixture(500, 3, 4, seed=2), GaussianMixture(500, 3, 4, 2, deviation=0.5)
    np.testing.assert_array_equal(near.centres, far.centres)
    (x, y), (wide, same) = read_all(near), read_all(far)
    np.testing.assert_array_equal(y, same)
    centres = near.centres[y.astype(int)]
    np.testing.assert_allclose(wide - centres, (x - centres) * 10, atol=1e-5)


def test_overlapping_mixture_is_as_hard_as_the_papers() -> None:
    """k-means agrees with the components by 0.32; they vary with the seed, so several are taken."""
    found = []
    for seed in range(12):
        x, y = read_all(GaussianMixture(10_000, 25, 5, seed, GaussianMixture.OVERLAPPING))
        scaled = (x - x.min(axis=0)) / (x.max(axis=0) - x.min(axis=0))
        labels = KMeans(5, n_init=1, random_state=seed, max_iter=10, tol=0).fit(scaled).labels_
        found.append(normalized_mutual_info_score(y, labels))
    assert np.mean(found) == pytest.approx(0.32, abs=0.04)
    x, y = read_all(GaussianMixture(10_000, 25, 5, 0))
    labels = KMeans(5, n_init=5, random_state=0).fit(x).labels_
    assert normalized_mutual_info_score(y, labels) > 0.99


# Botnet


@pytest.fixture(scope="module")
def botnet() -> Rows:
    return read_all(BotnetLike(60_000, seed=4))


def test_botnet_has_the_columns_and_rows_of_the_set() -> None:
    names = BotnetLike(1, 0).feature_names
    assert len(names) == len(set(names)) == 115 and botnet_like.ROWS == 1_018_298
    assert names[:4] == ("MI_dir_L5_weight", "MI_dir_L5_mean", "MI_dir_L5_variance", names[3])
    assert names[3] == "MI_dir_L3_weight" and names[-1] == "HpHp_L0.01_pcc"
    assert sum("L0.1_" in name for name in names) == 23
    assert BotnetLike(1, 0).label_name == "class"


def test_botnet_classes_have_their_shares(botnet: Rows) -> None:
    counts = np.bincount(botnet[1].astype(int), minlength=11)
    share = np.diff(BotnetLike(1, 0).law.cumulative, prepend=0.0)
    assert counts.size == 11 and share.max() > 4 * share.min()
    assert share[0] == pytest.approx(49_548 / 1_018_298) and share.sum() == pytest.approx(1.0)
    assert (np.abs(counts / 60_000 - share) < LIMIT * np.sqrt(share * (1 - share) / 60_000)).all()


def test_botnet_columns_are_positive_and_heavy_tailed(botnet: Rows) -> None:
    x = botnet[0].astype(np.float64)
    assert x.min() > 0 and np.isfinite(x).all()
    deviations = (x - x.mean(axis=0)) / x.std(axis=0)
    skewness = (deviations**3).mean(axis=0)
    assert skewness.min() > 0.3 and np.median(skewness) > 1.0
    for kind in range(11):
        rows = x[botnet[1] == kind]
        assert (rows.mean(axis=0) > np.median(rows, axis=0)).all(), kind


def test_botnet_windows_go_together_more_than_statistics_than_streams(botnet: Rows) -> None:
    """Within a class, where no class's location adds to it."""
    rows = botnet[0][botnet[1] == 9].astype(np.float64)
    correlations = np.asarray(np.corrcoef(rows, rowvar=False))
    law = BotnetLike(1, 4).law
    same = law.statistic[:, None] == law.statistic
    stream = law.stream[:, None] == law.stream
    off = ~np.eye(115, dtype=bool)
    assert np.median(correlations[same & off]) == pytest.approx(0.9, abs=0.05)
    assert np.median(correlations[stream & ~same]) == pytest.approx(0.5, abs=0.1)
    assert np.abs(np.median(correlations[~stream])) < 0.05
    assert correlations[same & off].min() > 0.7


def test_k_means_finds_structure_in_botnet(botnet: Rows) -> None:
    x, y = botnet[0][:20_000], botnet[1][:20_000]
    scaled = (x - x.min(axis=0)) / (x.max(axis=0) - x.min(axis=0))
    model = KMeans(11, n_init=1, random_state=0, max_iter=50).fit(scaled)
    assert normalized_mutual_info_score(y, model.labels_) > 0.5
    assert model.inertia_ < 0.6 * ((scaled - scaled.mean(axis=0)) ** 2).sum()


def test_botnet_laws_depend_on_the_seed() -> None:
    one, again, other = BotnetLike(9, 1).law, BotnetLike(70_000, 1).law, BotnetLike(9, 2).law
    np.testing.assert_array_equal(one.location, again.location)
    assert (one.location != other.location).all() and (one.location > 0).all()
    np.testing.assert_array_equal(one.cumulative, other.cumulative)


# The command line


def test_mixture_and_botnet_are_generated_by_command(cli: Cli, tmp_path: Path) -> None:
    cli("init", tmp_path / "ws")
    made = cli("data", "generate", "b", "--like", "botnet", "--rows", 200, "--seed", 3)
    assert (made["rows"], made["features"], made["label"]) == (200, 115, "class")
    made = cli("data", "generate", "g", "--like", "gaussian", "--rows", 300, "--deviation", 0.84)
    assert (made["rows"], made["features"], made["label"]) == (300, 25, "cluster")
    assert cli("data", "show", "g")["source"]["deviation"] == 0.84
    refused = cli(
        "data", "generate", "h", "--like", "gaussian", "--rows", 5, "--deviation", 0, code=2
    )
    assert "deviation is 0.0, but must be above zero" in refused
    refused = cli(
        "data", "generate", "h", "--like", "botnet", "--rows", 5, "--deviation", 1, code=2
    )
    assert "--features, --clusters and --deviation belong to --like gaussian" in refused


def test_a_job_recorded_before_deviations_is_opened_as_it_was() -> None:
    asked = {"kind": "generate", "like": "gaussian", "rows": 9, "features": 2, "clusters": 3}
    source = source_of({**asked, "seed": 1}, b"", lambda what, share: None)
    assert source.provenance["deviation"] == GaussianMixture.DEVIATION
