"""The addresses of a history's arrays: never those of arrays that were replaced, or of a copy's original."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import joblib
import numpy as np
import pytest
from replay_checks import check_steps, compare, overlapping, steps_of

from expunge import DCKMeans, KMeans
from expunge.pipeline.packed import Packed


def fitted() -> KMeans:
    model = KMeans(4, random_state=0, bounds=(-2.0, 5.0)).fit(overlapping(600, 3, 1))
    model.delete(0)
    return model


def addresses_of(model: KMeans, packed: Packed) -> np.ndarray:
    rows = model._rows
    return packed.of(steps_of(model), rows.x, rows._fixed, rows.units)


def test_addresses_are_looked_up_once_and_again_where_an_array_is_another() -> None:
    model = fitted()
    rows, packed = model._rows, Packed()
    table = addresses_of(model, packed)
    assert addresses_of(model, packed) is table
    assert table[0] == steps_of(model).quantized.ctypes.data
    for number, name in ((25, "x"), (26, "_fixed"), (27, "units")):
        other = getattr(rows, name).copy()
        setattr(rows, name, other)
        assert addresses_of(model, packed)[number] == other.ctypes.data
    m = steps_of(model)
    replaced = m._replace(drift=m.drift.copy())
    found = packed.of(replaced, rows.x, rows._fixed, rows.units)
    assert found[m._fields.index("drift")] == replaced.drift.ctypes.data


@pytest.mark.parametrize("through", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_writes_to_its_own_arrays_alone(through: Callable[[KMeans], KMeans]) -> None:
    model = fitted()
    other = through(model)
    assert not len(other._history._packed.table)  # type: ignore[union-attr]
    rows = model._rows
    arrays: list[np.ndarray] = [*steps_of(model), rows.x, rows._fixed, rows.units]
    before = [array.copy() for array in arrays]
    for unit in range(1, 30):
        assert other.delete(unit).rows == 1
    assert all(np.array_equal(a, b) for a, b in zip(arrays, before, strict=True))
    compare(other)
    check_steps(other)


@pytest.mark.parametrize("which", ["x", "units", "margins"])
def test_read_only_arrays_are_refused_and_the_model_stays(which: str) -> None:
    model = copy.deepcopy(fitted())
    rows, m = model._rows, steps_of(model)
    array = getattr(m, which) if which == "margins" else getattr(rows, which)
    array.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        model.delete(5)
    array.flags.writeable = True
    compare(model)
    assert model.delete(5).rows == 1
    compare(model)


@pytest.mark.parametrize(
    ("model", "leaving"),
    [
        (KMeans(4, random_state=0, provenance="none"), [5]),
        (DCKMeans(4, n_leaves=4, random_state=0), [5]),
        (DCKMeans(4, n_leaves=4, random_state=0, provenance="none"), [5]),
        (KMeans(4, random_state=0), [5]),
        (KMeans(4, random_state=0), range(600)),
    ],
)
def test_a_model_of_mapped_files_answers_on_after_a_refused_deletion(
    tmp_path: Path, model: KMeans | DCKMeans, leaving: list[int]
) -> None:
    x = overlapping(600, 3, 1)
    wanted = model.fit(x).predict(x)
    joblib.dump(model, tmp_path / "model")
    mapped = joblib.load(tmp_path / "model", mmap_mode="r")
    with pytest.raises(ValueError, match="read-only"):
        mapped.delete(leaving)
    assert mapped.delete(9999).ignored == 1
    np.testing.assert_array_equal(mapped.predict(x), wanted)
    own = copy.copy(mapped)
    assert own.delete(leaving).rows == len(leaving)
