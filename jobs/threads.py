"""One BLAS thread: threads that wait for busy cores make small products many times slower."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController


def one_blas_thread() -> AbstractContextManager[Any]:
    """Limit BLAS to one thread inside the block; results then do not depend on the machine's cores."""
    limited: AbstractContextManager[Any] = _controller(os.getpid()).limit(limits=1, user_api="blas")
    return limited


@cache
def _controller(process: int) -> ThreadpoolController:
    """The process's BLAS libraries, looked up once: that takes longer than a small update."""
    return ThreadpoolController()
