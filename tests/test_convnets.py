"""The benchmark of convolution networks: that its programs run at all their shapes, and how results are summed up."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import convnets, convnets_narrow, diffusion, measure
from benchmarks.convnets import main, networks, table
from dhlo.bench.ceilings import Ceilings
from dhlo.bench.peers import PEERS


def test_every_network_has_shapes_within_its_dims() -> None:
    for tiny in (False, True):
        known = networks(tiny)
        assert len(known) == 13
        for w in known.values():
            (dims,) = w.dynamic_shapes
            for shape in [*w.shapes, w.export_shape]:
                (x,) = w.arguments(shape)
                assert x.shape[0] == shape[0] and len(dims) == len(shape) == x.dim() - 1


MEASURED = {convnets: ("whisper_front", "generator", "mobilenet_v3"), diffusion: diffusion.networks(tiny=True)}


@pytest.mark.slow
@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in MEASURED.items() for name in names])
def test_networks_are_measured(module: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if module is diffusion:
        pytest.importorskip("diffusers")
    monkeypatch.setattr(measure, "measure", lambda threads: Ceilings(1, 100.0, 200.0, 100.0, 50.0, 20.0))
    w = module.networks(tiny=True)[name]
    subject = (f"{module.__name__}:subject", {"name": name, "tiny": True})
    result = measure.measure_workload(w, ["eager", "dhlo"], 1, budget=0.0, rounds=1, results=tmp_path, subject=subject)
    assert all("error" not in f for f in result["peers"].values())
    assert table([result])[1].startswith(name)


def test_table() -> None:
    ours = {"min_ms": [1.0, 2.0], "errors": [1e-7, 2e-6]}
    peers = {"eager": {"min_ms": [4.0, 8.0]}, "ort": {"min_ms": [2.0, 9.0]}, "dhlo": ours}
    result = {"workload": "net", "labels": ["1x8", "2x8"], "floor_ms": [0.5, 1.0], "peers": peers}
    head, line = table([result])
    assert head.split()[0] == "network" and line.split()[:5] == ["net", "2.83", "2.00", "50%", "2.0e-06"]
    assert line.endswith("1x8 2.00  2x8 4.00")
    assert table([{**result, "peers": {"dhlo": {"error": "no kernel"}}}])[1].endswith("no kernel")


@pytest.mark.parametrize("form", ["bf16", pytest.param("int8", marks=pytest.mark.slow)])
def test_networks_in_narrow_types_are_compared(form: str) -> None:
    if form == "int8":
        pytest.importorskip("torchao")
    w = networks(tiny=True)["resnet18" if form == "int8" else "whisper_front"]
    figures = convnets_narrow.compare(w, form, 1, 0.0, convnets_narrow.peers_of(form, ["eager"]))
    assert [len(f.least) for f in figures] == [len(w.shapes)] * (2 if form == "int8" else 3)
    assert min(t for f in figures for t in f.least) > 0
    assert max(figures[0].errors) == 0 and all(0 < max(f.errors) < 0.2 for f in figures[1:])


def test_narrow_row() -> None:
    w = networks(tiny=True)["whisper_front"]
    times, errors = ([2.0, 4.0], [1.0, 1.0], [4.0, 1.0]), ([0.0, 0.0], [0.01, 0.02], [0.03, 0.01])
    line = convnets_narrow.row(w, [convnets_narrow.Figures(t, e) for t, e in zip(times, errors, strict=True)])
    assert line.split()[:7] == ["whisper_front", "2.83", "2.00", "2.00", "1.00", "2.0e-02", "3.0e-02"]


def test_networks_that_stay_as_they_are_are_no_figures() -> None:
    pytest.importorskip("torchao")
    with pytest.raises(ValueError, match="leaves all convolutions as they are"):
        convnets_narrow.compare(networks(tiny=True)["whisper_front"], "int8", 1, 0.0, [])


def test_wrong_results_are_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    w = networks(tiny=True)["whisper_front"]
    monkeypatch.setattr(PEERS["dhlo"], "tensors", lambda self, x: [x.relu() if x.dtype == torch.bfloat16 else x])
    with pytest.raises(ValueError, match="of their scale from f32's, those of others"):
        convnets_narrow.compare(w, "bf16", 1, 0.0)


def test_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """No two options of one name, which the parser finds out where it is made."""
    monkeypatch.setattr(sys, "argv", ["convnets", "--network", "nothing", "--tiny", "--dtype", "bf16"])
    assert main() == 2
