"""The regression experiments end to end, on few rows: pieces, tables, answers, resuming, refusals."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest

from expunge.jobs import experiment_priu_sets as priu_sets
from expunge.jobs.cli import run
from expunge.jobs.errors import JobError, UsageError
from expunge.jobs.experiment_priu_answers import answers
from expunge.jobs.experiment_priu_compare import compared, distance_bound
from expunge.jobs.experiment_priu_models import discard, prepare
from expunge.jobs.experiment_priu_paper import QUESTIONS
from expunge.jobs.experiment_priu_repeat_tables import repeated_rows
from expunge.jobs.experiment_priu_rows import asked_rows, describe, find_origin, leaving_units
from expunge.jobs.experiment_priu_settings import (
    DIRTY,
    RANDOM,
    Asked,
    Settings,
    Study,
    chosen_rates,
    studies,
)
from expunge.jobs.experiment_priu_tables import Tables, collect, make_tables
from expunge.jobs.experiment_priu_update import competitors
from expunge.jobs.experiment_results import Pieces
from expunge.pipeline.losses import Loss
from expunge.pipeline.regression import METHODS
from expunge.storage.generators import HiggsLike

ROWS = 600
BASE = ("--rows", ROWS, "--repeats", 1, "--cluster", "inline", "--preset", "paper")
SINGLE = (*BASE, "--random", "--rates", "0.01,0.2", "--kinds", "exact")
FEW = ("--methods", "delta,priu,infl")


@pytest.fixture(autouse=True, scope="module")
def short_trainings() -> Any:
    """Table 2's sets with few iterations; the rest of a set is the same in every process."""
    patch = pytest.MonkeyPatch()
    for name, setting in priu_sets.SETS.items():
        short = replace(setting, batch_size=50, iterations=80, learning_rate=0.05)
        patch.setitem(priu_sets.SETS, name, short)
    yield
    patch.undo()


