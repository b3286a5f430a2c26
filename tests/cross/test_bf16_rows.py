"""Products of bf16 on aarch64 whose rows are read in place, and packed ones, and convolutions, beside PyTorch."""

from __future__ import annotations

from copy import deepcopy

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


@pytest.mark.parametrize(("window", "stride"), [(7, 2), (5, 1), (5, 3)])
def test_columns_of_windows_in_pairs(hosts: Hosts, window: int, stride: int) -> None:
    """Of few channels, whose image is read without masks in registers."""
    torch.manual_seed(0)
    conv = torch.nn.Conv2d(3, 20, window, stride, 2).bfloat16().eval()
    sizes = {0: Dim("b", max=8), 2: Dim("h", min=8, max=256), 3: Dim("w", min=8, max=256)}
    exported = export(conv, (torch.randn(2, 3, 20, 24).bfloat16(),), dynamic_shapes=(sizes,))
    program, artifact = build(exported, Options(target="aarch64+bf16", cache=""))
    model = RemoteModel(artifact, hosts("aarch64+bf16")).compiled(program)
    wide = deepcopy(conv).double()
    for b, h, w in ((1, 8, 9), (2, 13, 40), (1, 56, 57)):
        x = torch.randn(b, 3, h, w).bfloat16()
        want = wide(x.double())
        assert (model(x).double() - want).abs().max() <= 2**-8 * want.abs().max()
