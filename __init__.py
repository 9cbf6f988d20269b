"""Delete people from trained models, and from the data behind them."""

from .pipeline.clusterers import KMeans, QKMeans
from .pipeline.regressors import LinearRegression, LogisticRegression, SoftmaxRegression

__all__ = ["KMeans", "LinearRegression", "LogisticRegression", "QKMeans", "SoftmaxRegression"]
