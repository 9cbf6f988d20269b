"""The only module that builds Dask graphs: map a task over pieces of a data set, merge as a tree.

Tasks are module-level functions of one small argument (a path, some cells, some centroids); they
return small statistics, and what they read and wrote is counted and brought home.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import reduce
from typing import Any, Protocol, TypeVar

from distributed import Client, Future
from distributed.client import FutureCancelledError
from distributed.comm.core import CommClosedError

from ..storage import files
from .errors import ClusterLostError

Piece = TypeVar("Piece")
Result = TypeVar("Result")

FAN_IN = 8
"""Results that one merging task takes."""
TASK_SECONDS = 0.1
"""A task takes as many cells as make about this much work."""
RETRIES = 5
"""How often a task is tried again after its worker died."""
CHECK_SECONDS = 0.5
"""How often is checked, while tasks run, whether they are still wanted."""
CLUSTER_LOST: tuple[type[Exception], ...] = (CommClosedError, ConnectionError, TimeoutError)
"""Errors of a cluster that is gone; ClusterLostError is a ConnectionError."""
_NO_ANSWER = (UnboundLocalError, FutureCancelledError, CommClosedError)
"""What the client's own calls raise where no answer comes. ``distributed.utils.sync`` returns a variable
that is unbound where its wait was cancelled."""


def unchecked() -> None:
    """The check of a fold whose tasks are wanted to their end."""


class Fold(Protocol):
    """Where tasks run."""

    tasks: int
    """Tasks run so far, merges not counted."""
    check: Callable[[], None]
    """Called between tasks and while they run; raises where they are not wanted any more."""

    @property
    def workers(self) -> int:
        """How many tasks run at once."""
        ...

    def __call__(
        self,
        task: Callable[[Piece], Result],
        pieces: Sequence[Piece],
        merge: Callable[[Result, Result], Result],
    ) -> Result:
        """Return the merge of task(piece) over all pieces (at least one)."""
        ...

    @property
    def memory_limit(self) -> int | None:
        """Bytes that the smallest worker may use; None where there is no limit."""
        ...

    def close(self) -> None:
        """Let go of the workers and of what they hold."""
        ...


class InlineFold:
    """Runs tasks one after the other in this process."""

    workers = 1
    memory_limit = None

    def __init__(self) -> None:
        self.tasks = 0
        self.check = unchecked

    def close(self) -> None:
        """Nothing to let go of."""

    def __call__(
        self,
        task: Callable[[Piece], Result],
        pieces: Sequence[Piece],
        merge: Callable[[Result, Result], Result],
    ) -> Result:
        self.tasks += len(pieces)
        return reduce(merge, (self._checked(task, piece) for piece in pieces))

    def _checked(self, task: Callable[[Piece], Result], piece: Piece) -> Result:
        self.check()
        return task(piece)


class DaskFold:
    """Runs tasks on a Dask cluster that is started when the first task comes.

    Started late, the cluster finds the workspace locked and swept; closed early, it leaves no
    spilled row behind when the receipt is written.
    """

    def __init__(self, connect: Callable[[], AbstractContextManager[Client]]) -> None:
        self._connect = connect
        self._stack = ExitStack()
        self._opened: Client | None = None
        self.tasks = 0
        self.check = unchecked

    @property
    def _client(self) -> Client:
        if self._opened is None:
            self._opened = self._stack.enter_context(self._connect())
        return self._opened

    @property
    def workers(self) -> int:
        """Threads of all workers."""
        with _answering(self._client) as client:
            return max(1, int(sum(client.nthreads().values())))

    @property
    def memory_limit(self) -> int | None:
        """The least limit of a worker; Dask says 0 for none."""
        with _answering(self._client) as client:
            workers = client.scheduler_info(n_workers=-1)["workers"].values()
        limits = [int(w["memory_limit"]) for w in workers if w["memory_limit"]]
        return min(limits, default=None)

    def close(self) -> None:
        """Let go of the cluster; the next task would start it again."""
        self._opened = None
        self._stack.close()

    def __call__(
        self,
        task: Callable[[Piece], Result],
        pieces: Sequence[Piece],
        merge: Callable[[Result, Result], Result],
    ) -> Result:
        self.check()
        self.tasks += len(pieces)
        result, meter = self._awaited(self._submitted(task, pieces, merge))
        files.absorb(meter)
        return result  # type: ignore[no-any-return]

    def _submitted(
        self,
        task: Callable[[Piece], Result],
        pieces: Sequence[Piece],
        merge: Callable[[Result, Result], Result],
    ) -> Future:
        """The future of a fold's result."""
        # Two runs over the same cells may see different rows: results must never be remembered.
        options: dict[str, Any] = {"pure": False, "retries": RETRIES}
        with _answering(self._client) as client, warnings.catch_warnings():
            # A task may have to bring rows that are to be deleted: they are nowhere else to be read.
            warnings.filterwarnings("ignore", message="Sending large graph")
            futures = client.map(_measured, [(task, piece) for piece in pieces], **options)
            while len(futures) > 1:
                futures = [
                    client.submit(_merged, merge, futures[i : i + FAN_IN], **options)
                    for i in range(0, len(futures), FAN_IN)
                ]
        only: Future = futures[0]
        return only

    def _awaited(self, future: Future) -> Any:
        """A future's result. Where the check raises all futures are let go, and tasks that have not begun."""
        client: Client = future.client
        while not future.done():
            # What comes in the very moment in which the time is over cancels Dask's wait for it: on a
            # busy machine that is no rare thing, and nothing is lost.
            with _answering(client, future), suppress(TimeoutError, UnboundLocalError):
                return future.result(timeout=CHECK_SECONDS)
            if client.status != "running":
                raise ClusterLostError(f"the connection to the cluster was lost ({client.status})")
            self.check()
        # What is done may take its time to come here, or may have raised a TimeoutError of its own.
        with _answering(client, future):
            return future.result()


@contextmanager
def _answering(client: Client, future: Future | None = None) -> Iterator[Client]:
    """Raise ClusterLostError in place of what a call of the client raises where the cluster is gone.

    future: whose result is asked for; an error that its task raised stays what it is.
    """
    try:
        yield client
    except Exception as error:
        if future is not None and future.status == "error":
            raise
        if isinstance(error, _NO_ANSWER) or client.status != "running":
            raise ClusterLostError(
                f"the connection to the cluster was lost ({type(error).__name__})"
            ) from error
        raise


def _measured(job: tuple[Callable[[Any], Any], Any]) -> tuple[Any, files.Meter]:
    task, piece = job
    with files.metered() as meter:
        result = task(piece)
    return result, meter


def _merged(
    merge: Callable[[Any, Any], Any], parts: Sequence[tuple[Any, files.Meter]]
) -> tuple[Any, files.Meter]:
    total = files.Meter()
    for _, meter in parts:
        total.add(meter)
    return reduce(merge, (result for result, _ in parts)), total


def split_cells(cells: Sequence[int], seconds: float, workers: int) -> list[tuple[int, ...]]:
    """Return the cells in contiguous groups for tasks of about TASK_SECONDS each.

    seconds: one thread's estimated time for all cells together. Every worker gets work, and no
    group is empty.
    """
    groups = min(len(cells), max(workers, round(seconds / TASK_SECONDS)))
    edges = [len(cells) * i // groups for i in range(groups + 1)]
    return [tuple(cells[a:b]) for a, b in itertools.pairwise(edges)]
