"""Labels that are classes to the user and none to float32, or missing by another name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import INLINE, Cli

from expunge import LogisticRegression, SoftmaxRegression

QUICK = ("-p", "iterations=5", *INLINE)


def import_labels(cli: Cli, path: Path, labels: list[str], format: str = "csv") -> None:
    """Data set ``t`` of 90 rows whose labels repeat."""
    x = np.random.default_rng(0).normal(size=(90, 2)).round(3)
    named = [labels[i % len(labels)] for i in range(90)]
    if format == "csv":
        lines = ["a,b,y", *(f"{a},{b},{y}" for (a, b), y in zip(x, named, strict=True))]
    else:
        lines = [f"{y} 1:{a} 2:{b}" for (a, b), y in zip(x, named, strict=True)]
    path.write_text("\n".join(lines) + "\n")
    cli("init", path.parent / "ws")
    label = ("--label", "y") if format == "csv" else ()
    cli("data", "import", "t", path, "--format", format, *label)


@pytest.mark.parametrize(
    "labels",
    [
        ["3000000000", "3000000001", "4000000000"],
        ["0.1", "0.100000001", "0.2"],
        ["20000001", "0.5"],
        ["0", "1e-50"],
        [str(0.5 + i * 1e-9) for i in range(90)],
    ],
)
def test_classes_that_float32_merges_are_refused(
    cli: Cli, tmp_path: Path, labels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Labels that are too many to be classes are not remembered.
    monkeypatch.setattr("expunge.storage.ingest.MOST_ROUNDED", 50)
    import_labels(cli, tmp_path / "rows.csv", labels)
    for algorithm in ("logistic", "softmax"):
        told = cli("train", "m", "--data", "t", "--algorithm", algorithm, *QUICK, code=2)
        assert "label y has values that float32" in told and "can't tell apart" in told
    cli("train", "l", "--data", "t", "--algorithm", "linear", *QUICK)


@pytest.mark.parametrize(
    "labels", [["0.1", "0.2"], ["2147483647", "2147483646"], ["-1", "1"], ["16777216", "0.5"]]
)
def test_classes_that_stay_apart_are_taken(cli: Cli, tmp_path: Path, labels: list[str]) -> None:
    import_labels(cli, tmp_path / "rows.csv", labels)
    cli("train", "m", "--data", "t", "--algorithm", "logistic", *QUICK)
    found = cli("model", "show", "m")["classes"]
    assert found == pytest.approx(sorted(map(float, labels)), rel=1e-7)


def test_sparse_rows_have_their_classes_apart_too(cli: Cli, tmp_path: Path) -> None:
    import_labels(cli, tmp_path / "rows.svm", ["3000000000", "3000000001"], "svmlight")
    told = cli("train", "m", "--data", "t", "--algorithm", "sparse-logistic", *QUICK, code=2)
    assert "can't tell apart" in told


@pytest.mark.parametrize("model", [LogisticRegression, SoftmaxRegression])
@pytest.mark.parametrize("missing", [np.nan, None])
def test_missing_texts_are_no_class(model: Any, missing: Any) -> None:
    x = np.random.default_rng(0).normal(size=(40, 2))
    texts = np.dtypes.StringDType(na_object=missing)
    y = np.array([["a", "b", missing][i % 3] for i in range(40)], dtype=texts)
    with pytest.raises(ValueError, match="y"):
        model(iterations=5, random_state=0).fit(x, y)
    whole = np.array(["a", "b"] * 20, dtype=texts)
    assert list(model(iterations=5, random_state=0).fit(x, whole).classes_) == ["a", "b"]
