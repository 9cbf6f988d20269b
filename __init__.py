"""Delete people from trained models, and from the data behind them."""

from .pipeline.clusterers import KMeans, QKMeans

__all__ = ["KMeans", "QKMeans"]
