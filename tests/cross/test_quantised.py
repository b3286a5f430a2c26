"""Products with right sides of codes, compiled for aarch64 and run there."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export

from dhlo.api import build
from dhlo.compiler import compile_program
from dhlo.options import Options
from tests.codegen.test_quantised import SMALL, check, products
from tests.cross.remote import Hosts, RemoteModel


@pytest.mark.parametrize("target", [pytest.param("aarch64", marks=pytest.mark.slow), "aarch64+dotprod+i8mm"])
@pytest.mark.parametrize("code", ["i8", "i4", *(pytest.param(c, marks=pytest.mark.slow) for c in ("f4e2m1fn", "f8e4m3fn"))])
def test_code(hosts: Hosts, code: str, target: str) -> None:
    module = products(code, SMALL)
    program = module.program()
    model = RemoteModel(compile_program(program, Options(target=target)), hosts(target)).compiled(program)
    for m in (0, 1, 5, 40):
        check(module, model, m)


class Bytes(nn.Module):
    """A left side of bytes times a constant, times a right side given by rows, and times one given by columns."""

    def __init__(self, k: int, n: int) -> None:
        super().__init__()
        self.register_buffer("w", bytes_(k, n))

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Any:
        return torch._int_mm(x, self.w), torch._int_mm(x, y), torch._int_mm(x, z.t())


def bytes_(*size: int, dtype: torch.dtype = torch.int8) -> Tensor:
    """Of all values, the extremes above all."""
    info = torch.iinfo(dtype)
    x = torch.randint(info.min, info.max + 1, size, dtype=dtype)
    extremes = torch.tensor([info.min, info.max], dtype=dtype)[torch.randint(0, 2, size)]
    return torch.where(torch.rand(size) < 0.3, extremes, x)


# What multiplies bytes: nothing, dot products, matrices beside dot products of either sign, matrices alone.
@pytest.mark.parametrize(
    "target",
    [*(pytest.param(t, marks=pytest.mark.slow) for t in ("aarch64", "aarch64+dotprod", "aarch64+i8mm")), "aarch64+dotprod+i8mm"],
)
@pytest.mark.parametrize("dtype", [torch.int8, pytest.param(torch.uint8, marks=pytest.mark.slow)])
def test_products_of_bytes(hosts: Hosts, dtype: torch.dtype, target: str) -> None:
    """Rows, columns and depths that are and aren't whole tiles, registers and units; transposed left sides; deep products."""
    torch.manual_seed(0)
    rows, columns = Dim("rows", min=0), Dim("columns", min=0)
    for k, n in ((1, 1), (4, 33), (8, 8), (37, 70), (68, 5), (2500, 40)):
        module = Bytes(k, n)
        given = (bytes_(4, k, dtype=dtype), bytes_(k, 6), bytes_(6, k))
        program, artifact = build(
            export(module, given, dynamic_shapes=({0: rows}, {1: columns}, {0: columns})), Options(target=target)
        )
        model = RemoteModel(artifact, hosts(target), 2).compiled(program)
        sizes = [(1, 1), (40, 20)] if k > 1000 else itertools.product((0, 1, 2, 3, 11, 12, 13, 25), (9, 34))
        for m, c in sizes:
            x, y, z = bytes_(m, k, dtype=dtype), bytes_(k, c), bytes_(c, k)
            for left in (x, x.t().contiguous().t()):
                for got, right in zip(model(left, y, z), (module.w, y, z.t()), strict=True):
                    want = left.long() @ right.long()
                    assert torch.equal(got.long(), want), (m, k, n, c)
