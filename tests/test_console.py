"""Progress where there is no terminal: a line now and then, none for what is short."""

from __future__ import annotations

import pytest

from expunge.jobs import console


def test_progress_without_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter([0.0, 5.0, 11.0, 11.0, 12.0, 30.0, 30.0])
    monkeypatch.setattr(console, "monotonic", lambda: next(seconds))
    with console.showing("train m") as update:
        update("seeding")
        update("iteration 3", 0.25)
        update("iteration 4", 0.5)
        update("writing")
    told = capsys.readouterr()
    assert told.err == "train m: iteration 3, 25% (11 s)\ntrain m: writing (30 s)\n"
    assert told.out == ""
