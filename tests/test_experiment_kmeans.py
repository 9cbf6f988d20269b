"""The k-means experiments end to end, on few rows: pieces, tables, summary, resuming, refusals."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from expunge import QKMeans
from expunge.jobs.cli import run
from expunge.jobs.errors import JobError, LockedError, UsageError
from expunge.jobs.experiment_kmeans import KINDS, fitting
from expunge.jobs.experiment_results import (
    Pieces,
    grouped_means,
    mean_and_deviation,
    open_results,
)
from expunge.jobs.experiment_rows import Rows
from expunge.jobs.experiment_series import ACTIONS, Log, Series, checkpoints, log_spaced
from expunge.jobs.experiment_sets import ExperimentSet, load
from expunge.jobs.experiment_settings import SERIES, Settings, chosen_series
from expunge.jobs.experiment_tables import Found, make_tables, series_rows
from expunge.jobs.experiment_theory import fits, loss_bounds

ROWS, DELETIONS = 600, 20
SMALL = ("--rows", ROWS, "--deletions", DELETIONS, "--data", "gaussian,postures")


def arguments(out: Path, *more: object) -> list[str]:
    given = ("experiment", "kmeans-table", "--out", out, "--data-dir", out.parent, *SMALL, *more)
    return [str(value) for value in given]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small run of every series, two replicates at once."""
    out = tmp_path_factory.mktemp("experiment") / "out"
    given = ("--only", ",".join(SERIES), "--replicates", 2, "--workers", 2)
    assert run(arguments(out, *given)) == 0
    return out


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def result(out: Path, series: str, replicate: int) -> dict[str, Any]:
    found: dict[str, Any] = read(out / "pieces" / f"gaussian.{series}.{replicate:03d}.json")
    return dict(found["result"])


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_tables(finished: Path) -> None:
    assert len(rows_of(finished / "series.csv")) == 6 * 2
    assert len(rows_of(finished / "quality.csv")) == 6 * 2 * len(checkpoints(DELETIONS))
    assert len(rows_of(finished / "curves.csv")) == 6 * 2 * len(log_spaced(DELETIONS))
    sweeps = rows_of(finished / "sweeps.csv")
    assert {row["sweep"] for row in sweeps} == {"sweep-epsilon", "sweep-leaves", "sweep-rows"}
    assert all(int(row["ran"]) == DELETIONS for row in sweeps if row["sweep"] != "sweep-rows")
    for row in rows_of(finished / "series.csv"):
        shares = sum(float(row[name]) for name in ACTIONS)
        assert shares == pytest.approx(1.0)
        assert row["baseline_same_process"] == "True"
    text = (finished / "README.md").read_text()
    for table in finished.glob("*.csv"):
        header = table.read_text().splitlines()[0].split(",")
        assert table.name.startswith("mean_") or all(f"`{name}`" in text for name in header)


def test_means_by_hand(finished: Path) -> None:
    """A mean ratio and a mean speed-up, from the pieces."""
    ratios, speedups = [], []
    for replicate in range(2):
        mine, base = result(finished, "q-kmeans", replicate), result(finished, "sklearn", replicate)
        assert base["quality"][-1]["deletions"] == mine["quality"][-1]["deletions"] == DELETIONS
        ratios.append(mine["quality"][-1]["loss"] / (sum(base["quality"][-1]["losses"]) / 3))
        ours = (mine["train_seconds"] + mine["deletion_seconds"]) / DELETIONS
        median = float(np.median(base["seconds"]))
        speedups.append((base["train_seconds"] + DELETIONS * median) / DELETIONS / ours)
    found = read(finished / "summary.json")["results"]["gaussian"]["q-kmeans"]
    assert found["quality"][-1]["loss_ratio"]["mean"] == pytest.approx(sum(ratios) / 2)
    spread = abs(ratios[0] - ratios[1]) / 2**0.5
    assert found["quality"][-1]["loss_ratio"]["deviation"] == pytest.approx(spread)
    assert found["speedup_amortised"]["mean"] == pytest.approx(sum(speedups) / 2)
    assert found["ran"] == [DELETIONS, DELETIONS] and not found["extrapolated"]


