"""Constants of which sizes or data decide a part, as right sides of products and as tables, and codes that a branch decodes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export

import dhlo


class Parts(nn.Module):
    """Some rows of constants [500, 32], from row n on where x is [n, 32]."""

    def __init__(self, part: str) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(0)
        self.part = part
        self.wide = nn.Parameter(torch.randn(500, 32, generator=g))
        self.short = nn.Buffer(torch.randn(500, 32, generator=g).half())
        self.codes = nn.Buffer(torch.randint(-8, 8, (500, 32), generator=g, dtype=torch.int8))

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[0]
        parts: dict[str, Callable[[], Tensor]] = {
            "wide": lambda: x @ self.wide[n : n + 40].t(),
            "rows": lambda: x[:, :1].expand(n, 40) @ self.wide.narrow(0, n, 40),
            "half": lambda: x @ self.short.narrow(0, n, 40).float().t(),
            "codes": lambda: x @ (self.codes.narrow(0, n, 40).float() * 0.25).t(),
            "a row of codes": lambda: (self.codes.float() * 0.5)[x.sum().long() % 7],
            "found": lambda: self.wide[n : n + 2][x[:, 0].long() % 2] + self.short[n : n + 2].float().sum(),
        }
        return parts[self.part]()


@pytest.mark.parametrize("part", ["wide", "rows", "half", "codes", "a row of codes", "found"])
def test_parts_of_constants_that_sizes_decide(part: str) -> None:
    module = Parts(part).eval()
    model = dhlo.compile(export(module, (torch.rand(3, 32),), dynamic_shapes=({0: Dim("n", min=1, max=99)},)))
    for n in (1, 99, 2, 17):
        x = torch.rand(n, 32, generator=torch.Generator().manual_seed(n))
        torch.testing.assert_close(model(x), module(x), rtol=1e-4, atol=1e-4)


class Branches(nn.Module):
    """Products with one weight in branches, beside them, or in one of them alone."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.weight = nn.Parameter(torch.randn(640, 64, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        def product(x: Tensor) -> Tensor:
            return x @ self.weight.t()

        def other(x: Tensor) -> Tensor:
            return product(x) * 2 if self.form == "both" else x[:, :1].expand(-1, 640).clone()

        return torch.cond(x.sum() > 0, product, other, (x,)), product(x) if self.form == "beside" else x


@pytest.mark.parametrize("weights", ["int4:32", "int8", "mxfp4", "f16"])
@pytest.mark.parametrize("form", ["both", "one", "beside"])
def test_codes_that_branches_decode(form: str, weights: str) -> None:
    """A branch decodes the one copy by itself; a product outside has the same values."""
    program = export(Branches(form).eval(), (torch.rand(5, 64),), dynamic_shapes=({0: Dim("n", min=0, max=100)},))
    model, plain = dhlo.compile(program, weights=weights), dhlo.compile(program)
    assert model.native.constants_bytes < 0.6 * plain.native.constants_bytes
    for n in (0, 1, 7, 40):
        for sign in (1, -1):
            x = sign * torch.rand(n, 64, generator=torch.Generator().manual_seed(n))
            result, beside = model(x)
            expected, expected_beside = plain(x)
            for a, b in ((result, expected), (beside, expected_beside)):
                assert float((a - b).norm()) <= 0.15 * float(b.norm())
            if form == "beside" and n and sign == 1:
                assert torch.equal(result, beside)
