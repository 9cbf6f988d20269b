"""What receipts say in words, and what may be quoted of errors."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from expunge.jobs.error_texts import told
from expunge.jobs.errors import JobError
from expunge.jobs.receipt_schema import SIGNED_SCHEMAS, check_receipt, receipt_schema
from expunge.jobs.statements import FAILED_TOO, RETIRED_TOO, statement
from expunge.storage import files
from expunge.storage.errors import CorruptError


def model(action: str, exactness: str) -> dict[str, str]:
    return {"action": action, "exactness": exactness}


def test_a_failed_model_is_not_told_as_exact() -> None:
    exact, near = model("resumed", "exact"), model("updated", "approximate")
    failed = model("failed", "none")
    assert "each model is bit for bit" in statement([exact])
    for models in ([failed], [exact, failed], [near, failed]):
        found = statement(models)
        assert found.endswith(FAILED_TOO) and "each model is bit for bit" not in found
    assert "approximate" in statement([near, failed])
    assert "approximate" not in statement([exact, failed])
    assert statement([failed], [{"model": "m"}]).endswith(RETIRED_TOO)
    assert FAILED_TOO not in statement([exact])


def test_no_model_is_told_of_the_time_of_the_deletion() -> None:
    """One that was retired before may well have been trained on the rows."""
    assert "had been trained" not in statement([])
    assert "the workspace had no model" in statement([])


def test_what_is_quoted_of_an_error() -> None:
    assert told(JobError("job 3 waits")) == "job 3 waits"
    assert told(CorruptError("c.0: 3 bytes found")) == "c.0: 3 bytes found"
    assert told(OSError(5, "secret", "/data/c.0")) == "Input/output error: /data/c.0"
    assert told(OSError("secret")) == "unexpected OSError"
    assert told(ValueError("secret")) == "unexpected ValueError"
    connection = sqlite3.connect(":memory:")
    with pytest.raises(sqlite3.Error) as caught:
        connection.execute("SELECT secret")
    assert told(caught.value) == "unexpected OperationalError (SQLITE_ERROR)"
    connection.close()
    with pytest.raises(TypeError) as raised:
        files.runs(None, 1)  # type: ignore[arg-type]
    assert told(raised.value).startswith("unexpected TypeError in storage.files, line ")


def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(5, "Input/output error")

    (tmp_path / "c.0").write_bytes(b"abc")
    monkeypatch.setattr("os.preadv", refuse)
    with pytest.raises(OSError, match=r"Input/output error: .*c\.0") as caught:
        files.read_whole(tmp_path / "c.0")
    assert caught.value.errno == 5


def test_every_version_of_the_schema_is_shipped() -> None:
    for version in SIGNED_SCHEMAS:
        found = receipt_schema(version)
        assert found["properties"]["schema"]["const"] == version
        assert found["$id"] == f"urn:expunge:receipt:{version}"
        assert check_receipt({}, version) == "$.schema is missing"
    new = set(receipt_schema(3)["required"]) - set(receipt_schema(2)["required"])
    assert new == {"due", "reference", "ground"}
