"""A study's workspace: its rows and a model of every kind, made by the jobs that users run.

What a killed run left of a job is gone on with. Nothing here commits or erases a deletion.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..pipeline.regression import INFL, NO_PROVENANCE
from ..storage.errors import BadInputError
from .console import Update
from .errors import JobError, UsageError
from .experiment_clock import Clock
from .experiment_priu_rows import DATA, Origin, asked_rows, describe
from .experiment_priu_sets import SETS, SOURCES, Setting
from .experiment_priu_settings import VALIDATION, Settings, Study
from .experiment_results import write_json
from .fold import Fold
from .importing import make_data_set
from .pending import open_readable
from .regression_store import folder_size
from .sparse_store import COEFFICIENTS
from .training import SPARSE_ALGORITHMS, parse_parameters, train
from .workspace import Workspace

WORK = "work"
"""The folder of all studies' workspaces; nothing in it is a result."""
_GONE = ".gone"
MOST_INFLUENCED = 2000
"""Features x classes up to which the influence function is compared; the paper left out larger ones."""
Folds = Callable[[Workspace], AbstractContextManager[Fold]]
"""Opens what the trainings' tasks run on."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A study that can be measured; may be sent to another process."""

    study: Study
    settings: Settings
    workspace: Path
    data: dict[str, Any]
    """What the rows are."""
    kinds: tuple[str, ...]
    """Kinds of provenance that there is a model of, named like it; ``none`` last."""
    left_out: dict[str, str]
    """Why there is none of the others."""


def prepare(
    root: Path, study: Study, settings: Settings, origin: Origin, folds: Folds, update: Update
) -> Prepared:
    """Make what is not there yet of a study's workspace below ``root``.

    Raises JobError, or BadInputError, where the rows or every model can't be made.
    """
    if origin.sparse and not SPARSE_ALGORITHMS:
        raise JobError(
            f"set {study.data_set}: its rows are sparse, and no algorithm takes such rows"
        )
    with study_workspace(root, study, settings.identity(), origin) as ws:
        data = make_rows(ws, study, settings, origin, update)
        with folds(ws) as fold:
            kinds, left_out = _models(ws, study, settings, fold, update)
    if not set(kinds) - {NO_PROVENANCE}:
        raise JobError("; ".join(left_out.values()))
    return Prepared(study, settings, workspace_of(root, study), data, kinds, left_out)


def workspace_of(root: Path, study: Study) -> Path:
    """The folder of a study's workspace."""
    return root / WORK / study.folder / "workspace"


@contextmanager
def study_workspace(
    root: Path,
    study: Study,
    identity: Mapping[str, Any],
    origin: Origin,
    salt: bytes | None = None,
) -> Iterator[Workspace]:
    """Open a study's workspace, or make it; identity: the settings that all in it depends on.

    salt: 16 bytes that order the rows; random if None.
    """
    _for_these(root, study, identity, origin)
    path = workspace_of(root, study)
    there = (path / "ledger.sqlite").is_file()
    with Workspace.open(path) if there else _fresh(path, salt) as ws:
        ws.note_dead_jobs()
        yield ws


def _for_these(root: Path, study: Study, identity: Mapping[str, Any], origin: Origin) -> None:
    """Make a study's folder; one that was begun with other settings or files is thrown away."""
    head = root / WORK / study.folder / "made_with.json"
    asked = {"settings": dict(identity), "files": [str(path) for path in origin.files]}
    if head.parent.exists():
        try:
            if json.loads(head.read_bytes()) == asked:
                return
        except (OSError, ValueError):
            pass
        discard(root, study)
    head.parent.mkdir(parents=True)
    write_json(head, asked)


def _fresh(path: Path, salt: bytes | None) -> Workspace:
    """A new workspace; what a killed run had begun of one goes."""
    shutil.rmtree(path, ignore_errors=True)
    return Workspace.create(path, salt)


