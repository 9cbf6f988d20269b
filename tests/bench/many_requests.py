"""Many requests through the command line: seconds of asking and listing, and the ledger's size.

    python tests/bench/many_requests.py --requests 100000 --dir /tmp/requests

Makes a workspace in DIR (a new folder) with a data set of as many people and half as many more, asks
for the deletion of the first by ``forget --subjects-file``, asks again, and lists. Each time is that
of a whole command, the interpreter's start with it; ``cpu`` is what it computed, which tells a busy
machine. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

Seconds = dict[str, float]


def computed() -> float:
    """Seconds that all commands till now have computed."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def timed(root: Path, *arguments: str) -> tuple[Seconds, dict[str, Any]]:
    """Run ``expunge --json`` on the workspace; return its seconds and its result."""
    command = [sys.executable, "-m", "expunge.jobs.cli", "-w", str(root / "ws"), "--json"]
    started, before = time.perf_counter(), computed()
    done = subprocess.run([*command, *arguments], check=True, capture_output=True, text=True)
    seconds = {"elapsed": time.perf_counter() - started, "cpu": computed() - before}
    return {name: round(value, 2) for name, value in seconds.items()}, json.loads(done.stdout)


def measure(root: Path, requests: int) -> dict[str, Any]:
    """Make the workspace, ask, ask again, list."""
    root.mkdir(parents=True)
    people = [f"person-{number}" for number in range(requests + requests // 2)]
    lines = [f"{number % 97},{number % 89},{name}" for number, name in enumerate(people)]
    (root / "people.csv").write_text("\n".join(["a,b,who", *lines]) + "\n")
    (root / "gone.txt").write_text("\n".join(people[:requests]) + "\n")
    timed(root, "init", str(root / "ws"))
    source = (str(root / "people.csv"), "--format", "csv", "--subject", "who")
    timed(root, "data", "import", "t", *source)
    asking = ("forget", "--data", "t", "--subjects-file", str(root / "gone.txt"))
    ask, made = timed(root, *asking, "--reference", "T-1")
    again, same = timed(root, *asking, "--reference", "T-1")
    seconds = {"forget": ask, "forget again": again}
    for given in ((), ("--overdue",), ("--due-within", "7d"), ("--reference", "T-1")):
        seconds[" ".join(("request list", *given))], _ = timed(root, "request", "list", *given)
    held = ("--data", "t", "--subject", people[0], "--ground", "a law suit")
    seconds["hold place"], _ = timed(root, "hold", "place", *held)
    seconds["request list, with a hold"], found = timed(root, "request", "list")
    size = sum(file.stat().st_size for file in (root / "ws").glob("ledger.sqlite*"))
    return {
        "queued": made["queued"],
        "already_requested": same["already_requested"],
        "counts": found["counts"],
        "seconds": seconds,
        "ledger_bytes": size,
    }


def main() -> None:
    """Parse the arguments and print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--dir", type=Path, required=True)
    given = parser.parse_args()
    sys.stdout.write(json.dumps(measure(given.dir, given.requests), indent=2) + "\n")


if __name__ == "__main__":
    main()
