"""The parts of the regression experiments: rows and who leaves, studies, comparisons, answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from priu_experiment import shortened_trainings, study

from expunge.jobs import experiment_priu_sets as priu_sets
from expunge.jobs.errors import JobError, UsageError
from expunge.jobs.experiment_priu_answers import answers
from expunge.jobs.experiment_priu_compare import compared, distance_bound
from expunge.jobs.experiment_priu_models import discard, prepare
from expunge.jobs.experiment_priu_repeat_tables import repeated_rows
from expunge.jobs.experiment_priu_rows import asked_rows, describe, find_origin, leaving_units
from expunge.jobs.experiment_priu_settings import (
    DIRTY,
    RANDOM,
    Asked,
    Settings,
    chosen_rates,
    studies,
)
from expunge.jobs.experiment_priu_tables import Tables, collect, make_tables
from expunge.jobs.experiment_priu_update import competitors
from expunge.jobs.experiment_results import Pieces
from expunge.pipeline.losses import Loss
from expunge.storage.generators import HiggsLike


@pytest.fixture(autouse=True, scope="module")
def short_trainings() -> Iterator[None]:
    with shortened_trainings():
        yield


def test_leaving_units() -> None:
    """Training rows alone, as many as the rate says, those of lower rates among them, at least one."""
    settings = Settings(rows=2000)
    few, many = (leaving_units(study(), settings, 2000, rate) for rate in (0.01, 0.1))
    assert set(few) < set(many) and len(few) == round(len(many) / 10)
    assert 0.1 * 1700 < len(many) < 0.1 * 1900
    assert len(leaving_units(study(), settings, 2000, 1e-6)) == 1
    other = leaving_units(study(), replace(settings, seed=1), 2000, 0.1)
    assert set(other) != set(many)


def test_dirty_rows(tmp_path: Path) -> None:
    """The rows that will leave are rescaled, the others are as generated, and labels stay."""
    settings = Settings(rows=500, dirty_scale=10.0)
    origin = find_origin(study(DIRTY), settings, tmp_path)
    asked, file = asked_rows(study(DIRTY), origin, settings, tmp_path)
    assert file is not None and asked["files"] == [str(file)] and asked["label"] == "label"
    table = pq.read_table(file)
    x = np.stack([c.to_numpy() for c in table.columns[:-1]], axis=1)
    (block,) = HiggsLike(500, 0).blocks()
    dirty = np.zeros(500, np.bool_)
    dirty[leaving_units(study(DIRTY), settings, 500, 0.1)] = True
    np.testing.assert_array_equal(x[dirty], block.x[dirty] * np.float32(10))
    np.testing.assert_array_equal(x[~dirty], block.x[~dirty])
    np.testing.assert_array_equal(table.column("label").to_numpy(), block.y)
    assert 40 < dirty.sum() < 50


def test_origins(tmp_path: Path) -> None:
    """Files before generators, complete before partial; sets of more rows are generated."""
    settings = Settings(rows=None)
    rcv1 = find_origin(study(data_set="rcv1"), settings, tmp_path)
    assert rcv1.sparse and rcv1.files == ()
    with pytest.raises(JobError, match="--random"):
        asked_rows(study(DIRTY, data_set="rcv1"), rcv1, settings, tmp_path)
    with pytest.raises(JobError, match="data_batch"):
        find_origin(study(data_set="cifar10"), settings, tmp_path)
    (tmp_path / "HIGGS_7000.csv.gz").write_bytes(b"")
    partial = find_origin(study(), settings, tmp_path)
    assert [f.name for f in partial.files] == ["HIGGS_7000.csv.gz"]
    assert describe(partial, 7000, 28).startswith("partial: HIGGS_7000.csv.gz, 7,000 rows of")
    (tmp_path / "HIGGS.csv.gz").write_bytes(b"")
    whole = find_origin(study(), settings, tmp_path)
    assert [f.name for f in whole.files] == ["HIGGS.csv.gz"]
    assert describe(whole, 11_000_000, 28).startswith("complete")
    assert asked_rows(study(), whole, settings, tmp_path)[0]["format"] == "higgs"
    generated = find_origin(study(), replace(settings, generate=True), tmp_path)
    assert generated.files == () and generated.note.startswith("stand-in")
    extended = find_origin(study(data_set="higgs-extended"), settings, tmp_path)
    assert extended.files == () and extended.rows == 40_000_000


def test_table_2() -> None:
    """The paper's hyper-parameters, as far as they are not shortened here; every set has rows."""
    assert set(priu_sets.EXTENDED) < set(priu_sets.SETS)
    for name, setting in priu_sets.SETS.items():
        assert setting.data in priu_sets.SOURCES
        paper, trained = (setting.parameters(preset) for preset in priu_sets.PRESETS)
        assert paper["l2"] == setting.l2 and paper["iterations"] == trained["iterations"]
        assert trained.get("learning_rate") == setting.trained_rate, name


