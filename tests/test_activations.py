"""`activations="int8"`: products of quantised weights round what they multiply these with."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import dhlo
from dhlo.ir.ops.quantised import round_rows


class Layers(nn.Module):
    """Products of a row [N, 128] with 96 columns, of three dims, and a projection of 64 that may keep its weights."""

    def __init__(self) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(0)
        self.first, self.last = nn.Linear(128, 96), nn.Linear(96, 64, bias=False)
        for p in self.parameters():
            p.data = torch.randn(p.shape, generator=g) / 8

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.first(x)
        return y, self.last(torch.relu(y))


@pytest.fixture(scope="module")
def exported() -> torch.export.ExportedProgram:
    rows = {0: torch.export.Dim("n", max=1000)}
    return torch.export.export(Layers().eval(), (torch.randn(3, 128),), dynamic_shapes=(rows,))


@pytest.fixture(scope="module")
def models(exported: torch.export.ExportedProgram) -> tuple[dhlo.CompiledModel, dhlo.CompiledModel]:
    weights = {"default": "int4:32", "last.weight": "f32"}
    return dhlo.compile(exported, weights=weights), dhlo.compile(exported, weights=weights, activations="int8")


def test_results_are_those_of_rounded_rows(models: tuple[dhlo.CompiledModel, dhlo.CompiledModel]) -> None:
    """Products of rounded rows with quantised weights; the others' rows stay."""
    plain, rounded = models
    for n in (1, 2, 33):
        x = torch.randn((n, 128), generator=torch.Generator().manual_seed(n))
        got, want = rounded(x), plain(round_rows(x, 32))
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, w, rtol=0, atol=3e-6 * float(w.abs().max()))
        assert not torch.equal(got[0], plain(x)[0])
    facts = [json.loads(m.metadata)["rounded_products"] for m in models]
    assert facts == [0, 1]


def test_rows_that_are_not_finite(models: tuple[dhlo.CompiledModel, dhlo.CompiledModel]) -> None:
    x = torch.ones(3, 128)
    x[1, 7] = torch.inf
    y = models[1](x)[0]
    assert y[1].isnan().all() and not y[[0, 2]].isnan().any()


def test_what_there_is_not(exported: torch.export.ExportedProgram) -> None:
    with pytest.raises(dhlo.CompileError, match="activations: there is no format 'int4'"):
        dhlo.compile(exported, weights="int4", activations="int4")
    for weights in ("", "f8e4m3fn", "bf16"):
        with pytest.raises(dhlo.CompileError, match="no product has quantised weights"):
            dhlo.compile(exported, weights=weights, activations="int8")


class Experts(nn.Module):
    """Rows of two groups times a matrix each."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn((2, 64, 32), generator=torch.Generator().manual_seed(1)))

    def forward(self, x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return torch._grouped_mm(x, self.w, offs=offsets)


def test_rows_of_experts() -> None:
    x, offsets = (
        torch.randn((9, 64), generator=torch.Generator().manual_seed(2)).bfloat16(),
        torch.tensor([4, 9], dtype=torch.int32),
    )
    module = Experts().eval().bfloat16()
    rows = {0: torch.export.Dim("n", max=1000)}
    program = torch.export.export(module, (x, offsets), dynamic_shapes=(rows, None))
    plain, rounded = (dhlo.compile(program, weights="int8:32", activations=a) for a in ("", "int8"))
    assert json.loads(rounded.metadata)["rounded_products"] == 1
    got, near = rounded(x, offsets), plain(x, offsets)
    assert not torch.equal(got, near)
    torch.testing.assert_close(got, near, rtol=0.02, atol=0.02 * float(near.float().abs().max()))


class Dynamic(nn.Module):
    """Rows that the program rounds to bytes itself: by scale and zero point of each, and unsigned ones by numbers."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(0)
        self.dtype = dtype
        self.register_buffer("codes", torch.randint(-8, 8, (96, 128), generator=g, dtype=torch.int8))
        self.register_buffer("scale", torch.rand(96, 4, generator=g) / 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        w = (self.codes.view(96, 4, 32) * self.scale[..., None]).view(96, 128).to(self.dtype)
        low, high = torch.aminmax(x.float(), dim=-1, keepdim=True)
        scale = ((high.clamp(min=0) - low.clamp(max=0)) / 255).clamp(min=1e-12)
        zero = (-128 - (low.clamp(max=0) / scale).round()).to(torch.int8)
        q = ((x / scale).round() + zero).clamp(-128, 127).to(torch.int8)
        rows = ((q.float() - zero) * scale).to(self.dtype)
        u = (x.float() * 16 + 100).round().clamp(0, 255).to(torch.uint8)
        return rows @ w.T, ((u.float() - 100) * 0.0625).to(self.dtype) @ w.T


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_that_the_program_makes(dtype: torch.dtype) -> None:
    module, texts = Dynamic(dtype), {}
    ep = torch.export.export(module, (torch.randn(3, 128, dtype=dtype),), dynamic_shapes=({0: torch.export.Dim("n", max=1000)},))
    model = dhlo.compile(ep, dump=texts.__setitem__)
    assert texts["fuse"].count("dhlo.rounded_matmul") == 2
    for n in (0, 1, 2, 33):
        x = torch.randn((n, 128), generator=torch.Generator().manual_seed(n)).to(dtype)
        if n > 2:
            x[2], x[1] = 0, x[1].abs()
        want = module(x) if n else (torch.empty(0, 96, dtype=dtype),) * 2
        for g, w in zip(model(x), want, strict=True):
            bound = (1e-5 if dtype == torch.float32 else 2e-2) * max([1.0, *w.float().abs().flatten()])
            torch.testing.assert_close(g, w, rtol=0, atol=bound)
