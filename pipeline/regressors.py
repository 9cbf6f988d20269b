"""Linear, logistic and softmax regression on NumPy arrays, with scikit-learn's face and a ``delete``.

Example
-------
>>> import numpy as np
>>> from expunge import LogisticRegression
>>> rng = np.random.default_rng(0)
>>> x = rng.normal(size=(2000, 3))
>>> y = x[:, 0] + rng.logistic(size=2000) > 0
>>> model = LogisticRegression(batch_size=500, iterations=200, random_state=0).fit(x, y)
>>> model.delete([17, 4]).rows
2
>>> kept = np.delete(np.arange(2000), [4, 17])
>>> model.n_rows_ == len(kept)
True
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .losses import Loss
from .regression_estimator import Regression
from .regression_labels import class_numbers, real_labels, scored_labels


class LinearRegression(Regression):
    """Least squares by mini-batch descent, from which rows can be deleted (PrIU, equation 2).

    Parameters
    ----------
    learning_rate : float or None
        None: half of a mini-batch's 1/L, a safe step (from at most 20,000 rows).
    l2 : float
        Rate of the penalty (l2 / 2) |w|^2 on the standardised features' parameters and the bias.
    batch_size, iterations : int
        Rows a mini-batch, and how many mini-batches.
    random_state : int or None
        Which rows make which mini-batch; None draws one, kept as ``random_state_``.
    provenance : "exact", "averaged", "lowrank", "frozen", "projected", "none" or None
        What is kept for deletions: the curvature of every iteration, its mean over each tenth of
        them, the leading singular vectors of every iteration's, every iteration's up to 70% of them
        and one mean after, or the means in the rows' leading principal components. None: exact up to
        1 GiB, averaged up to 4 GiB, else projected.
    dtype : "float32", "float64" or None
        Of the curvature that is kept; None: float64 for linear models, float32 for the others.

    Attributes
    ----------
    coef_, intercept_ : in the features' own units
        (n_features,) and a float; (1 or classes, n_features) and (1 or classes,) for classifiers.
    classes_ : (classes,) sorted labels of the first fit; classifiers only
    learning_rate_, provenance_, random_state_ : what was chosen
    n_iter_, n_rows_ : int
        Iterations; rows that the model depends on.
    """

    _loss = Loss.LINEAR

    def _encoded(self, y: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[Any]]:
        return real_labels(y), np.empty(0)

    @property
    def coef_(self) -> NDArray[np.float64]:
        coefficients: NDArray[np.float64] = self._raw()[0][0]
        return coefficients

    @property
    def intercept_(self) -> float:
        return float(self._raw()[1][0])

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the predicted numbers (n,)."""
        values: NDArray[np.float64] = self._scores(X)[:, 0]
        return values

    def score(self, X: ArrayLike, y: ArrayLike) -> float:
        """Return R^2; for labels that are all the same, 1 if they are predicted exactly, else 0."""
        predicted = self.predict(X)
        wanted = real_labels(scored_labels(y, len(predicted)))
        residual = float(np.square(wanted - predicted).sum())
        total = float(np.square(wanted - wanted.mean()).sum())
        return 1.0 - residual / total if total > 0.0 else float(residual == 0.0)


class SoftmaxRegression(Regression):
    """Multinomial logistic regression from which rows can be deleted (PrIU, equation 4).

    Parameters and attributes as in ``LinearRegression``; any two or more classes.
    """

    _loss = Loss.SOFTMAX

    def _encoded(self, y: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[Any]]:
        numbers, classes = class_numbers(y)
        return numbers.astype(np.float64), classes

    @property
    def coef_(self) -> NDArray[np.float64]:
        return self._raw()[0]

    @property
    def intercept_(self) -> NDArray[np.float64]:
        return self._raw()[1]

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return each class's score (n, classes)."""
        return self._scores(X)

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return each class's probability (n, classes)."""
        scores = self._scores(X)
        likely = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares: NDArray[np.float64] = likely / likely.sum(axis=1, keepdims=True)
        return shares

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the likeliest classes (n,)."""
        likeliest = np.argmax(self._scores(X), axis=1)
        chosen: NDArray[Any] = self.classes_[likeliest]
        return chosen

    def score(self, X: ArrayLike, y: ArrayLike) -> float:
        """Return the share of rows whose class is predicted right."""
        predicted = self.predict(X)
        return float(np.mean(predicted == scored_labels(y, len(predicted))))


class LogisticRegression(SoftmaxRegression):
    """Binary logistic regression from which rows can be deleted (PrIU, equation 3).

    Parameters and attributes as in ``LinearRegression``; two classes, the second of the sorted one
    being +1.
    """

    _loss = Loss.LOGISTIC

    def _encoded(self, y: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[Any]]:
        numbers, classes = class_numbers(y)
        if len(classes) > 2:
            raise ValueError(f"y has {len(classes)} classes; logistic regression takes exactly 2")
        return np.where(numbers > 0, 1.0, -1.0), classes

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the log-odds (n,) of the second class."""
        odds: NDArray[np.float64] = self._scores(X)[:, 0]
        return odds

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return both classes' probabilities (n, 2)."""
        odds = self._scores(X)
        shares: NDArray[np.float64] = np.exp(-np.logaddexp(0.0, odds * np.array([1.0, -1.0])))
        return shares

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the likelier classes (n,)."""
        second = self._scores(X)[:, 0] > 0.0
        chosen: NDArray[Any] = self.classes_[second.astype(np.intp)]
        return chosen