def test_studies() -> None:
    asked = Asked(Path(), ("higgs", "sgemm"), ("paper",), DIRTY, (0.1, 0.2))
    assert [s.folder for s in studies(asked)] == [
        f"{name}.paper.dirty.{rate}" for name in ("higgs", "sgemm") for rate in (0.1, 0.2)
    ]
    assert len(studies(replace(asked, leaving=RANDOM))) == 2
    assert chosen_rates("0.2, 0.0001, 0.2") == (0.0001, 0.2)
    with pytest.raises(UsageError):
        Settings(dirty_scale=0.0).check()


def test_competitors() -> None:
    """Each method once a kind that it can use; once where it needs none."""
    kinds, methods = ("exact", "averaged"), ("delta", "priu", "priu-opt", "closed-form", "infl")
    both = [("delta", "exact"), ("delta", "averaged"), ("priu", "exact")]
    alone = [("priu-opt", "none"), ("closed-form", "none"), ("infl", "none")]
    assert competitors(Loss.LINEAR, kinds, methods) == [*both, *alone]
    assert competitors(Loss.LOGISTIC, kinds, methods) == [*both, ("infl", "none")]


def test_comparison_by_hand() -> None:
    """b = (3, -4, 0), a = (3, 4, 1): 8 and 1 apart, one sign flipped, cosine (9 - 16) / (5 sqrt 26)."""
    base, ours = np.array([[3.0, -4.0, 0.0]]), np.array([[3.0, 4.0, 1.0]])
    found = compared(ours, base, np.zeros((1, 3)))
    assert found["distance"] == pytest.approx(65**0.5)
    assert found["distance_share"] == pytest.approx(65**0.5 / 5)
    assert found["cosine"] == pytest.approx(-7 / (5 * 26**0.5))
    assert (found["sign_flips"], found["coordinates"]) == (1, 3)
    assert found["largest_flipped"] == 1.0
    assert found["largest_magnitude_change"] == 0.0
    assert compared(ours, base, base)["distance_share"] is None
    assert distance_bound("exact", 0.01) == 0.005 and distance_bound("exact", 0.2) == 0.02
    assert distance_bound("averaged", 0.01) == distance_bound("none", 0.2) == 0.03


def row(method: str, kind: str, rate: float, seconds: float, **more: Any) -> dict[str, Any]:
    named = {"set": "cov-small", "preset": "paper", "leaving": "random", "rate": rate}
    values = {"accuracy": 0.7, "mse": None, "base_l_accuracy": 0.7, "base_l_mse": None}
    near = {"distance": 0.1, "distance_share": 0.001, "cosine": 1.0, "sign_flips": 0}
    sizes = {"coordinates": 385, "median_magnitude_change": 0.0, "largest_magnitude_change": 0.0}
    other = {"majority_rate": 0.5, "provenance_bytes": 10**6, "counts": True}
    found = {**named, **values, **near, **sizes, **other, "method": method, "kind": kind}
    return {**found, "seconds": seconds, "speedup": 8.0 / seconds, **more}


