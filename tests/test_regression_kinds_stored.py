"""Kinds lowrank and frozen on stored models, through the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from regression_workspace import (
    D,
    afresh,
    arrays,
    chunks,
    delete,
    opened,
    start,
    stored_rows,
    train,
    visits_of,
)
from support import INLINE, Cli

from expunge.jobs.regression_arrays import SVD, TRACE
from expunge.jobs.regression_rows import cut
from expunge.jobs.regression_survey import rank_bound
from expunge.jobs.verifying_regression import FACTOR
from expunge.pipeline.provenance import packed_size

HESSIAN = ("-p", "hessian=true")
LOSSES = ["linear", "logistic", "softmax"]
MODELS = {
    f"{loss[:3]}-{kind}": (loss, "-p", f"provenance={kind}")
    for loss in LOSSES
    for kind in ("lowrank", "frozen")
}

UNFIT = ("lin-frozen", (6, 18))
"""Of so few iterations frozen curvature makes an error of a third of the change, which is found out
where the change is small."""


def only_rows(tmp_path: Path, units: list[int]) -> Path:
    lines = (tmp_path / "t.csv").read_text().splitlines()
    path = tmp_path / "only.csv"
    path.write_text("\n".join([lines[0], *(lines[1 + unit] for unit in units)]) + "\n")
    return path


def test_all_new_kinds_in_one_batch(cli: Cli, tmp_path: Path) -> None:
    start(cli, tmp_path, "logistic", n=2400)
    for name, how in MODELS.items():
        found = train(cli, name, *how)
        assert found["provenance"]["kind"] == name[4:]
    totals = dict.fromkeys(MODELS, 0.0)
    for units in ((5, 17, 400), (6, 18)):
        for name, report in delete(cli, *units).items():
            totals[name] += report["change"]
            if (name, units) == UNFIT:
                assert (report["action"], report["method"]) == ("retrained", "basel")
                assert "estimated error is of the order of the change" in report["reason"]
                continue
            assert (report["action"], report["method"]) == ("updated", "delta"), name
            assert report["kind"] == name[4:] and report["exactness"] == "approximate"
            assert 0.0 < report["estimate"] < totals[name]
            assert len(list((tmp_path / "ws/models" / name).iterdir())) == 1
    for name in MODELS:
        checked = cli("verify", name, *INLINE)
        assert checked["intact"] and checked["kind"] == name[4:]
        assert checked["distance"] <= FACTOR * checked["estimate"]
        assert checked["distance"] < 0.15 * checked["change"]
    assert cli("scan", "--rows", only_rows(tmp_path, [5, 17, 400]))["matches"] == 0


@pytest.mark.parametrize("loss", ["linear", "softmax"])
@pytest.mark.parametrize("kind", ["lowrank", "frozen"])
def test_the_arrays_of_a_version(cli: Cli, tmp_path: Path, loss: str, kind: str) -> None:
    start(cli, tmp_path, loss, n=2400)
    train(cli, "m", loss, "-p", f"provenance={kind}", *HESSIAN)
    xr.open_zarr(next((tmp_path / "ws/models/m").iterdir())).load()
    found, q = arrays(tmp_path, "m"), 3 if loss == "softmax" else 1
    size, settings = q * (D + 1), opened(tmp_path, "m").settings
    shapes: dict[str, tuple[int, ...]] = {"trajectory": (60, size), "G": (60, size), "live": (60,)}
    if kind == "lowrank":
        rank = settings.rank
        assert 1 <= rank <= size and rank == rank_bound(stored_rows(tmp_path, "m"))
        shapes |= {"svd_P": (60, rank, size), "svd_V": (60, rank, size)}
        shapes |= {"svd_rank": (60,), "svd_rest": (60,)}
    else:
        first = settings.frozen(1).first
        assert 42 <= first < 60
        shapes |= {"C": (first, packed_size(size)), "frozen_values": (size,)}
        shapes |= {"frozen_vectors": (size, size), "frozen_G": (size,), "frozen_rows": (1,)}
    if loss == "linear":
        shapes |= {"gram": (D + 1, D + 1), "moment": (D + 1,)}
    else:
        shapes |= {"hessian": (size, size)}
    small = {"parameters", "mean", "scale", "classes", "rows", "distance"}
    assert {n: a.shape for n, a in found.items() if n not in small} == shapes


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", ["lowrank", "frozen"])
def test_the_factors_are_the_curvature(cli: Cli, tmp_path: Path, loss: str, kind: str) -> None:
    """Against exact provenance of the same training: C_t up to what is left out, or to t_s."""
    start(cli, tmp_path, loss, n=2400)
    given = ("-p", "dtype=float64")
    train(cli, "m", loss, "-p", f"provenance={kind}", *given)
    train(cli, "e", loss, "-p", "provenance=exact", *given)
    found, exact = arrays(tmp_path, "m"), arrays(tmp_path, "e")
    np.testing.assert_array_equal(found["trajectory"], exact["trajectory"])
    if kind == "frozen":
        np.testing.assert_allclose(found["C"], exact["C"][: len(found["C"])], rtol=1e-12, atol=1e-9)
        return
    size = found["svd_P"].shape[2]
    rows, columns = np.tril_indices(size)
    settings = opened(tmp_path, "m").settings
    left_out = 0.01 * max(settings.l2, 1.0 / (settings.learning_rate * settings.iterations))
    for t in range(0, 60, 7):
        c = np.zeros((size, size))
        c[rows, columns] = exact["C"][t]
        c = np.tril(c) + np.tril(c, -1).T
        left = c - found["svd_P"][t].T @ found["svd_V"][t]
        assert np.linalg.norm(left, 2) <= 1.01 * left_out * found["live"][t]
        assert np.trace(left) == pytest.approx(found["svd_rest"][t], abs=1e-8 * np.trace(c))
        assert not found["svd_V"][t, found["svd_rank"][t] :].any()


def used(tmp_path: Path, units: range) -> list[int]:
    """Units with a training row that is used."""
    return [unit for unit in units if len(visits_of(tmp_path, "m", [unit]))]


@pytest.mark.parametrize("kind", ["lowrank", "frozen"])
def test_what_no_deletion_touches_is_linked(cli: Cli, tmp_path: Path, kind: str) -> None:
    start(cli, tmp_path, "logistic", n=4800)
    train(cli, "m", "logistic", "-p", f"provenance={kind}")
    old = arrays(tmp_path, "m")
    length = opened(tmp_path, "m").settings.block
    firsts = {unit: int(visits_of(tmp_path, "m", [unit])[0]) for unit in used(tmp_path, range(60))}
    unit, first = max(firsts.items(), key=lambda item: item[1])
    assert first >= length
    path = next((tmp_path / "ws/models/m").iterdir())
    before = {p.relative_to(path): p.stat().st_ino for p in chunks(path)}
    delete(cli, unit)
    path = next((tmp_path / "ws/models/m").iterdir())
    after = {p.relative_to(path): p.stat().st_ino for p in chunks(path)}
    linked = {p for p, inode in after.items() if before.get(p) == inode}
    names = (*TRACE, *(SVD if kind == "lowrank" else ("C",)))
    for name in names:
        early = {p for p in linked if p.parts[0] == name}
        assert len(early) >= first // length, name
    new = arrays(tmp_path, "m")
    np.testing.assert_array_equal(new["trajectory"][: first + 1], old["trajectory"][: first + 1])
    assert (new["trajectory"][first + 1 :] != old["trajectory"][first + 1 :]).any(axis=1).all()
    if kind == "frozen":
        assert (new["frozen_G"] != old["frozen_G"]).any()
        assert new["frozen_rows"][0] <= old["frozen_rows"][0]


@pytest.mark.parametrize("kind", ["lowrank", "frozen"])
def test_no_stored_array_keeps_a_deleted_row_s_term(cli: Cli, tmp_path: Path, kind: str) -> None:
    """Linear models, whose terms don't depend on where they are taken: sums over the rows left."""
    start(cli, tmp_path, "linear", n=2400)
    train(cli, "m", "linear", "-p", f"provenance={kind}")
    for units in (range(300), range(300, 400)):
        delete(cli, *units)
    found, rows = arrays(tmp_path, "m"), stored_rows(tmp_path, "m")
    settings = rows.settings
    span = settings.frozen(rows.schedule.per_epoch)
    frozen_c, frozen_g = np.zeros((D + 1, D + 1)), np.zeros(D + 1)
    size, frozen_rows = np.trace(found["gram"]), 0
    for window in rows.windows(0, settings.iterations):
        for t, x, y, _ in cut(window):
            c, w = 2.0 * x.T @ x, found["trajectory"][t]
            assert found["live"][t] == len(x)
            if kind == "lowrank" or t < span.first:
                g = 2.0 * x.T @ (y - x @ w)
                np.testing.assert_allclose(found["G"][t], g, atol=1e-4 * len(x))
            if kind == "lowrank":
                left_out = 0.02 / (settings.learning_rate * settings.iterations) * len(x)
                assert np.linalg.norm(c - found["svd_P"][t].T @ found["svd_V"][t], 2) <= left_out
            elif span.first <= t < span.sampled:
                frozen_c += c
                frozen_g += 2.0 * x.T @ (y - x @ found["trajectory"][span.first])
                frozen_rows += len(x)
    if kind == "frozen":
        values, vectors = found["frozen_values"], found["frozen_vectors"]
        assert found["frozen_rows"][0] == frozen_rows
        again = (vectors * values) @ vectors.T * frozen_rows
        np.testing.assert_allclose(again, frozen_c, atol=1e-9 * size)
        np.testing.assert_allclose(found["frozen_G"], frozen_g, atol=1e-9 * size)


@pytest.mark.parametrize("kind", ["lowrank", "frozen"])
def test_a_retrain_is_a_fresh_training(cli: Cli, tmp_path: Path, kind: str) -> None:
    start(cli, tmp_path, "softmax")
    train(cli, "m", "softmax", "-p", f"provenance={kind}", *HESSIAN)
    report = delete(cli, 3, 4, 900, method="basel")["m"]
    assert (report["action"], report["exactness"]) == ("retrained", "exact")
    found = opened(tmp_path, "m")
    w, digests = afresh(tmp_path, "m")
    assert found.parameters.tobytes() == w.tobytes()
    assert {name: found.version.digests[name] for name in digests} == digests
    assert len(digests) == (7 if kind == "lowrank" else 8)
