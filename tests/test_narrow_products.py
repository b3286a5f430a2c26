"""Products of f16, whose kernels read both sides as they lie in memory, beside sums in f64 rounded once."""

from __future__ import annotations

import json
import platform
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, export

import dhlo

# Few rows, whose right side is streamed; panels of whole and of part vectors; depths that are cut and split.
SIZES = [(m, k, n) for m in (0, 1, 3, 5, 12, 13, 33, 100) for k in (0, 1, 17, 129, 700) for n in (1, 16, 17, 65, 130)]
SIZES += [(9, 20_000, 17), (30, 20_000, 17), (40, 3_000, 100), (36, 400, 175), (24, 390, 200), (29, 1_000, 3_001)]


class Products(nn.Module):
    """By a matrix as it lies, and by one of which rows of k are apart."""

    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return a @ b, a @ c.transpose(-1, -2)


@pytest.fixture(scope="module")
def model() -> Any:
    batch, m, k, n = (Dim(name, max=1 << 15) for name in ("batch", "m", "k", "n"))
    args = tuple(torch.randn(s).half() for s in ((3, 31, 40), (3, 40, 24), (3, 24, 40)))
    dims = ({0: batch, 1: m, 2: k}, {0: batch, 1: k, 2: n}, {0: batch, 1: n, 2: k})
    return dhlo.compile(export(Products(), args, dynamic_shapes=dims), cache="")


def check(found: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    want = a.double() @ b.double()
    assert found.dtype == torch.float16
    bound = a.double().abs() @ b.double().abs() * 2.0**-18  # sums in f32
    assert bool(((found.double() - want).abs() <= want.abs() * 2.0**-11 + bound + 2.0**-24).all())


def test_products_of_all_sizes(model: Any) -> None:
    torch.manual_seed(0)
    for m, k, n in SIZES:
        a, b = torch.randn(2, m, k).half(), torch.randn(2, k, n).half()
        plain, turned = model(a, b, b.transpose(-1, -2).contiguous())
        check(plain, a, b)
        check(turned, a, b)


def test_strides_and_special_numbers(model: Any) -> None:
    a, b = torch.randn(2, 9, 200).half()[..., ::2], torch.randn(2, 200, 140).half()[:, ::2, ::2]
    plain, turned = model(a, b, b.transpose(-1, -2))
    check(plain, a, b)
    check(turned, a, b)
    a = torch.randn(2, 33, 200).half()[..., 3:103]  # rows that are contiguous, and apart
    check(model(a, b, b.transpose(-1, -2))[0], a, b)
    a = torch.tensor([[[65504.0, 1], [torch.nan, 1], [torch.inf, 0], [2.0**-24, 0]]]).half()
    b = torch.tensor([[[1.0, 2], [0, 2.0**-24]]]).half()
    for found in model(a, b, b.transpose(-1, -2).contiguous()):
        torch.testing.assert_close(found, (a.float() @ b.float()).half(), rtol=0, atol=0, equal_nan=True)


def test_operands_arent_widened_in_memory(model: Any) -> None:
    """Each product is a group by itself."""
    assert len(json.loads(model.native.metadata)["groups"]) == 2


class Coded(nn.Module):
    """Rows of bf16 by bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codes", torch.randint(-9, 9, (70, 40), dtype=torch.int8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.codes.bfloat16().t()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="it names a target")
def test_rows_of_bf16_that_are_widened_for_codes() -> None:
    """Their sums are of f32, and the result isn't: few rows, and so many that the codes are decoded to panels."""
    program, x = Coded(), torch.randn(3, 40).bfloat16()
    ours = dhlo.compile(export(program, (x,), dynamic_shapes=({0: Dim("rows", max=999)},)), cache="", target="x86-64-v3")
    for rows in (1, 7, 100):
        x = torch.randn(rows, 40).bfloat16()
        want = x.double() @ program.codes.double().t()
        torch.testing.assert_close(ours(x).double(), want, rtol=2.0**-8, atol=1e-4)


class Constants(nn.Module):
    """Products with weights of f16 and with none, one of them with more after it."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(129, 70, bias=False, dtype=torch.float16)
        self.biased = nn.Linear(129, 33, dtype=torch.float16)
        self.register_buffer("none", torch.zeros(129, 0, dtype=torch.float16))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.wide(x), self.biased(x).relu(), x @ self.none


def test_weights() -> None:
    """Few rows, which decode them, and so many that they are decoded to panels; rows and elements apart."""
    torch.manual_seed(1)
    program = Constants()
    with torch.no_grad():
        program.wide.weight[3, 5], program.wide.weight[4, 6] = torch.inf, torch.nan
    x = torch.randn(7, 129).half()
    ours = dhlo.compile(export(program, (x,), dynamic_shapes=({0: Dim("rows", max=999)},)), cache="")
    assert {g["anchor"] for g in json.loads(ours.native.metadata)["groups"]} == {"matmul"}
    for rows in (0, 1, 3, 6, 13, 100):
        for x in (torch.randn(rows, 129).half(), torch.randn(rows, 258).half()[:, ::2], torch.randn(129, rows).half().t()):
            wide, biased, none = ours(x)
            want = x.double() @ program.wide.weight.double().t()
            torch.testing.assert_close(wide.double(), want, rtol=2.0**-11, atol=1e-4, equal_nan=True)
            want = (x.double() @ program.biased.weight.double().t() + program.biased.bias.double()).relu()
            torch.testing.assert_close(biased.double(), want, rtol=2.0**-10, atol=1e-3)
            assert none.shape == (rows, 0)
