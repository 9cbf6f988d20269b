"""The extended experiments end to end, on few rows: tables, sequences, files, kills, the disk."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from priu_experiment import read, rows_of, shortened_trainings

from expunge.jobs import experiment_clock as clock
from expunge.jobs import experiment_extended_rows as extended_rows
from expunge.jobs.cli import run
from expunge.jobs.experiment_extended_disk import plan_disk
from expunge.jobs.experiment_extended_run import origin_of
from expunge.jobs.experiment_extended_settings import ExtendedAsked, ExtendedSettings
from expunge.jobs.experiment_peaks import largest_peak, reset_peaks
from expunge.jobs.experiment_priu_rows import split_of
from expunge.jobs.experiment_priu_settings import Settings
from expunge.jobs.fold import InlineFold
from expunge.pipeline.regression import held_out
from expunge.storage import space

ROWS = 600
GIVEN = ("--rows", ROWS, "--rate", 0.02, "--preset", "paper", "--cluster", "inline", "--repeats", 1)


@pytest.fixture(autouse=True, scope="module")
def short_trainings() -> Iterator[None]:
    with shortened_trainings():
        yield


def arguments(out: Path, *more: object, name: str = "higgs-extended") -> list[str]:
    return [str(value) for value in ("experiment", name, "--out", out, *GIVEN, *more)]


FEW = ("--subsets", 2, "--clusters", 3, "--kinds", "exact,averaged")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("extended") / "out"
    assert run(arguments(out, *FEW)) == 0
    return out


def allowed() -> int:
    """A gibibyte, besides what this process holds since other tests."""
    return (1 << 30) + int(psutil.Process().memory_info().rss)


def pick(out: Path, method: str, kind: str | None = None) -> list[dict[str, Any]]:
    found = read(out / "summary.json")["rows"]
    return [r for r in found if r["method"] == method and kind in (None, r["kind"])]


def test_every_method_and_subset_has_a_row(measured: Path) -> None:
    """Regressions near BaseL, the k-means family equal to its retrain, all counted and timed."""
    assert [r["subset"] for r in pick(measured, "basel")] == [1, 2]
    for method, kind in (("delta", "exact"), ("delta", "averaged"), ("priu", "exact")):
        rows = pick(measured, method, kind)
        assert [r["subset"] for r in rows] == [1, 2]
        assert all(r["distance_share"] < 0.05 and r["change"] > 0 for r in rows)
        assert all(r["ratio"] == r["basel_seconds"] / r["update_seconds"] for r in rows)
        assert all(r["rebase_seconds"] > 0 and r["bytes_written"] > 0 for r in rows)
    for algorithm in ("k-means", "q-kmeans", "dc-kmeans"):
        rows = pick(measured, algorithm)
        assert [r["counts"] for r in rows] == [True, True]
        assert all(r["distance"] == 0.0 and r["change"] > 0 for r in rows)
        assert all(r["action"] in ("resumed", "retrained") and r["passes"] > 0 for r in rows)
    found = read(measured / "summary.json")
    assert found["unfinished"] == []
    assert all(100 << 20 < r["peak_bytes"] < allowed() for r in found["rows"])
    assert all(r["bytes_read"] > 0 for r in found["rows"])
    assert (measured / "extended.png").is_file()
    assert not list((measured / "work").iterdir())
    lacking = {(r["method"], r["kind"]) for r in rows_of(measured / "not_applicable.csv")}
    assert ("priu-opt", "exact") in lacking
    medians = {(r["method"], r["kind"]): r for r in found["medians"]}
    assert medians["basel", "none"]["paper_seconds"] == 1933.0


def test_finished_pieces_stand(measured: Path) -> None:
    stamps = {p.name: p.stat().st_mtime_ns for p in (measured / "pieces").iterdir()}
    assert run(arguments(measured, *FEW)) == 0
    assert stamps == {p.name: p.stat().st_mtime_ns for p in (measured / "pieces").iterdir()}


def test_others_take_the_median_retrain(tmp_path: Path) -> None:
    """Subsets without a retrain of their own have the median's ratio, marked, and no distance."""
    more = ("--subsets", 3, "--basel-subsets", 1, "--clusterings", "none", "--kinds", "exact")
    assert run(arguments(tmp_path / "out", *more)) == 0
    rows = pick(tmp_path / "out", "delta")
    assert [r["basel"] for r in rows] == ["measured", "median", "median"]
    assert rows[1]["basel_seconds"] == rows[0]["basel_seconds"]
    assert [r["distance"] is None for r in rows] == [False, True, True]
    assert rows[1]["counts"] is None and rows[1]["ratio"] > 0
    # More retrains may be asked for later: the workspace is made again, and comes out the same.
    more = ("--subsets", 3, "--basel-subsets", 2, "--clusterings", "none", "--kinds", "exact")
    assert run(arguments(tmp_path / "out", *more)) == 0
    again = pick(tmp_path / "out", "delta")
    assert [r["basel"] for r in again] == ["measured", "measured", "median"]
    assert again[0]["distance"] == rows[0]["distance"] and again[1]["distance_share"] < 0.02