def test_answers_by_hand() -> None:
    """Rows that don't count are not the best ones, and INFL is told where it is not far worse."""
    rows: list[Any] = [
        row("delta", "exact", 0.001, 2.0),
        row("delta", "averaged", 0.001, 1.0, distance_share=0.5, counts=False),
        row("priu", "exact", 0.001, 4.0),
        row("priu-opt", "frozen", 0.001, 1.0, accuracy=0.6),
        row("infl", "none", 0.001, 0.5, distance=0.2, distance_share=0.002, counts=False),
        row("delta", "exact", 0.2, 4.0),
        row("infl", "none", 0.2, 0.5, distance=20.0, distance_share=0.2, counts=False),
        row("delta", "exact", 0.001, 1.0, set="cov-large-1"),
    ]
    found = answers(Tables(rows, [], [], [], [], [], []))
    assert found["Q1"]["numbers"][0]["times_faster"] == 4.0
    assert found["Q1"]["numbers"][0]["score_apart"] == pytest.approx(0.1)
    best = found["Q2"]["numbers"][0]
    assert (best["method"], best["kind"], best["speedup"]) == ("priu-opt", "frozen", 8.0)
    assert "1 of 2 cases" in found["Q5"]["answer"]
    assert "Not far worse: cov-small (paper, random) at 0.001 (2 times)" in found["Q5"]["answer"]
    assert [n["speedup"] for n in found["Q6"]["numbers"]] == [4.0, 8.0]
    assert found["Q8"]["answer"].startswith("Not in this run")


def test_pieces_of_a_diverged_training(tmp_path: Path) -> None:
    """What failed is told in a table of its own, and the others' tables stand."""
    data = {"data": "higgs", "rows": 100, "features": 28, "note": "complete", "bytes": 1}
    failed = {"set": "higgs", "preset": "paper", "leaving": "random", "rate": 0.1, "data": data}
    failed |= {"failed": "BaseL: diverged", "left_out": {"exact": "too large"}, "parameters": 29}
    (tmp_path / "pieces").mkdir()
    pieces = Pieces(tmp_path, {})
    pieces.keep("higgs.paper.random.0.100000", {**failed, "loss": "logistic"}, {"python": "3"})
    tables = make_tables(collect(pieces))
    assert tables.updates == [] and len(tables.table1) == 1
    assert [(r["kind"], r["why"]) for r in tables.not_applicable] == [
        ("none", "BaseL: diverged"),
        ("exact", "too large"),
    ]
    assert repeated_rows([{**failed, "steps": [], "training_rows": 90}]) == []


def test_half_made_workspaces(tmp_path: Path) -> None:
    """A workspace of other settings, or without a ledger, is made anew; removed ones stay away."""
    from contextlib import nullcontext

    from expunge.jobs.fold import InlineFold

    settings = Settings(rows=300, kinds=("exact",))
    origin = find_origin(study(), settings, tmp_path)
    half = tmp_path / "work" / study().folder / "workspace"
    half.mkdir(parents=True)
    (half / "ledger.sqlite").write_text("of other settings")
    told: list[str] = []

    def folds(ws: Any) -> Any:
        return nullcontext(InlineFold())

    def update(what: str, share: float | None = None, /) -> None:
        told.append(what)

    made = prepare(tmp_path, study(), settings, origin, folds, update)
    assert made.kinds == ("exact", "none") and made.data["rows"] == 300
    again = prepare(tmp_path, study(), settings, origin, folds, update)
    assert again == made and sum("rows" in what for what in told) == 1
    other = prepare(tmp_path, study(), replace(settings, rows=200), origin, folds, update)
    assert sum("rows" in what for what in told) == 2
    assert other.data["rows"] == made.data["rows"]  # The origin says how many there are.
    (made.workspace / "ledger.sqlite").unlink()
    prepare(tmp_path, study(), replace(settings, rows=200), origin, folds, update)
    assert sum("rows" in what for what in told) == 3
    discard(tmp_path, study())
    assert not list((tmp_path / "work").iterdir())