def test_series_is_what_the_estimator_does(finished: Path) -> None:
    """The same deletions by hand: the same actions, passes and losses."""
    for replicate in range(2):
        piece = result(finished, "q-kmeans", replicate)
        rows = Rows.of(load("gaussian", finished, rows=ROWS), DELETIONS, 0, replicate)
        model = QKMeans(5, max_iter=10, random_state=piece["random_state"])
        model.fit(rows.data.x, rows.units)
        done = [model.delete(int(rows.units[row])) for row in rows.order]
        actions = [deletion.action for deletion in done]
        assert piece["actions"] == {name: actions.count(name) for name in piece["actions"]}
        assert piece["passes"] == sum(deletion.passes for deletion in done)
        assert piece["quality"][-1]["loss"] == pytest.approx(model.inertia_, rel=1e-6)
    one, other = (result(finished, "q-kmeans", replicate) for replicate in range(2))
    assert one["random_state"] != other["random_state"]
    assert one["quality"][0]["loss"] != other["quality"][0]["loss"]


@pytest.mark.parametrize("algorithm", ["k-means", "q-kmeans"])
def test_without_labels_the_models_are_the_same(finished: Path, algorithm: str) -> None:
    for replicate in range(2):
        kept = result(finished, algorithm, replicate)
        none = result(finished, f"{algorithm}-none", replicate)
        assert kept["quality"] == none["quality"]
        assert kept["random_state"] == none["random_state"]
        assert none["actions"]["replayed"] == 0
        for action in ("unchanged", "retrained"):
            assert kept["actions"][action] == none["actions"][action]
        changed = kept["actions"]["replayed"] + kept["actions"]["resumed"]
        assert changed == none["actions"]["resumed"] > 0
        assert kept["passes"] <= none["passes"]
        assert sum(kept["action_seconds"].values()) == pytest.approx(kept["deletion_seconds"])
    rows = rows_of(finished / "series.csv")
    found = {row["provenance"] for row in rows if row["algorithm"] == algorithm}
    assert found == {"labels"}
    found = {row["provenance"] for row in rows if row["algorithm"] == f"{algorithm}-none"}
    assert found == {"none"}


def test_refits_apart_by_hand() -> None:
    """Two refits of 6 s together, three others of 1.5 s; scikit-learn's retrain takes 2 s."""
    counts = {"unchanged": 1, "replayed": 2, "resumed": 0, "retrained": 2}
    seconds = {"unchanged": 0.1, "replayed": 1.4, "resumed": 0.0, "retrained": 6.0}
    mine: dict[str, Any] = {
        "deletions": 5,
        "ran": 5,
        "ran_from_start": 5,
        "extrapolated": False,
        "passes": 0,
    }
    mine |= {"train_seconds": 1.0, "deletion_seconds": 7.5, "median_seconds": 0.7, "process": "a"}
    mine |= {"actions": counts, "action_seconds": seconds, "parameters": {}}
    base: dict[str, Any] = {
        "deletions": 5,
        "ran": 5,
        "extrapolated": False,
        "train_seconds": 2.0,
        "process": "a",
    }
    base |= {"retrain_seconds": 2.0, "n_iter": [10]}
    results = {("toy", "sklearn", 0): base, ("toy", "k-means", 0): mine}
    facts = {"toy": {"rows": 9, "features": 1, "clusters": 2}}
    retrains, row = series_rows(Found(facts, results, []))
    assert row["replayed_seconds"] == pytest.approx(0.7) and row["resumed_seconds"] is None
    assert row["retrained_seconds"] == pytest.approx(3.0)
    assert row["seconds_without_refits"] == pytest.approx(0.5)
    assert row["speedup_without_refits"] == pytest.approx(4.0)
    assert row["speedup_deletions"] == pytest.approx(2.0 / 1.5)
    assert retrains["speedup_without_refits"] is None and retrains["provenance"] is None


