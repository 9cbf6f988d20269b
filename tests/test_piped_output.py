"""What commands print where stdout is no terminal, and the words of ``job cancel``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from expunge.jobs.cli import run


@pytest.fixture
def root(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A workspace with two requests, one of them held."""
    (tmp_path / "rows.csv").write_text("a,b\n" + "1,2\n3,4\n" * 20)
    root = tmp_path / "ws"
    hold = "hold place --data t --unit 5 --ground suit --until 2999-06-30"
    for words in (
        f"init {root}",
        f"data import t {tmp_path / 'rows.csv'} --format csv",
        hold,
        "forget --data t --unit 1,5",
    ):
        assert run(["-w", str(root), *words.split()]) == 0
    capsys.readouterr()
    return root


@pytest.mark.parametrize("command", ["request list", "request show 2", "hold list", "data show t"])
def test_piped_lines_are_not_filled_up_and_times_look_alike(
    root: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert run(["-w", str(root), *command.split()]) == 0
    text = capsys.readouterr().out
    assert all(line == line.rstrip() for line in text.splitlines())
    assert "+00:00" not in text
    if "request" in command:
        assert "1 until 2999-06-30 23:59:59Z" in text


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("cancelled", "job 7 is cancelled\n"),
        ("cancelling", "ends when its present task does"),
        ("done", "had come to its end"),
    ],
)
def test_job_cancel_says_what_became_of_the_job(
    root: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    state: str,
    said: str,
) -> None:
    def cancel(_: Any, job: int) -> dict[str, Any]:
        return {"job": job, "state": state}

    monkeypatch.setattr("expunge.jobs.cancelling.cancel", cancel)
    assert run(["-w", str(root), "job", "cancel", "7"]) == 0
    assert said in capsys.readouterr().out
