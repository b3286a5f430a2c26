"""Products of bf16 on aarch64 whose rows are read in place, and packed ones, beside PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim, export

from dhlo.api import build
from dhlo.options import Options
from tests.cross.remote import Hosts, RemoteModel

pytestmark = [pytest.mark.qemu, pytest.mark.slow]


class Product(torch.nn.Module):
    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x @ w


def test_rows_of_bf16_in_place(hosts: Hosts) -> None:
    m, k, n = Dim("m"), Dim("k"), Dim("n")
    example = torch.randn(4, 6).bfloat16(), torch.randn(6, 8).bfloat16()
    program, artifact = build(
        export(Product(), example, dynamic_shapes=({0: m, 1: k}, {0: k, 1: n})), Options(target="aarch64+bf16", cache="")
    )
    model = RemoteModel(artifact, hosts("aarch64+bf16")).compiled(program)
    for rows, depth, columns in ((1, 7, 5), (13, 200, 40), (12, 129, 33), (30, 257, 70), (7, 64, 32)):
        x, w = torch.randn(rows, depth).bfloat16(), torch.randn(depth, columns).bfloat16()
        want = x.double() @ w.double()
        assert (model(x, w).double() - want).abs().max() <= 1e-2 * want.abs().max()
