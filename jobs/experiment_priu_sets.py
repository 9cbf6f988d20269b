"""The settings of the PrIU paper's Table 2 by name, and the data sets that they are run on.

Loads nothing heavy: other commands don't wait for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

PAPER, TRAINED = "paper", "trained"
PRESETS = (PAPER, TRAINED)
"""The paper's hyper-parameters, and those that come near the accuracy of a well trained model."""


@dataclass(frozen=True, slots=True)
class Source:
    """A data set of the paper's Table 1, and where its rows come from here."""

    rows: int
    """As the paper has them, like features and classes."""
    features: int
    classes: int | None
    """None where the label is a number."""
    format: str
    patterns: tuple[str, ...] = ()
    """Files that are looked for, the complete ones first."""
    like: str | None = None
    """The generator of rows like these."""
    random_features: int | None = None
    """Added to each row."""
    reference: float | None = None
    """Accuracy (of a linear model: R^2) of a well trained reference model of the same kind."""


SOURCES = {
    "sgemm": Source(
        241_600, 18, None, "sgemm", ("sgemm_product*.zip", "sgemm_product*.csv"), reference=0.561
    ),
    "sgemm-extended": Source(
        241_600, 1518, None, "sgemm", ("sgemm_product*.zip",), None, 1500, reference=0.561
    ),
    "covtype": Source(
        *(581_012, 54, 7, "covtype", ("covtype.data*", "covtype_[0-9]*.data*"), "covtype"),
        reference=0.726,
    ),
    "covtype-extended": Source(11_620_240, 54, 7, "covtype", (), "covtype", reference=0.726),
    "higgs": Source(
        *(11_000_000, 28, 2, "higgs", ("HIGGS.csv*", "HIGGS_[0-9]*.csv*"), "higgs"),
        reference=0.635,
    ),
    "higgs-extended": Source(40_000_000, 28, 2, "higgs", (), "higgs", reference=0.635),
    "heartbeat": Source(
        *(87_553, 188, 7, "heartbeat", ("mitbih_train.csv*", "heartbeat_[0-9]*.npz"), "heartbeat"),
        reference=0.918,
    ),
    "heartbeat-extended": Source(11_381_890, 188, 7, "heartbeat", (), "heartbeat", reference=0.918),
    "rcv1": Source(
        23_149, 47_236, 2, "svmlight", ("rcv1_train*", "rcv1*.svmlight*"), "rcv1", reference=0.882
    ),
    "cifar10": Source(50_000, 3072, 10, "cifar10", ("data_batch_*.bin*",)),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """A row of the paper's Table 2."""

    data: str
    """One of SOURCES."""
    algorithm: str
    batch_size: int
    iterations: int
    learning_rate: float
    l2: float
    trained_rate: float | None = None
    """Learning rate of the trained preset; None: half of the rate that is safe for the data."""
    trained_l2: float = 0.001

    def parameters(self, preset: str) -> dict[str, Any]:
        """Return the hyper-parameters of a preset, as a training job takes them."""
        found: dict[str, Any] = {"batch_size": self.batch_size, "iterations": self.iterations}
        if preset == PAPER:
            return {**found, "learning_rate": self.learning_rate, "l2": self.l2}
        if self.trained_rate is not None:
            found["learning_rate"] = self.trained_rate
        return {**found, "l2": self.trained_l2}


SETS = {
    "sgemm": Setting("sgemm", "linear", 200, 2000, 5e-3, 0.1),
    "sgemm-extended": Setting("sgemm-extended", "linear", 200, 2000, 5e-3, 0.1, 0.0008),
    "cov-small": Setting("covtype", "softmax", 200, 10_000, 1e-4, 0.001, 0.01),
    "cov-large-1": Setting("covtype", "softmax", 10_000, 500, 1e-4, 0.001, 0.1),
    "cov-large-2": Setting("covtype", "softmax", 10_000, 3000, 1e-4, 0.001),
    "higgs": Setting("higgs", "logistic", 2000, 20_000, 1e-5, 0.01),
    "heartbeat": Setting("heartbeat", "softmax", 500, 5000, 1e-5, 0.1, 0.02),
    "rcv1": Setting("rcv1", "sparse-logistic", 500, 3000, 1e-6, 0.5),
    "cifar10": Setting("cifar10", "softmax", 500, 1000, 1e-3, 0.1),
    "cov-extended": Setting("covtype-extended", "softmax", 1000, 40_000, 1e-4, 0.001, 0.01),
    "higgs-extended": Setting("higgs-extended", "logistic", 2000, 60_000, 1e-5, 0.01),
    "heartbeat-extended": Setting("heartbeat-extended", "softmax", 500, 40_000, 1e-5, 0.1, 0.02),
}
EXTENDED = ("higgs-extended", "cov-extended", "heartbeat-extended")
"""The sets of the paper's repeated deletions."""