def arguments(command: str, out: Path, *more: object) -> list[str]:
    given = ("experiment", command, "--out", out, "--data-dir", out.parent, *more)
    return [str(value) for value in given]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small run; one of its sets has no file."""
    out = tmp_path_factory.mktemp("priu") / "out"
    assert run(arguments("priu-single", out, *SINGLE, *FEW, "--set", "higgs,sgemm")) == 0
    return out


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def piece(out: Path, name: str) -> dict[str, Any]:
    return dict(read(out / "pieces" / f"{name}.json")["result"])


def test_updates(finished: Path) -> None:
    """A row a method and rate; speed-ups, distances and the bound follow from the pieces."""
    rows = rows_of(finished / "updates.csv")
    named = {(float(r["rate"]), r["method"], r["kind"]) for r in rows}
    methods = (("basel", "none"), ("delta", "exact"), ("priu", "exact"), ("infl", "none"))
    assert named == {(rate, *one) for rate in (0.01, 0.2) for one in methods}
    for row in rows:
        found = piece(finished, f"higgs.paper.random.{float(row['rate']):.6f}")
        assert float(row["base_l_seconds"]) == found["base_l"]["seconds"]
        if row["method"] == "basel":
            assert float(row["distance"]) == 0.0 and row["counts"] == "True"
            continue
        mine = next(u for u in found["updates"] if u["method"] == row["method"])
        base, ours = np.array(found["base_l"]["w"]), np.array(mine["w"])
        assert float(row["speedup"]) == pytest.approx(found["base_l"]["seconds"] / mine["seconds"])
        assert float(row["distance"]) == pytest.approx(np.linalg.norm(ours - base))
        near = float(row["distance_share"]) <= float(row["bound"])
        assert row["counts"] == str(near)
        assert float(row["gather_seconds"]) > 0
    exact = [r for r in rows if r["method"] == "delta"]
    assert all(float(r["distance_share"]) < 0.05 and float(r["rebase_seconds"]) > 0 for r in exact)


def test_tables(finished: Path) -> None:
    assert {row["set"]: row["note"] for row in rows_of(finished / "table1.csv")} == {
        "higgs": "stand-in: rows generated like those of higgs, 600 of 11,000,000"
    }
    assert [row["rate"] for row in rows_of(finished / "table2.csv")] == ["0.01", "0.2"]
    memory = {row["method"]: row for row in rows_of(finished / "table3.csv")}
    assert set(memory) == {"basel", "delta", "priu", "infl"}
    for row in memory.values():
        ratio = float(row["peak_bytes"]) / float(memory["basel"]["peak_bytes"])
        assert float(row["ratio"]) == pytest.approx(ratio)
        assert int(row["peak_bytes"]) >= int(row["idle_bytes"]) > 10 << 20
    last = rows_of(finished / "table4.csv")
    assert {row["rate"] for row in last} == {"0.2"}
    assert {r["method"]: r["paper_distance"] for r in last}["infl"] == "0.006"
    assert {r["method"]: r["paper_distance"] for r in last}["delta"] == "0.0004"
    coordinates = rows_of(finished / "coordinates.csv")
    assert len(coordinates) == 2 * 3 * 29
    flips = sum(row["flipped"] == "True" for row in coordinates)
    assert flips == sum(int(row["sign_flips"]) for row in rows_of(finished / "updates.csv"))
    text = (finished / "README.md").read_text()
    for table in finished.glob("*.csv"):
        header = table.read_text().splitlines()[0].split(",")
        assert all(f"`{name}`" in text for name in header)


def test_summary(finished: Path) -> None:
    """Every question is answered beside the paper, what is missing is named, figures are there."""
    found = read(finished / "summary.json")
    assert list(found["answers"]) == list(QUESTIONS)
    for answer in found["answers"].values():
        assert answer["answer"] and answer["paper"]
    assert "no file" in found["missing"]["sgemm.paper.random"]
    assert found["unfinished"] == [f"sgemm.paper.random.{r:.6f}" for r in (0.01, 0.2)]
    assert found["environments"] and all(e["threads"] == 1 for e in found["environments"])
    assert {row["method"] for row in found["answers"]["Q5"]["numbers"] if "method" in row} == set()
    assert len(found["answers"]["Q5"]["numbers"]) == 2
    assert found["answers"]["Q6"]["answer"].startswith("Not in this run")
    assert "figure3-others.png" in found["figures"]
    for name in found["figures"]:
        assert (finished / name).read_bytes().startswith(b"\x89PNG")
    beyond = [r for r in rows_of(finished / "updates.csv") if r["counts"] == "False"]
    assert len(found["beyond_bound"]) == len(beyond)
    assert not list((finished / "work").iterdir())


def test_goes_on(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same command runs nothing again, a lost piece alone is made again; others are refused."""
    path = finished / "pieces" / "higgs.paper.random.0.010000.json"
    stamps = {p.name: p.stat().st_mtime_ns for p in path.parent.iterdir()}
    old = read(path)["result"]
    path.unlink()
    given = arguments("priu-single", finished, *SINGLE, *FEW, "--set", "higgs")
    assert run(given) == 0
    now = {p.name: p.stat().st_mtime_ns for p in path.parent.iterdir()}
    assert {name for name in stamps if now[name] != stamps[name]} == {path.name}
    new = read(path)["result"]
    # The salt is another one, so that rows come in another order; who leaves is the same.
    assert new["deleted"] == old["deleted"] and new["base_l"]["w"] != old["base_l"]["w"]
    capsys.readouterr()
    assert run([*given, "--seed", "1"]) == 2
    assert "seed 0 there, 1 here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "given", "expected"),
    [
        ("priu-single", ("--set", "iris"), "iris"),
        ("priu-single", ("--set", "sgemm", *BASE), "every set is missing"),
        ("priu-single", ("--random", "--dirty-scale", 3), "leave out --dirty-scale"),
        ("priu-single", ("--rates", "0.1,x"), "--rates"),
        ("priu-single", ("--rates", "1.5"), "--rates"),
        ("priu-single", ("--kinds", "perfect"), "perfect"),
        ("priu-single", ("--rows", 3), "--rows"),
        ("priu-single", ("--repeats", 0), "--repeats"),
        ("priu-repeated", ("--subsets", 0), "--subsets"),
        ("priu-repeated", ("--rate", 0.5), "10 subsets of 0.5"),
        ("priu-repeated", ("--preset", "best"), "best"),
    ],
)
def test_refusals(
    command: str,
    given: tuple[object, ...],
    expected: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(arguments(command, tmp_path / "out", *given)) == 2
    assert expected in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_dirty_rows_and_all_methods(tmp_path: Path) -> None:
    """A linear and a softmax set with whatever methods and kinds there are; dirty rows leave."""
    write_sgemm(tmp_path / "sgemm_product.csv", 400)
    out = tmp_path / "out"
    given = (*BASE, "--rates", "0.02", "--set", "sgemm,cov-small", "--dirty-scale", 5)
    assert run(arguments("priu-single", out, *given)) == 0
    found = read(out / "summary.json")
    assert found["sets"]["sgemm"].startswith("partial: sgemm_product.csv, 400 rows of 241,600")
    assert found["unfinished"] == [] and found["missing"] == {}
    rows = rows_of(out / "updates.csv")
    assert {row["leaving"] for row in rows} == {"dirty"}
    of = {name: {r["method"] for r in rows if r["set"] == name} for name in ("sgemm", "cov-small")}
    failed = {(r["set"], r["method"]) for r in rows_of(out / "not_applicable.csv")}
    for method in METHODS:
        assert method in of["sgemm"] or ("sgemm", method) in failed
    assert of["cov-small"] >= {"basel", "delta", "priu", "infl", "priu-opt"}
    kinds = {r["kind"] for r in rows if r["method"] == "delta" and r["set"] == "cov-small"}
    assert kinds == {"exact", "averaged", "lowrank", "frozen"}
    # For linear models delta with exact curvature is BaseL but for rounding.
    mine = [r for r in rows if (r["set"], r["method"], r["kind"]) == ("sgemm", "delta", "exact")]
    assert len(mine) == 1 and float(mine[0]["distance_share"]) < 1e-6
    assert "times faster" in found["answers"]["Q1"]["question"] or found["answers"]["Q1"]["numbers"]


def write_sgemm(path: Path, rows: int) -> None:
    """A table like UCI's: 14 settings of a kernel and four run times."""
    names = [
        "MWG",
        "NWG",
        "KWG",
        "MDIMC",
        "NDIMC",
        "MDIMA",
        "NDIMB",
        "KWI",
        "VWM",
        "VWN",
        "STRM",
        "STRN",
        "SA",
        "SB",
    ]
    header = [*names, *(f"Run{i} (ms)" for i in range(1, 5))]
    rng = np.random.default_rng(5)
    x = rng.integers(1, 9, (rows, 14))
    runs = np.exp(0.2 * x[:, :1] - 0.1 * x[:, 1:2] + 0.1 * rng.normal(size=(rows, 4))).round(3)
    lines = [",".join(map(str, [*a, *b])) for a, b in zip(x.tolist(), runs.tolist(), strict=True)]
    path.write_text("\n".join([",".join(header), *lines]) + "\n")


@pytest.fixture(scope="module")
def repeated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("repeated") / "out"
    given = (*BASE, "--kinds", "exact,averaged", "--set", "higgs-extended", "--subsets", 3)
    assert run(arguments("priu-repeated", out, *given, "--rate", 0.02)) == 0
    return out


def test_repeated(repeated: Path) -> None:
    """Subsets add up: seconds, deleted rows, and a distance to BaseL that stays small."""
    rows = rows_of(repeated / "repeated.csv")
    mine = [r for r in rows if (r["method"], r["kind"]) == ("delta", "exact")]
    base = [r for r in rows if r["method"] == "basel"]
    assert [int(r["step"]) for r in mine] == [1, 2, 3]
    totals = np.cumsum([float(r["seconds"]) for r in mine])
    assert [float(r["cumulative_seconds"]) for r in mine] == pytest.approx(totals.tolist())
    speedup = sum(float(r["seconds"]) for r in base) / totals[-1]
    assert float(mine[-1]["cumulative_speedup"]) == pytest.approx(speedup)
    assert float(mine[-1]["cumulative_with_rebase"]) > totals[-1]
    assert float(mine[-1]["rate"]) == pytest.approx(0.06, abs=0.005)
    # Were the models not rebased, the second subset's update would miss the first one.
    assert all(float(r["distance_share"]) < 0.02 for r in mine)
    assert "infl" not in {r["method"] for r in rows}
    found = read(repeated / "summary.json")
    assert found["answers"]["Q2"]["numbers"] == found["totals"]
    assert {t["method"]: t["paper_seconds"] for t in found["totals"]}["basel"] == 1933.0
    assert (repeated / "figure4-repeated.png").is_file()
    assert not list((repeated / "work").iterdir())


def test_repeated_goes_on(repeated: Path) -> None:
    stamps = {p.name: p.stat().st_mtime_ns for p in (repeated / "pieces").iterdir()}
    given = (*BASE, "--kinds", "exact,averaged", "--set", "higgs-extended", "--subsets", 3)
    assert run(arguments("priu-repeated", repeated, *given, "--rate", 0.02)) == 0
    assert stamps == {p.name: p.stat().st_mtime_ns for p in (repeated / "pieces").iterdir()}


def study(leaving: str = RANDOM, rate: float = 0.1, data_set: str = "higgs") -> Study:
    return Study(data_set, "paper", leaving, (rate,))


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
    assert chosen_rates("0.2, 0.0001") == (0.0001, 0.2)
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


@pytest.mark.slow
def test_killed(tmp_path: Path) -> None:
    """kill -9 amid trainings and pieces: workers go too, and a rerun completes."""
    out = tmp_path / "out"
    given = (*BASE, "--rates", "0.01,0.02,0.05", "--set", "higgs", "--kinds", "exact")
    command = arguments("priu-single", out, *given, "--methods", "delta")
    code = "from expunge.jobs.cli import main; main()"
    child = subprocess.Popen([sys.executable, "-c", code, *command], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not list((out / "pieces").glob("higgs.paper.dirty.0*.json")):
        assert child.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    workers = psutil.Process(child.pid).children(recursive=True)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert psutil.wait_procs(workers, timeout=20)[1] == []
    before = {path.name: path.read_bytes() for path in (out / "pieces").glob("*.json")}
    assert not (out / "summary.json").exists()
    assert run(command) == 0
    after = {path.name: path.read_bytes() for path in (out / "pieces").iterdir()}
    assert before.items() <= after.items() and len(after) == 3 + 2
    assert not list((out / "work").iterdir())


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


@pytest.mark.slow
def test_sparse_rows(tmp_path: Path) -> None:
    """RCV1's sparse rows take the methods that there are for them; they are not deleted repeatedly."""
    out = tmp_path / "out"
    given = ("--rows", 400, "--repeats", 1, "--cluster", "inline", "--set", "rcv1")
    single = (*given, "--random", "--rates", "0.01")
    assert run(arguments("priu-single", out, *single)) == 0
    rows = rows_of(out / "updates.csv")
    assert {row["method"] for row in rows} >= {"basel", "delta"}
    near = [float(row["distance_share"]) for row in rows if row["method"] == "delta"]
    assert len(near) == 1 and near[0] < 0.03
    assert {row["method"] for row in rows_of(out / "table3.csv")} == {r["method"] for r in rows}
    assert run(arguments("priu-repeated", tmp_path / "again", *given)) == 2