@pytest.mark.parametrize("name", ["cov-extended", "heartbeat-extended"])
def test_sets_of_several_classes(tmp_path: Path, name: str) -> None:
    """The planner chooses the kind, which is told."""
    more = ("--subsets", 1, "--clusterings", "dc-kmeans", "--clusters", 3)
    assert run(arguments(tmp_path / "out", *more, name=name)) == 0
    (row,) = pick(tmp_path / "out", "delta")
    assert row["kind"] in ("exact", "averaged") and row["distance_share"] < 0.5
    assert read(tmp_path / "out" / "summary.json")["models"]["paper.planned"]["provenance"]["why"]


@pytest.mark.slow
def test_workers_count_too(tmp_path: Path) -> None:
    """On a real cluster: bits as in this process, peaks of all workers, what they read."""
    more = ("--subsets", 1, "--clusters", 3, "--kinds", "exact", "--labels")
    local = [*arguments(tmp_path / "local", *more), "--workers", "2"]
    local[local.index("inline")] = "local"
    assert run(local) == 0 and run(arguments(tmp_path / "inline", *more)) == 0
    for algorithm in ("k-means", "q-kmeans", "dc-kmeans"):
        (ours,), (theirs,) = (pick(tmp_path / n, algorithm) for n in ("local", "inline"))
        assert ours["counts"] and ours["change"] == theirs["change"]
        # Metadata have names and times in them, which are not always as long.
        assert ours["bytes_read"] == pytest.approx(theirs["bytes_read"], rel=0.01)
        assert ours["bytes_read"] > 100_000
        assert 100 << 20 < ours["peak_bytes"] < allowed()


def test_a_sequence_adds_up(tmp_path: Path) -> None:
    """One after the other: distances are those since the first training, and stay small."""
    more = ("--subsets", 3, "--sequential", "--clusterings", "none", "--kinds", "exact")
    out = tmp_path / "out"
    assert run(arguments(out, *more, "--keep")) == 0
    whole = pick(out, "delta")
    assert all(r["distance_share"] < 0.02 for r in whole)
    # A run that goes on brings the models to where they were: the last piece comes out the same.
    last = out / "pieces" / "higgs-extended.paper.update.002.json"
    before = json.loads(last.read_text())["result"]["updates"][0]["w"]
    last.unlink()
    assert run(arguments(out, *more, "--keep")) == 0
    assert json.loads(last.read_text())["result"]["updates"][0]["w"] == before
    # Each from the first models, the default, is another thing.
    apart = ("--subsets", 3, "--clusterings", "none", "--kinds", "exact")
    assert run(arguments(tmp_path / "apart", *apart)) == 0
    single = read(tmp_path / "apart" / "pieces" / last.name)["result"]["updates"][0]["w"]
    assert single != before


