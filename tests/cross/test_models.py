"""Whole models compiled for aarch64, on several threads of the host there, against eager here."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.export import ExportedProgram, export
from torch.utils._pytree import tree_leaves

from dhlo.api import build
from dhlo.model import CompiledModel
from dhlo.options import Options
from tests import small_decoders, small_vision  # noqa: F401  (which add to SMALL)
from tests.conftest import Example
from tests.cross.remote import Hosts, RemoteModel
from tests.small_models import SMALL

THREADS = 3


def remote(hosts: Hosts, exported: ExportedProgram, target: str = "aarch64") -> CompiledModel:
    program, artifact = build(exported, Options(target=target))
    return RemoteModel(artifact, hosts(target), THREADS).compiled(program)


def close(got: Any, want: Any) -> None:
    for g, w in zip(tree_leaves(got), tree_leaves(want), strict=True):
        scale = float(w.abs().max()) if w.numel() and w.is_floating_point() else 1.0
        torch.testing.assert_close(g, w, rtol=1e-3, atol=1e-4 * max(1.0, scale))


def test_encoder(hosts: Hosts, encoder: Example) -> None:
    model = remote(hosts, encoder.exported)
    for sizes in ((1, 1), (2, 7), (3, 64), (16, 33)):
        given = encoder.inputs(*sizes)
        with torch.no_grad():
            close(model(*given), encoder.model(*given))


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_small_model(hosts: Hosts, name: str) -> None:
    torch.manual_seed(0)
    module, args, dims, sizes = SMALL[name]()
    module.eval()
    with torch.no_grad():
        model = remote(hosts, export(module, args(*sizes[0]), dynamic_shapes=dims))
    for n in sizes:
        given = args(*n)
        with torch.no_grad():
            want = copy.deepcopy(module)(*copy.deepcopy(given))
        model.reset_state()
        close(model(*given), want)
