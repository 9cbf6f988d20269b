"""Import and generation of data sets, as jobs that can be resumed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ..storage import ingest
from ..storage.cells import check_cells
from ..storage.copies import CopiedRows
from ..storage.dataset import DataSet
from ..storage.generators import (
    BotnetLike,
    CovtypeLike,
    GaussianMixture,
    HeartbeatLike,
    HiggsLike,
)
from ..storage.importers import open_source
from ..storage.ingest import Progress
from ..storage.random_features import WithRandomFeatures
from ..storage.rows import RowSource
from ..storage.sparse_ingest import import_sparse
from ..storage.sparse_rows import SparseSource
from ..storage.svmlight import SVMLIGHT
from .errors import UsageError
from .input_files import input_files
from .ledger import now
from .lineage import lineage
from .sparse_importing import SPARSE_GENERATORS, is_sparse, open_sparse
from .workspace import Workspace

GENERATION = 1
GAUSSIAN = "gaussian"
_LIKE_PUBLISHED: dict[str, Callable[[int, int], RowSource]] = {
    "botnet": BotnetLike,
    "covtype": CovtypeLike,
    "heartbeat": HeartbeatLike,
    "higgs": HiggsLike,
}
GENERATORS = (*_LIKE_PUBLISHED, *SPARSE_GENERATORS, GAUSSIAN)
"""What can be generated: rows like those of published data sets, and a mixture of Gaussians."""


def open_generator(
    like: str,
    rows: int,
    features: int | None,
    clusters: int | None,
    seed: int,
    deviation: float | None = None,
) -> RowSource:
    """Return the generator that ``data generate --like`` names, one of GENERATORS.

    features, clusters and deviation shape the mixture of Gaussians alone; None: as by default.
    """
    if like == GAUSSIAN:
        return GaussianMixture(
            rows,
            25 if features is None else features,
            5 if clusters is None else clusters,
            seed,
            GaussianMixture.DEVIATION if deviation is None else deviation,
        )
    if like not in _LIKE_PUBLISHED:
        raise UsageError(f"there is no generator {like!r}; known: {', '.join(GENERATORS)}")
    if (features, clusters, deviation) != (None, None, None):
        raise UsageError(f"--features, --clusters and --deviation belong to --like {GAUSSIAN}")
    return _LIKE_PUBLISHED[like](rows, seed)


def source_of(asked: dict[str, Any], salt: bytes, progress: Progress) -> RowSource:
    """Open the source that an import or generation job asked for.

    Categories of one-hot columns are found by a first pass, which shows its progress.
    """
    source = _opened(asked, salt, progress)
    # A job recorded before there were random features and copies does not say.
    if asked.get("random_features") is not None:
        source = WithRandomFeatures(source, asked["random_features"], asked["seed"])
    return source if asked.get("copies", 1) == 1 else CopiedRows(source, asked["copies"])


def _opened(asked: dict[str, Any], salt: bytes, progress: Progress) -> RowSource:
    """The rows of the files or generator asked for."""
    if asked["kind"] == "generate":
        options = {k: asked[k] for k in ("like", "rows", "features", "clusters", "seed")}
        # A job recorded before there was a choice does not say.
        return open_generator(**options, deviation=asked.get("deviation"))
    files = input_files(asked["files"])
    # A job recorded before there were sparse rows does not say.
    if asked.get("first_column") is not None:
        raise UsageError(
            f"--first-column: not for {asked['format']} files, whose columns have names or places; "
            f"only {SVMLIGHT} files number theirs"
        )
    return open_source(
        files,
        asked["format"],
        label=asked["label"],
        drop=asked["drop"],
        header=asked["header"],
        drop_invalid=asked["drop_invalid"],
        subject=asked["subject"],
        salt=salt,
        one_hot=asked["one_hot"],
        progress=lambda share: progress("finding categories", share),
    )


def make_data_set(
    ws: Workspace, name: str, asked: dict[str, Any], progress: Progress, job: int | None = None
) -> dict[str, Any]:
    """Import or generate the data set ``name`` and enter it in the ledger; return a summary.

    Everything that can be refused is refused before a job is recorded. job: one to repeat.
    """
    ws.check_name("data set", name)
    ledger = ws.ledger
    with ws.lock(f"{asked['kind']} of data set {name}"):
        ws.check_name("data set", name)
        source = open_sparse(asked) if is_sparse(asked) else source_of(asked, ledger.salt, progress)
        if asked["cells"] is not None:
            check_cells(asked["cells"])
        if job is None:
            job = ledger.begin_job(asked["kind"], {"name": name, **asked})
        else:
            ledger.restart_job(job)
        path = ws.data_path(name)
        subjects = "subject" in source.provenance
        attrs = {"name": name, "generation": GENERATION, "created": now(), "subjects": subjects}
        with ledger.failing(job), ledger.step(job, "import"):
            cells, salt = asked["cells"], ledger.salt
            if isinstance(source, SparseSource):
                done = import_sparse(source, path, salt, attrs, cells=cells, progress=progress)
            else:
                done = ingest.import_rows(source, path, salt, attrs, cells=cells, progress=progress)
        data = done.data_set
        summary = {
            "job": job,
            "data": name,
            "rows": done.rows,
            "dropped": done.dropped,
            "features": data.features,
            "label": data.label_name,
            "subjects": subjects,
            "cells": data.cells,
            "capacity": data.capacity,
        }
        with ledger.transaction():
            ledger.run(
                "INSERT INTO data_sets VALUES (?, ?, ?, ?, ?, ?)",
                name,
                GENERATION,
                ws.relative(path),
                done.rows,
                now(),
                json.dumps({**summary, "source": source.provenance}),
            )
            ledger.event("data set", {"name": name, "rows": done.rows})
            ledger.end_job(job, "done", summary)
    return summary


def describe_data_set(ws: Workspace, name: str) -> dict[str, Any]:
    """Return what ``data show`` tells: shape, source, live rows, models trained on it."""
    row = ws.ledger.data_set(name)
    detail = json.loads(row["detail"])
    models = ws.ledger.rows("SELECT name FROM models WHERE data_set = ? ORDER BY name", name)
    path = ws.root / row["folder"]
    return {
        **{k: v for k, v in detail.items() if k not in ("job", "rows")},
        "generation": row["generation"],
        "rows_imported": detail["rows"],
        "rows": row["rows"],
        "created": row["created"],
        "path": row["folder"],
        "bytes": sum(f.stat().st_size for f in path.rglob("*") if f.is_file()),
        "models": [m["name"] for m in models],
        "lineage": lineage(ws.ledger, name),
        "feature_names": list(DataSet.open(path).feature_names),
    }