def test_a_file_in_copies(tmp_path: Path) -> None:
    """Rows of a file, as units of their own: the disk is planned by what its first rows take."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 28))
    labels = (x[:, 0] + rng.logistic(size=300) > 0).astype(float)
    file = tmp_path / "HIGGS.csv"
    np.savetxt(file, np.c_[labels, x], fmt="%.9e", delimiter=",")
    given = arguments(tmp_path / "out", "--file", file, "--copies", 4, "--subsets", 2)
    given[given.index("--rows") : given.index("--rows") + 2] = []
    assert run([*given, "--clusterings", "none", "--kinds", "exact"]) == 0
    found = read(tmp_path / "out" / "summary.json")
    assert found["data"]["rows"] == 1200
    assert found["sets"]["higgs-extended"].startswith("4 copies of HIGGS.csv: 1,200 rows")
    assert run([*arguments(tmp_path / "no", "--file", file, name="cov-extended")]) == 2
    assert run([*arguments(tmp_path / "no", "--copies", 4)]) == 2
    assert not (tmp_path / "no").exists()


def test_a_full_disk_is_told_before_anything_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("expunge.jobs.experiment_extended_disk.free_bytes", lambda _: 1_000_000_000)
    given = arguments(tmp_path / "out")
    given[given.index("--rows") : given.index("--rows") + 2] = []
    assert run(given) == 1
    said = capsys.readouterr().err
    assert "40,000,000 rows" in said and "the disk is too full for this experiment" in said
    assert not (tmp_path / "out").exists()


def settings(rows: int | None, **more: Any) -> ExtendedSettings:
    return ExtendedSettings(Settings(rows=rows, kinds=(), methods=("delta",), **more))


def test_the_plan_counts_everything(tmp_path: Path) -> None:
    """At full size: rows, staging, exact provenance; labels and a sequence take more."""
    asked = ExtendedAsked("higgs-extended", ("trained",))
    plain = settings(None)
    plan = plan_disk(tmp_path, plain, asked, origin_of(plain, asked))
    assert 40e6 * 124 < plan.data < 1.1 * 40e6 * 124
    assert plan.staging == 40_000_000 * (4 * 28 + 24)
    assert plan.most == plan.data + plan.staging
    assert space.shown(plan.data) in plan.text()
    kept = ExtendedSettings(plain.regression, labels=True)
    more = plan_disk(tmp_path, kept, asked, origin_of(kept, asked))
    assert more.models["k-means"] - plan.models["k-means"] >= 40_000_000 * 11 * 5
    assert more.most > plan.most


def test_subsets_are_disjoint_training_rows() -> None:
    given = Settings(rate=0.01, subsets=10, seed=3)
    study = ExtendedAsked("higgs-extended", ("paper",)).study
    found = extended_rows.random_subsets(study, given, 20_000)
    together = np.concatenate(found)
    assert len(np.unique(together)) == len(together)
    assert not held_out(together, split_of(given)).any()
    assert {len(one) for one in found} == {round(0.01 * extended_rows.training_rows(given, 20_000))}
    again = extended_rows.random_subsets(study, given, 20_000)
    assert all((one == other).all() for one, other in zip(found, again, strict=True))
    # Every row may be drawn.
    most = extended_rows.random_subsets(study, Settings(rate=0.099, subsets=10), 500)
    assert len(np.unique(np.concatenate(most))) > 400


def test_peaks_begin_anew() -> None:
    """What was used and given back before is no part of a peak; what is used after is."""
    fold = InlineFold()
    block = np.ones(40 << 20)
    before = largest_peak(fold)
    del block
    reset_peaks(fold)
    low = largest_peak(fold)
    assert low < before - (200 << 20)
    block = np.ones(20 << 20)
    assert largest_peak(fold) > low + (100 << 20)
    assert block.sum() > 0


def test_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the pace of a step; another step begins anew."""
    now = [100.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    said: list[str] = []
    shown = clock.Clock(lambda what, share=None, /: said.append(what), "set")
    shown.counted("iteration 0 of 100")
    now[0] += 30
    shown.counted("iteration 25 of 100")
    shown.counted("scores")
    shown.share("reading rows", 0.0)
    now[0] += 600
    shown.share("reading rows", 0.5)
    assert said == [
        "set: iteration 0 of 100",
        "set: iteration 25 of 100, 90 s left",
        "set: scores",
        "set: reading rows",
        "set: reading rows, 10 min left",
    ]
    assert clock.duration(3 * 3600 + 125) == "3 h 02 min"


def _run_short(given: list[str]) -> None:
    os.setsid()
    with shortened_trainings():
        run(given)


@pytest.mark.slow
def test_killed_at_any_moment(measured: Path, tmp_path: Path) -> None:
    """The same command goes on after each SIGKILL, and ends in the same parameters and digests."""
    out, rng = tmp_path / "out", np.random.default_rng(1)
    context = multiprocessing.get_context("spawn")
    kills = 0
    while not (out / "summary.json").is_file():
        child = context.Process(target=_run_short, args=(arguments(out, *FEW),))
        child.start()
        assert child.pid is not None
        while child.is_alive() and os.getpgid(child.pid) != child.pid:
            time.sleep(0.05)
        deadline = time.monotonic() + (rng.uniform(0.5, 12.0) if kills < 6 else 600.0)
        while child.is_alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        if child.is_alive():
            os.killpg(child.pid, signal.SIGKILL)
            kills += 1
        child.join()
    assert kills > 0
    ours, theirs = (read(folder / "summary.json") for folder in (out, measured))
    names = ("method", "kind", "subset", "counts", "action", "deleted")
    assert [[r[n] for n in names] for r in ours["rows"]] == [
        [r[n] for n in names] for r in theirs["rows"]
    ]
    for one, other in zip(ours["rows"], theirs["rows"], strict=True):
        # BaseL's faster side may differ, and so its last bits.
        for name in ("distance", "change") if one["method"] != "basel" else ():
            assert one[name] == pytest.approx(other[name], rel=1e-9)
    assert not list((out / "work").iterdir())
