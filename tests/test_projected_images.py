"""Kind projected on real images: CIFAR-10 at half its size."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from expunge import SoftmaxRegression
from expunge.pipeline.regression import provenance_bytes

ROWS = 3000


def images(folder: Path) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """(n, 768) pixels of 16 x 16 in three colours, and the classes (n,)."""
    image = pytest.importorskip("PIL.Image", reason="Pillow decodes the folder's images")
    stored = folder / "cifar10_jpeg.npz"
    if not stored.exists():
        pytest.skip("cifar10_jpeg.npz is not in the folder of real data sets")
    with np.load(stored) as arrays:
        data, offsets, labels = (arrays[f"test_{what}"] for what in ("jpeg", "offsets", "labels"))
    opened = (
        image.open(io.BytesIO(data[offsets[i] : offsets[i + 1]].tobytes())) for i in range(ROWS)
    )
    pixels = np.array([np.asarray(one.resize((16, 16))) for one in opened], np.float32)
    x = pixels.transpose(0, 3, 1, 2).reshape(ROWS, -1) / np.float32(255)
    return x.astype(np.float32), labels[:ROWS].astype(np.int64)


@pytest.mark.parametrize("l2", [0.1, 0.001])
def test_updates_of_images_are_near_a_retrain(real_data: Path, l2: float) -> None:
    x, y = images(real_data)
    # Averages would be larger than the default allows.
    assert provenance_bytes("averaged", 10 * 769, 300, "float32") > 2 << 30

    def fitted(kind: str) -> SoftmaxRegression:
        model = SoftmaxRegression(0.002, l2, 300, 300, random_state=0, provenance=kind)
        return model.fit(x, y)

    model, other = fitted("projected"), fitted("none")
    before = other.coef_.copy()
    for gone in (range(3), range(3, 30)):
        found = model.delete(gone)
        other.delete(gone)
        assert found.method == "delta"
        moved = np.linalg.norm(other.coef_ - before)
        assert np.linalg.norm(model.coef_ - other.coef_) < 0.03 * moved