def test_results_from_before_there_were_labels_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(DELETIONS, rows=ROWS).identity()
    del settings["provenance"]
    with open_results(tmp_path / "out", "kmeans-table", settings) as pieces:
        pieces.keep("gaussian.k-means.000", {}, {})
    assert run(arguments(tmp_path / "out")) == 2
    said = capsys.readouterr().err
    assert "(provenance None there, labels, or none here)" in said


def test_summary(finished: Path) -> None:
    found = read(finished / "summary.json")
    assert found["unfinished"] == []
    assert found["processes_at_once"] == 2
    assert found["environments"][0]["threads"] == 1
    assert found["sets"]["gaussian"]["state"] == "stand-in"
    assert list(found["missing"]) == ["postures"] and "postures" in found["missing"]["postures"]
    assert found["sets"]["gaussian"]["replicates"]["q-kmeans"] == 2
    assert {held["algorithm"] for held in found["limits"]} == {"q-kmeans", "dc-kmeans"}
    for held in found["limits"]:
        assert held["holds"] == (held["worst"] <= held["limit"])
    assert found["loss_bound"]["holds"]
    assert len(found["figures"]) == 8
    for name in found["figures"]:
        assert (finished / name).read_bytes().startswith(b"\x89PNG")


def test_rerun_keeps_pieces(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same command again computes nothing: no process starts, every piece stays as it is."""
    before = {path.name: path.stat().st_mtime_ns for path in (finished / "pieces").iterdir()}
    assert run([*arguments(finished, "--replicates", 2, "--workers", 2), "--json"]) == 0
    after = {path.name: path.stat().st_mtime_ns for path in (finished / "pieces").iterdir()}
    assert after == before
    printed = json.loads(capsys.readouterr().out)
    assert printed["folder"] == str(finished)
    assert printed["results"] == read(finished / "summary.json")["results"]


def test_other_settings_are_refused(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments(finished, "--replicates", 2, "--workers", 2, "--seed", 1)) == 2
    assert "seed 0 there, 1 here" in capsys.readouterr().err
    assert run(arguments(finished, "--replicates", 2)) == 2
    assert "workers 2 there, 1 here" in capsys.readouterr().err


def test_bad_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = {
        ("--only", "k-meens"): "k-meens",
        ("--data", "iris"): "iris",
        ("--data", "postures,celltype"): "every data set is missing",
        ("--deletions", 599): "too few",
        ("--budget", 0): "--budget",
        ("--rows", 0): "--rows is 0",
        ("--replicates", 0): "--replicates",
    }
    for number, (given, expected) in enumerate(cases.items()):
        assert run(arguments(tmp_path / str(number), *given)) == 2
        assert expected in capsys.readouterr().err
    assert {*SERIES} - {*chosen_series(None)} == {"k-means-none", "q-kmeans-none"}
    assert chosen_series("sweeps,sklearn") == (
        "sklearn",
        "sweep-epsilon",
        "sweep-leaves",
        "sweep-rows",
    )


@pytest.mark.slow
def test_killed(tmp_path: Path) -> None:
    """kill -9 amid the pieces: those that are there stand, workers go too, and a rerun completes."""
    out = tmp_path / "out"
    # A tiny budget, so that series are extrapolated as well.
    given = arguments(out, "--only", "sklearn,k-means,q-kmeans,dc-kmeans", "--budget", 0.001)
    command = [sys.executable, "-c", "from expunge.jobs.cli import main; main()", *given]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as child:
        deadline = time.monotonic() + 120
        while len(list((out / "pieces").glob("gaussian.*.00?.json"))) < 3:
            assert child.poll() is None and time.monotonic() < deadline
            time.sleep(0.001)
        workers = psutil.Process(child.pid).children(recursive=True)
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert psutil.wait_procs(workers, timeout=20)[1] == []
    before = {path.name: path.read_bytes() for path in (out / "pieces").glob("*.json")}
    assert 3 <= len(before) < 4 * 5
    assert not (out / "summary.json").exists()
    assert run(given) == 0
    after = {path.name: path.read_bytes() for path in (out / "pieces").iterdir()}
    assert before.items() <= after.items()
    assert len(after) == 1 + 4 * 5
    found = read(out / "summary.json")
    assert found["unfinished"] == []
    for name, values in found["results"]["gaussian"].items():
        assert values["extrapolated"]
        assert all(ran < DELETIONS for ran in values["ran"]), name
        last = values["quality"][-1]
        assert last["deletions"] == DELETIONS and last["loss_ratio"]["mean"] > 0


def series(algorithm: str, budget: float) -> Series:
    """A series of deletions from 1,000 rows: the first deletion moves the default epsilon."""
    rows = Rows.of(load("gaussian", Path(), rows=1000), 100, 0, 0)
    return Series(rows, fitting(algorithm, 5, 7), budget, checkpoints(100))


@pytest.mark.parametrize("algorithm", KINDS)
def test_spread_deletions_give_the_same_models(algorithm: str) -> None:
    whole, part = series(algorithm, 1e9).run(), series(algorithm, 1e-9).run()
    assert whole["ran"] == 100 and not whole["extrapolated"]
    assert part["ran_from_start"] == 1 and part["extrapolated"] and 1 < part["ran"] < 20
    assert whole["quality"] == part["quality"]
    assert [q["deletions"] for q in part["quality"]] == [0, 1, 10, 100]


def test_extrapolation_by_hand() -> None:
    """Deletions of 1 and 3 s at the start and of 2 and 4 s later: ten take 4 + 8 x 3 = 28 s."""
    made = series("k-means", 1.0)
    made.first = Log([1.0, 3.0], ["resumed", "unchanged"])
    made.spread = Log([2.0, 4.0], ["resumed", "unchanged"])
    assert made._until(1)["seconds"] == 1.0
    assert not made._until(2)["extrapolated"]
    found = made._until(10)
    assert found["extrapolated"]
    assert found["seconds"] == pytest.approx(28.0)
    assert found["changed"] == pytest.approx(1 + 8 * 0.5)


def test_quality_by_hand() -> None:
    """Four rows on a line, centres at 0 and 1 of the scaled range 0, 0.25, 0.75, 1."""
    x = np.array([[0.0, 5.0], [1.0, 5.0], [3.0, 5.0], [4.0, 5.0]], np.float32)
    rows = Rows.of(ExperimentSet("line", x, np.array([0, 0, 1, 1], np.int32), 2, ""), 1, 0, 0)
    left = rows.left(0)
    found = left.quality(left.in_scale(np.array([[0.0, 5.0], [4.0, 5.0]])))
    assert found["loss"] == pytest.approx(2 * 0.25**2)
    assert found["nmi"] == pytest.approx(1.0)
    # Row 0: a = 1, b = (3 + 4) / 2; row 1: a = 1, b = (2 + 3) / 2; the others by symmetry.
    assert found["silhouette"] == pytest.approx(((1 - 1 / 3.5) + (1 - 1 / 2.5)) / 2)
    assert set(rows.left(1).units) == set(rows.units) - {rows.units[rows.order[0]]}


def test_loss_bound_by_hand() -> None:
    """k = 1, n = 8, d = 2: 16 L* + epsilon sqrt(256 L*) + 4 epsilon^2 with the least loss seen."""
    facts = {"rows": 8, "features": 2, "clusters": 1}
    sweep = {"train_seconds": 1.0, "ran": 0, "rows": 8, "deletion_seconds": 0.0, "changed": 0}
    points = [{"value": 0.5, "loss": 5.0, **sweep}, {"value": 0.25, "loss": 4.0, **sweep}]
    found = Found({"toy": facts}, {("toy", "sweep-epsilon", 0): {"points": points}}, [])
    coarse, fine = loss_bounds(found, make_tables(found, 10))
    assert (coarse["epsilon"], coarse["mean_loss"], coarse["best_loss"]) == (0.5, 5.0, 4.0)
    assert coarse["bound"] == pytest.approx(64 + 0.5 * 32 + 1.0)
    assert fine["bound"] == pytest.approx(64 + 0.25 * 32 + 0.25)
    assert coarse["holds"] and fine["holds"]


def test_fits_by_hand() -> None:
    """Costs that fall as 1 / w to w = 4 and then rise as w."""
    cost = {2: 4.0, 4: 2.0, 8: 4.0, 16: 8.0}
    points = [
        {"value": w, "loss": 1.0, "train_seconds": 0.0, "ran": 2, "rows": 16}
        | {"deletion_seconds": 2 * seconds, "changed": 2}
        for w, seconds in cost.items()
    ]
    rates = [
        {"value": e, "loss": 1.0, "train_seconds": 0.0, "ran": 100, "rows": 16}
        | {"deletion_seconds": 1.0, "changed": changed}
        for e, changed in ((0.5, 10), (0.25, 20), (0.125, 40), (0.0625, 100))
    ]
    results = {
        ("toy", "sweep-epsilon", 0): {"points": rates},
        ("toy", "sweep-leaves", 0): {"points": points},
    }
    found = fits(make_tables(Found({}, results, []), 10))
    exponents = {row["against"]: (row["exponent"], row["points"]) for row in found}
    assert exponents["epsilon"] == (pytest.approx(-1.0), 3)
    assert exponents["w up to the cheapest, 4"] == (pytest.approx(-1.0), 2)
    assert exponents["w from the cheapest, 4"] == (pytest.approx(1.0), 3)
    # max(w, n / w) is 8, 4, 8, 16 for n = 16: the cost is half of it.
    assert exponents["max(w, n / w)"] == (pytest.approx(1.0), 4)


def test_means() -> None:
    assert mean_and_deviation([1.0, None, 3.0]) == {
        "mean": 2.0,
        "deviation": pytest.approx(2**0.5),
        "values": 2,
    }
    assert mean_and_deviation([5.0])["deviation"] is None
    assert mean_and_deviation([])["mean"] is None
    rows = [{"a": "x", "b": 1.0}, {"a": "y", "b": 4.0}, {"a": "x", "b": 2.0}]
    found = grouped_means(rows, ("a",), ("b",))
    assert [(row["a"], row["replicates"], row["b"]) for row in found] == [
        ("x", 2, 1.5),
        ("y", 1, 4.0),
    ]


def test_results_folder(tmp_path: Path) -> None:
    """Pieces are found again; other experiments, other folders and damage are refused."""
    settings = {"seed": 0}
    with open_results(tmp_path / "r", "one", settings) as pieces:
        assert pieces.find("a.b") is None
        pieces.keep("a.b", {"value": 1.5}, {"python": "3"})
        with pytest.raises(LockedError), open_results(tmp_path / "r", "one", settings):
            pass
    (tmp_path / "r" / "experiment.json.0.partial").write_text("{")
    with open_results(tmp_path / "r", "one", settings) as pieces:
        assert pieces.find("a.b") == {"value": 1.5} and pieces.names() == ["a.b"]
        assert not list((tmp_path / "r").glob("*.partial"))
    with pytest.raises(UsageError, match="seed 0 there, 2 here"):
        open_results(tmp_path / "r", "one", {"seed": 2}).__enter__()
    with open_results(tmp_path / "empty", "one", settings):
        pass
    with open_results(tmp_path / "empty", "one", {"seed": 2}):
        """Nothing was finished with the first settings: others may take their place."""
    with pytest.raises(UsageError, match="'one', not of 'two'"):
        open_results(tmp_path / "r", "two", settings).__enter__()
    with pytest.raises(JobError, match="other settings"):
        Pieces(tmp_path / "r", {"seed": 1}).find("a.b")
    (tmp_path / "r" / "pieces" / "a.b.json").write_text('{"settings": {"seed": 0}, "resu')
    with pytest.raises(JobError, match="damaged"):
        pieces.find("a.b")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="thesis"):
        open_results(tmp_path / "other", "one", settings).__enter__()
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["thesis.txt"]
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="not a folder"):
        open_results(tmp_path / "file", "one", settings).__enter__()


def test_other_commands_load_no_plots() -> None:
    code = (
        "import sys, expunge.jobs.cli; "
        "assert not {'matplotlib', 'sklearn'} & set(sys.modules); "
        "import expunge.jobs.experiment_plots; assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