def make_rows(
    ws: Workspace, study: Study, settings: Settings, origin: Origin, update: Update
) -> dict[str, Any]:
    """Import or generate the rows; return what they are."""
    if ws.ledger.row("SELECT name FROM data_sets WHERE name = ?", DATA) is None:
        update(f"{study.folder}: data set")
        asked, file = asked_rows(study, origin, settings, ws.root.parent)
        asked["copies"] = origin.copies
        clock = Clock(update, study.folder)
        make_data_set(ws, DATA, asked, clock.share, _interrupted(ws, asked["kind"], DATA))
        if file is not None:
            file.unlink()
    row, data_set = open_readable(ws.ledger, DATA, ws.root)
    return {
        "data": SETS[study.data_set].data,
        "note": describe(origin, row["rows"], data_set.features),
        "rows": row["rows"],
        "features": data_set.features,
        "bytes": folder_size(data_set.path),
        "sparse": data_set.sparse,
    }


def _models(
    ws: Workspace, study: Study, settings: Settings, fold: Fold, update: Update
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Train a model of every kind that can be kept, and one without provenance for the methods that
    need none; also returns why others can't be trained."""
    setting = SETS[study.data_set]
    kinds, left_out = [], {}
    wanted: tuple[str, ...] = (*settings.kinds, NO_PROVENANCE)
    if setting.algorithm in SPARSE_ALGORITHMS:
        wanted = (COEFFICIENTS,)
    for kind in wanted:
        own: dict[str, Any] = {"validation": VALIDATION, "provenance": kind}
        if kind == NO_PROVENANCE and INFL in settings.methods:
            own |= for_influence(setting)
        parameters = {**setting.parameters(study.preset), **own}
        told = naming(study, kind, update)
        try:
            make_model(ws, kind, setting.algorithm, parameters, settings, fold, told)
        except (JobError, BadInputError) as error:
            left_out[kind] = str(error)
            continue
        kinds.append(kind)
    return tuple(kinds), left_out


def make_model(
    ws: Workspace,
    name: str,
    algorithm: str,
    parameters: Mapping[str, Any],
    settings: Settings,
    fold: Fold,
    progress: Callable[[str], None],
) -> None:
    """Train a model on a study's rows unless it is there; goes on with what a killed run left."""
    if ws.ledger.row("SELECT name FROM models WHERE name = ?", name) is not None:
        return
    asked = {
        "data": DATA,
        "algorithm": algorithm,
        "parameters": dict(parameters),
        "seed": settings.seed,
        "memory": settings.memory,
        "disk": settings.disk,
    }
    train(ws, name, asked, fold, progress, _interrupted(ws, "train", name))


def for_influence(setting: Setting) -> dict[str, Any]:
    """The parameter with which a model keeps the Hessian that method ``infl`` takes.

    None for models that keep it anyway, or are so large that nobody would.
    """
    source = SOURCES[setting.data]
    if source.features * (source.classes or 1) > MOST_INFLUENCED:
        return {}
    try:
        return parse_parameters(setting.algorithm, {"hessian": "true"})
    except UsageError:
        return {}


def naming(study: Study, model: str, update: Update) -> Callable[[str], None]:
    """Return what shows a training's progress, with the time left where that can be told."""
    return Clock(update, f"{study.folder}, {model}").counted


def _interrupted(ws: Workspace, job: str, name: str) -> int | None:
    """The last job that was to make this data set or model, and died."""
    found = None
    for row in ws.ledger.rows(
        "SELECT id, asked FROM jobs WHERE kind = ? AND state = 'interrupted' ORDER BY id", job
    ):
        asked = json.loads(row["asked"])
        if asked["model" if job == "train" else "name"] == name:
            found = int(row["id"])
    return found


def discard(root: Path, study: Study) -> None:
    """Remove a study's workspace; a half of one is never left under its name."""
    folder = root / WORK / study.folder
    if folder.exists():
        gone = folder.with_name(folder.name + _GONE)
        shutil.rmtree(gone, ignore_errors=True)
        folder.rename(gone)
    sweep_discarded(root)


def sweep_discarded(root: Path) -> None:
    """Remove what is left of workspaces that were being removed when the process was killed."""
    for gone in (root / WORK).glob(f"*{_GONE}"):
        shutil.rmtree(gone, ignore_errors=True)
