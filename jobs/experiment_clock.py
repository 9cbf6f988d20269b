"""How long the rest of an experiment's step will take, told with its progress."""

from __future__ import annotations

import re
from time import monotonic

from .console import Update

_COUNTED = re.compile(r"(\d+) of (\d+)")


class Clock:
    """Shows progress and the time that is left, by the pace so far."""

    def __init__(self, update: Update, what: str) -> None:
        """what: begins every text that is shown."""
        self._update, self._what = update, what
        self._step: str | None = None
        self._began, self._first = 0.0, 0.0

    def share(self, step: str, share: float) -> None:
        """Show a step of which a share is done; another step starts the clock anew."""
        self._show(step, step, share)

    def counted(self, what: str) -> None:
        """Show a text; one like ``iteration 3 of 10`` tells the share that is done."""
        found = _COUNTED.search(what)
        if found is None or not int(found[2]):
            self._step = None
            self._update(f"{self._what}: {what}")
            return
        self._show(what[: found.start()].strip(), what, int(found[1]) / int(found[2]))

    def told(self, text: str, left: float | None, share: float) -> None:
        """Show a text with the seconds that are left, as they were found elsewhere."""
        self._update(f"{self._what}: {text}{ending(left)}", share)

    def left(self, step: str, share: float) -> float | None:
        """Return the seconds that are left of a step of which a share is done, as far as known."""
        if step != self._step:
            self._step, self._began, self._first = step, monotonic(), share
        done = share - self._first
        return (monotonic() - self._began) * (1.0 - share) / done if done > 0 else None

    def _show(self, step: str, text: str, share: float) -> None:
        self.told(text, self.left(step, share), share)


def ending(left: float | None) -> str:
    """Return what tells the seconds left at a text's end; nothing where they are unknown."""
    return "" if left is None else f", {duration(left)} left"


def duration(seconds: float) -> str:
    """Return a time as a person reads it."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"
