"""Model versions of DC-k-means: arrays give the tree back, chunks of other leaves are linked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_divided_stored import TREES, blobs, in_memory, leaves, stored
from test_real_data_exact import differences
from test_storage import SALT

from expunge.jobs import divided_arrays
from expunge.jobs.divided_arrays import Tree, digest_of, stored_arrays, write_tree
from expunge.jobs.fold import InlineFold
from expunge.jobs.plan import gather
from expunge.jobs.train_divided import StoredTree
from expunge.pipeline.divided import DividedSettings, leaf_of
from expunge.storage.cells import hash_units
from expunge.storage.errors import CorruptError
from expunge.storage.versions import check_version, open_version, read_version


def written(
    folder: Path, tree: StoredTree, settings: DividedSettings, before: Tree | None = None
) -> Tree:
    return Tree(open_version(folder, write_tree(folder, {}, tree, settings, before)), settings)


@pytest.mark.parametrize("arguments", TREES)
def test_arrays_give_the_tree_back(arguments: dict[str, Any], tmp_path: Path) -> None:
    x = blobs(500)
    data = stored(tmp_path / "t.zarr", x, 16)
    settings = in_memory(x, n_clusters=4, **arguments)._settings
    tree = leaves(data, settings, InlineFold()).fit()
    opened = written(tmp_path / "v1", tree, settings)
    assert list(differences(opened.extent, tree.extent)) == []
    assert list(differences(opened.upper, tree.upper)) == []
    for leaf, record in tree.records.items():
        assert list(differences(opened.leaf(leaf), record)) == []
    arrays = {name: a.values for name, a in stored_arrays(tree, settings).items()}
    found, attrs = read_version(tmp_path / "v1")
    assert found.keys() - {"digests"} == arrays.keys()
    assert attrs["digest"] == digest_of(arrays) == digest_of(found)
    json_ = json.loads(json.dumps(divided_arrays.settings_to_json(settings)))
    assert divided_arrays.settings_from_json(json_) == settings


def test_a_next_version_links_the_chunks_of_other_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(divided_arrays, "CHUNK_BYTES", 2 * 8 * 11 * 4 * 4)
    x = np.random.default_rng(0).random((2000, 4)).astype(np.float32)
    data = stored(tmp_path / "t.zarr", x, 16)
    settings = in_memory(x, n_clusters=4, n_leaves=16)._settings
    before = written(tmp_path / "v1", leaves(data, settings, InlineFold()).fit(), settings)
    assert before.version.specs["leaf_sums"].chunks == (2, 11, 4, 4)
    gathered = gather(data, np.array([17]), SALT, InlineFold())
    leaf = int(leaf_of(hash_units(np.array([17]), SALT), 16)[0])
    change = leaves(data, settings, InlineFold(), gathered).delete(
        before.extent, before.upper, before.leaf, gathered.removed
    )
    after = written(tmp_path / "v2", change, settings, before)
    check_version(after.version)
    for name in (f"leaf_{n}" for n in divided_arrays.PER_STEP):
        for group in range(8):
            (chunk,) = (tmp_path / "v2" / name).glob(f"c.{group}.*") or [tmp_path / "v2" / name]
            old = tmp_path / "v1" / name / chunk.name
            assert (chunk.stat().st_ino == old.stat().st_ino) == (group != leaf // 2)
    again = leaves(data, settings, InlineFold(), gathered).fit()
    assert after.version.attrs["digest"] == digest_of(
        {name: a.values for name, a in stored_arrays(again, settings).items()}
    )
    # A chunk that would be linked is looked at first.
    (chunk,) = (tmp_path / "v1" / "leaf_sums").glob(f"c.{(leaf // 2 + 1) % 8}.*")
    flip(chunk)
    with pytest.raises(CorruptError, match="digest"):
        write_tree(tmp_path / "v3", {}, change, settings, before)


def test_room_for_steps_follows_the_longest_leaf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it changes, all chunks are cut anew; the digest stays that of a retrain."""
    monkeypatch.setattr(divided_arrays, "CHUNK_BYTES", 1)
    x = blobs(400)
    data = stored(tmp_path / "t.zarr", x, 16)
    settings = in_memory(x, n_clusters=3, n_leaves=8, max_iter=40, bounds=(-2, 7))._settings
    tree = leaves(data, settings, InlineFold()).fit()
    before = written(tmp_path / "v0", tree, settings)
    rooms = [before.version.specs["leaf_loss"].shape[1]]
    home = leaf_of(hash_units(np.arange(400), SALT), 8)
    gone = np.empty(0, np.int64)
    # The leaf with the most steps goes, and so on.
    for leaf in np.argsort(-before.steps, kind="stable").tolist():
        new = gather(data, np.flatnonzero(home == leaf), SALT, InlineFold())
        gone = np.union1d(gone, new.removed.units)
        gathered = gather(data, gone, SALT, InlineFold())
        change = leaves(data, settings, InlineFold(), gathered).delete(
            before.extent, before.upper, before.leaf, new.removed
        )
        before = written(tmp_path / f"v{1 + len(rooms)}", change, settings, before)
        again = leaves(data, settings, InlineFold(), gathered).fit()
        expected = {name: a.values for name, a in stored_arrays(again, settings).items()}
        assert before.version.attrs["digest"] == digest_of(expected)
        rooms.append(before.version.specs["leaf_loss"].shape[1])
    assert len(set(rooms)) >= 3 and rooms[-1] == 1


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[3] ^= 4
    file.write_bytes(data)
