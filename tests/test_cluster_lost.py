"""A cluster that gives no answer any more is told as lost, and never taken for what a task raised."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from distributed import Client, LocalCluster
from test_cluster import _already

from expunge.jobs.errors import ClusterLostError
from expunge.jobs.fold import DaskFold
from expunge.jobs.updating import concerns_all

CALLS: dict[str, Callable[[DaskFold], Any]] = {
    "result": lambda fold: fold(operator.neg, [1, 2, 3], operator.add),
    "workers": lambda fold: fold.workers,
    "memory limit": lambda fold: fold.memory_limit,
}


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    """The address of a cluster in this process."""
    with LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
    ) as local:
        yield local.scheduler_address


async def cancelled(*_: object, **__: object) -> None:
    """What is waited for, in a loop whose tasks are cancelled."""
    raise asyncio.CancelledError


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_a_wait_that_is_cancelled(
    scheduler: str, monkeypatch: pytest.MonkeyPatch, call: Callable[[DaskFold], Any]
) -> None:
    with Client(scheduler, set_as_default=False) as client:
        fold = DaskFold(lambda: _already(client))
        with monkeypatch.context() as patch:
            patch.setattr(client, "sync", partial(client.sync, cancelled))
            with pytest.raises(ClusterLostError, match="was lost") as caught:
                call(fold)
        assert concerns_all(caught.value)
        # Dask's own words for it: none of a task's.
        assert type(caught.value.__cause__) is UnboundLocalError


def test_a_result_that_comes_as_its_time_is_over(
    scheduler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask cancels the wait then: the answer is there all the same."""
    with Client(scheduler, set_as_default=False) as client:
        real, times = client.sync, 0

        def sync(func: Any, *given: Any, callback_timeout: Any = None, **more: Any) -> Any:
            nonlocal times
            if callback_timeout is None:
                return real(func, *given, **more)
            times += 1
            return real(cancelled)

        fold = DaskFold(lambda: _already(client))
        monkeypatch.setattr(client, "sync", sync)
        assert fold(operator.neg, [1, 2, 3], operator.add) == -6
        assert times > 0


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_a_client_that_is_closed(scheduler: str, call: Callable[[DaskFold], Any]) -> None:
    with Client(scheduler, set_as_default=False) as client:
        fold = DaskFold(lambda: _already(client))
        client.close()
        with pytest.raises(ClusterLostError, match="was lost"):
            call(fold)


def unbound(piece: int) -> int:
    """A task with a fault of its own."""
    if piece < 0:
        found = piece
    return found


@pytest.mark.parametrize("error", [UnboundLocalError, TimeoutError])
def test_what_a_task_raises_stays_what_it_is(scheduler: str, error: type[Exception]) -> None:
    def late(piece: int) -> int:
        raise TimeoutError("of the task")

    task = unbound if error is UnboundLocalError else late
    with Client(scheduler, set_as_default=False) as client:
        fold = DaskFold(lambda: _already(client))
        with pytest.raises(error, match="'found'|of the task"):
            fold(task, [1, 2], operator.add)
        assert fold(operator.neg, [1, 2], operator.add) == -3
