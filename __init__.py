"""Delete people from trained models, and from the data behind them."""

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
