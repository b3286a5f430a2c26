"""The cache of compiled programs: found again when nothing changed, not found when something did, harmless when damaged."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.export import Dim

import dhlo
from dhlo.cache import Cache


def export(weight: float) -> torch.export.ExportedProgram:
    m = torch.nn.Linear(5, 3)
    torch.nn.init.constant_(m.weight, weight)
    torch.nn.init.zeros_(m.bias)
    return torch.export.export(m, (torch.ones(2, 5),), dynamic_shapes=({0: Dim.DYNAMIC},))


def entries(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_found_again_unless_something_changed(tmp_path: Path) -> None:
    x = torch.ones(7, 5)
    first = dhlo.compile(export(1.0), cache=str(tmp_path))
    one = entries(tmp_path)
    assert len(one) == 1
    again = dhlo.compile(export(1.0), cache=str(tmp_path))
    assert entries(tmp_path) == one
    assert torch.equal(first(x), again(x)) and again(x)[0, 0] == 5
    other = dhlo.compile(export(2.0), cache=str(tmp_path))  # the same program with other weights
    assert len(entries(tmp_path)) == 2 and other(x)[0, 0] == 10
    again.save(tmp_path / "model.so")
    assert torch.equal(dhlo.load(tmp_path / "model.so")(x), first(x))


def test_damaged_entries_are_compiled_again(tmp_path: Path) -> None:
    dhlo.compile(export(1.0), cache=str(tmp_path))
    (entry,) = tmp_path.iterdir()
    code = entry / "code.pickle"
    code.write_bytes(code.read_bytes()[:-1])
    assert dhlo.compile(export(1.0), cache=str(tmp_path))(torch.ones(1, 5))[0, 0] == 5


def test_old_entries_go_when_the_folder_is_full(tmp_path: Path) -> None:
    cache = Cache(tmp_path, max_bytes=0)
    artifacts = [dhlo.api.build(export(w), dhlo.Options(cache=""))[1] for w in (1.0, 2.0)]
    cache.put("a", artifacts[0])
    cache.put("b", artifacts[1])
    assert entries(tmp_path) == ["b"]
    assert cache.get("a") is None and cache.get("b") is not None
