"""What tests of incremental replay in memory hold a model and its history against."""

from __future__ import annotations

import numpy as np
from support import refit, same

from expunge import KMeans
from expunge.pipeline.history import PER_STEP
from expunge.pipeline.incremental import Steps, net_shrinkage
from expunge.pipeline.listed import SPAN


def steps_of(model: KMeans) -> Steps:
    """What replay keeps; asking for the record completes what is left to do."""
    assert model.record_ and model._history
    return model._history._steps


def compare(model: KMeans) -> None:
    """Fail unless the model is a fit on the rows that are left, in every bit."""
    kept = model._rows.units >= 0
    same(model.record_, refit(model._rows.x[kept], model._rows.units[kept], model._settings))


def true_margins(model: KMeans, t: int) -> tuple[np.ndarray, np.ndarray]:
    """Each live row's label, by int64, and true margin at step t, to 2^-60 of the distance."""
    fixed = model._rows._fixed[model._rows.units >= 0].astype(np.int64)
    centres = 2 * steps_of(model).quantized[t]
    squares = np.stack([((fixed - centre) ** 2).sum(axis=1) for centre in centres], axis=1)
    labels = squares.argmin(axis=1)
    ordered = np.sqrt(np.sort(squares, axis=1)[:, :2].astype(np.longdouble))
    return labels, ordered[:, 1] - ordered[:, 0]


def listed(m: Steps, t: int) -> tuple[np.ndarray, np.ndarray]:
    """The places of a step's listed rows, and their entries in the list."""
    entries = [np.arange(a, b) for a, b in zip(m.starts[t], m.ends[t], strict=True)]
    spans = np.repeat(np.arange(len(entries)), [len(e) for e in entries])
    found = np.concatenate(entries).astype(np.int64)
    return spans * SPAN + m.near[t][found], found


def held_margins(m: Steps, t: int) -> np.ndarray:
    """What replay takes each row's margin (n,) to be at least; infinite for rows that are gone."""
    shrink = np.empty(m.sizes.shape[1])
    net_shrinkage(t, m, shrink)
    held: np.ndarray = m.margins[t].astype(np.longdouble) - shrink[m.labels[t]]
    places, entries = listed(m, t)
    held[places] = m.until[t][entries].astype(np.longdouble) - m.drift[t]
    return held


def check_steps(model: KMeans) -> None:
    """Fail unless each step's labels are those of a fresh pass, and no stored bound is too high.

    The rows that a deletion did not look at are among them: they would not have changed.
    """
    m = steps_of(model)
    count, live = int(m.state[1]), model._rows.units >= 0
    for t in range(count):
        labels, margins = true_margins(model, t)
        np.testing.assert_array_equal(m.labels[t][live], labels)
        assert (held_margins(m, t)[live] <= margins).all()
        assert np.isposinf(m.margins[t][~live]).all() and not m.labels[t][~live].any()
        check_list(m, t, live)
    for name in PER_STEP:
        assert not getattr(m, name)[count:].any(), name


def check_list(m: Steps, t: int, live: np.ndarray) -> None:
    """Fail unless a step's list has live rows alone, each once, and all others reach far enough."""
    places, entries = listed(m, t)
    assert (np.diff(places) > 0).all() and live[places].all()
    np.testing.assert_array_equal(m.own[t][entries], m.labels[t][places])
    assert not m.margins[t][places].any()
    rest = live.copy()
    rest[places] = False
    assert (m.margins[t][rest] >= m.reach[t]).all() or not len(entries)
    empty = np.ones(len(m.near[t]), np.bool_)
    empty[entries] = False
    for array in (m.near[t], m.until[t], m.own[t]):
        assert not array[empty].any()


def overlapping(rows: int, features: int, state: int) -> np.ndarray:
    rng = np.random.default_rng(state)
    return (rng.integers(0, 4, (rows, 1)) + rng.normal(0, 0.4, (rows, features))).astype(np.float32)
