"""Experiment priu-single end to end, on few rows: pieces, tables, answers, resuming, refusals."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from priu_experiment import BASE, arguments, read, rows_of, shortened_trainings

from expunge.jobs.cli import run
from expunge.jobs.experiment_priu_paper import QUESTIONS
from expunge.pipeline.regression import METHODS

SINGLE = (*BASE, "--random", "--rates", "0.01,0.2", "--kinds", "exact")
FEW = ("--methods", "delta,priu,infl")


@pytest.fixture(autouse=True, scope="module")
def short_trainings() -> Iterator[None]:
    with shortened_trainings():
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small run; one of its sets has no file."""
    out = tmp_path_factory.mktemp("priu") / "out"
    assert run(arguments("priu-single", out, *SINGLE, *FEW, "--set", "higgs,sgemm")) == 0
    return out


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


def test_goes_on(
    finished: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command runs nothing again, a lost piece alone is made again; others are refused."""
    path = finished / "pieces" / "higgs.paper.random.0.010000.json"
    stamps = {p.name: p.stat().st_mtime_ns for p in path.parent.iterdir()}
    old = read(path)["result"]
    path.unlink()
    given = arguments("priu-single", finished, *SINGLE, *FEW, "--set", "higgs")
    monkeypatch.setattr("expunge.jobs.workspace._new_salt", lambda: bytes(range(1, 17)))
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
        ("priu-single", ("--set", "sgemm", *BASE), "no set can be measured"),
        ("priu-single", ("--random", "--dirty-scale", 3), "leave out --dirty-scale"),
        ("priu-single", ("--rates", "0.1,x"), "--rates"),
        ("priu-single", ("--rates", "1.5"), "--rates"),
        ("priu-single", ("--rates", "0.0500001,0.0500004"), "at most 6 digits"),
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
    assert kinds == {"exact", "averaged", "lowrank", "frozen", "projected"}
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


@pytest.mark.slow
def test_killed(tmp_path: Path) -> None:
    """kill -9 amid trainings and pieces: workers go too, and a rerun completes."""
    out = tmp_path / "out"
    given = (*BASE, "--rates", "0.01,0.02,0.05", "--set", "higgs", "--kinds", "exact")
    command = arguments("priu-single", out, *given, "--methods", "delta")
    code = "from expunge.jobs.cli import main; main()"
    child = subprocess.Popen([sys.executable, "-c", code, *command], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 1200
    while not list((out / "pieces").glob("higgs.paper.dirty.0*.json")):
        assert child.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    workers = psutil.Process(child.pid).children(recursive=True)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert psutil.wait_procs(workers, timeout=60)[1] == []
    before = {path.name: path.read_bytes() for path in (out / "pieces").glob("*.json")}
    assert not (out / "summary.json").exists()
    assert run(command) == 0
    after = {path.name: path.read_bytes() for path in (out / "pieces").iterdir()}
    assert before.items() <= after.items() and len(after) == 3 + 2
    assert not list((out / "work").iterdir())


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
