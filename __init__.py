"""Delete people from trained models, and from the data behind them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .pipeline.clusterers import KMeans, QKMeans
    from .pipeline.divided_estimator import DCKMeans
    from .pipeline.regressors import LinearRegression, LogisticRegression, SoftmaxRegression

__all__ = [
    "DCKMeans",
    "KMeans",
    "LinearRegression",
    "LogisticRegression",
    "QKMeans",
    "SoftmaxRegression",
]

_HOMES = {
    "DCKMeans": ".pipeline.divided_estimator",
    "KMeans": ".pipeline.clusterers",
    "LinearRegression": ".pipeline.regressors",
    "LogisticRegression": ".pipeline.regressors",
    "QKMeans": ".pipeline.clusterers",
    "SoftmaxRegression": ".pipeline.regressors",
}


def __getattr__(name: str) -> Any:
    """Import an estimator when it is asked for (PEP 562): commands that need none start without Numba."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
