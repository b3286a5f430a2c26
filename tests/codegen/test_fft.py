"""Fourier transforms of many lengths and counts of lines: vectors of elements of a line or of lines, and lengths with large prime
factors, which go by two transforms of a power of two."""

from __future__ import annotations

import platform
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.export import Dim, export

import dhlo
from dhlo.codegen.families.fft.table import inner_length
from dhlo.ir.symbols import evaluate, parse, show, symbol
from dhlo.model import CompiledModel

A: Any = Dim.AUTO
LENGTHS = (100, 1, 2, 61, 64, 67, 71, 128, 131, 134, 3 * 67, 402, 67 * 67, 1009, 2347, 3 * 5 * 211)
WITHIN = (16, 17, 60, 63, 96, 144, 256, 257, 264, 272, 375, 400, 448, 512, 686, 768, 1000, 1024, 1056, 1155, 1920, 4096, 5040)
LINES = (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 33)
FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "forward": lambda x: torch.view_as_real(torch.fft.fft(x)),
    "inverse": lambda x: torch.view_as_real(torch.fft.ifft(torch.complex(x, x.flip(-1)), norm="ortho")),
    "half": lambda x: torch.view_as_real(torch.fft.rfft(x)),
    "real": lambda x: torch.fft.irfft(torch.complex(x, x.flip(-1)), norm="forward"),
    "odd": lambda x: torch.fft.irfft(torch.complex(x, x.flip(-1)), n=2 * x.shape[-1] - 1, norm="forward"),
    "rows": lambda x: torch.view_as_real(torch.fft.fft(x.T, dim=0)),
    "rows of halves": lambda x: torch.view_as_real(torch.fft.rfft(x.T.clone(), dim=0)),
    "columns of reals": lambda x: torch.fft.irfft(torch.stack([torch.complex(x, x.flip(-1))] * 3, -1), dim=1, norm="forward"),
    "two dims": lambda x: torch.view_as_real(torch.fft.fft2(x[None].expand(2, *x.shape))),
}


class Fn(torch.nn.Module):
    def __init__(self, f: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.f = f

    def forward(self, x):
        return self.f(x)


def _numbers(x: Any) -> Any:
    return np.stack([x.real, x.imag], -1)


EXACT: dict[str, Callable[[Any], Any]] = {
    "forward": lambda x: _numbers(np.fft.fft(x)),
    "inverse": lambda x: _numbers(np.fft.ifft(x + 1j * x[..., ::-1], norm="ortho")),
    "half": lambda x: _numbers(np.fft.rfft(x)),
    "real": lambda x: np.fft.irfft(x + 1j * x[..., ::-1], norm="forward"),
    "odd": lambda x: np.fft.irfft(x + 1j * x[..., ::-1], n=2 * x.shape[-1] - 1, norm="forward"),
    "rows": lambda x: _numbers(np.fft.fft(x.T, axis=0)),
    "rows of halves": lambda x: _numbers(np.fft.rfft(x.T, axis=0)),
    "columns of reals": lambda x: np.fft.irfft(np.stack([x + 1j * x[..., ::-1]] * 3, -1), axis=1, norm="forward"),
    "two dims": lambda x: _numbers(np.fft.fft2(np.broadcast_to(x, (2, *x.shape)))),
}
"""The same in long doubles: PyTorch's transforms of f64 are up to 2e-14 of the scale off (MKL's, on an Emerald Rapids)."""


def agrees(got: Tensor, x: Tensor, name: str) -> None:
    """To the rounding of some more operations than PyTorch's, beside long doubles."""
    exact, eps = EXACT[name](x.numpy().astype(np.longdouble)), torch.finfo(x.dtype).eps
    assert got.shape == exact.shape and got.dtype == x.dtype
    assert np.abs(got.numpy() - exact).max() <= 8 * eps * np.abs(exact).max()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", FORMS)
def test_lengths_of_the_call(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = compiled(name, dtype)
    for k, n in enumerate(LENGTHS):
        x = torch.randn((1, 2, 17)[k % 3], n + ("real" in name), dtype=dtype)
        agrees(model(x), x, name)
    assert model(torch.zeros(0, 67, dtype=dtype)).numel() == 0


def compiled(name: str, dtype: torch.dtype, target: str = "native") -> CompiledModel:
    x = torch.randn(3, 100, dtype=dtype)
    return dhlo.compile(export(Fn(FORMS[name]), (x,), dynamic_shapes=({0: A, 1: A},)), target=target)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target", ["native", "x86-64-v3"])
@pytest.mark.parametrize("name", FORMS)
def test_lines_and_lengths(name: str, target: str) -> None:
    if target != "native" and platform.machine() != "x86_64":
        pytest.skip("another architecture's")
    torch.manual_seed(0)
    shapes = [(LINES[(3 * k + j) % len(LINES)], n) for j in range(3) for k, n in enumerate(WITHIN)]
    for dtype in (torch.float32, torch.float64):
        model = compiled(name, dtype, target)
        for lines, n in random.Random(0).sample(shapes, len(shapes)):
            x = torch.randn(lines, n // 2 + 1 if "real" in name else n, dtype=dtype)
            agrees(model(x), x, name)


@pytest.mark.parametrize("name", ["forward", "half", "real"])
def test_long_lines(name: str) -> None:
    model = compiled(name, torch.float32)
    for lines, n in ((1, 100_003), (2, 65536), (1, 480_000), (1, 2)):
        x = torch.randn(lines, n + (name == "real"))
        agrees(model(x), x, name)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("n", [1, 2, 67, 134, 256, 400, 1000, 1009])
def test_static_lengths(n: int) -> None:
    for name in ("forward", "inverse", "half", "odd"):
        x = torch.randn(5, n)
        model = dhlo.compile(export(Fn(FORMS[name]), (x,), dynamic_shapes=({0: A},)))
        for rows in (5, 1, 19):
            agrees(model(y := torch.randn(rows, n)), y, name)


def test_room_for_a_line() -> None:
    """What the host program works out says the same as the factors."""
    n = symbol("s0")
    room = inner_length(n)
    assert parse(show(room)) == room
    for k in range(1, 3000):
        p = max((p for p in range(2, k + 1) if k % p == 0 and all(p % q for q in range(2, int(p**0.5) + 1))), default=1)
        assert evaluate(room, {"s0": k}) == (k if p < 64 else 4 * k)
        inner = int(inner_length(parse(str(k))))
        assert inner == k if p < 64 else 2 * k - 1 <= inner <= 4 * k
    assert [evaluate(room, {"s0": k}) for k in (2**30, 3**19, 2**31 - 1)] == [2**30, 3**19, 4 * (2**31 - 1)]
