"""Python's numbers beside tensors of integers that can't hold them: wrapped where PyTorch wraps them, errors where it has one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.export import Dim, export

import dhlo
from dhlo.errors import CompileError

WRAPPED: dict[str, Callable[[Tensor], Any]] = {
    "compare": lambda x: (x < 300, x == 300, x > -1, x >= -1, x != 300, x <= 2**40),
    "arithmetic": lambda x: (x + 300, 300 - x, x * 300, x & 300, x ^ -1, x | 70000),
    "negative": lambda x: (torch.sub(x, x, alpha=128), torch.rsub(x, x, alpha=-5), torch.addcmul(x, x, x, value=2.5)),
    "truth": lambda x: (torch.logical_and(x, torch.tensor(256)), torch.logical_xor(torch.tensor(2**32), x)),
    "divide": lambda x: (x // 300, x % 300, torch.fmod(x, 300), torch.div(x, 300, rounding_mode="trunc"), x / 300),
    "size": lambda x: (x + 60 * x.shape[0], x < 60 * x.shape[0], x == 52 * x.shape[0]),
}
ERRORS: dict[str, Callable[[Tensor], Any]] = {
    "pow": lambda x: x**300,
    "where": lambda x: torch.where(x > 5, x, 300),
    "masked_fill": lambda x: x.masked_fill(x > 5, 300),
    "full": lambda x: torch.full_like(x, 300),
    "alpha": lambda x: torch.add(x, x, alpha=300),
    "value": lambda x: torch.addcmul(x, x, x, value=300),
    "alpha of a number": lambda x: torch.add(x, 5, alpha=300),
    "float alpha": lambda x: torch.sub(x, x, alpha=2.5),
    "float value": lambda x: torch.addcmul(x, x, x, value=300.0),
    "threshold": lambda x: F.threshold(x, 300, 2),
    "pad": lambda x: F.pad(x, (1, 1), value=300),
    "pad below": lambda x: F.pad(x, (1, 1), value=-200),
}


class Fn(torch.nn.Module):
    def __init__(self, f: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.f = f

    def forward(self, x):
        return self.f(x)


def exported(f: Callable[[Tensor], Any], x: Tensor) -> Any:
    return export(Fn(f), (x,), dynamic_shapes=({0: Dim.AUTO},))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("name", WRAPPED)
def test_wrapped(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor([0, 5, 44, 100, 120], dtype=dtype)
    model = dhlo.compile(exported(WRAPPED[name], x))
    for part in (x, x[1:], x.flip(0)[:2]):
        assert all(torch.equal(got, want) for got, want in zip(model(part), WRAPPED[name](part), strict=True))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor([0, 5, 44, 100, 120], dtype=dtype)
    with pytest.raises(RuntimeError, match="without overflow|must not be a floating point"):
        ERRORS[name](x)
    with pytest.raises(CompileError, match=r"(is no (i8|ui8)|integers times alpha)(?s:.*)test_numbers_beside_integers.py:\d+"):
        dhlo.compile(exported(ERRORS[name], x))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8], ids=str)
def test_bounds(dtype: torch.dtype) -> None:
    """Those that bound nothing go, as since PyTorch 2.15; what every number is beyond is refused."""
    x = torch.tensor([0, 5, 44, 100, 120], dtype=dtype)
    bounds: list[Any] = [(None, 300), (-1000, None), (-1000, 50), (-1, 50), (7, 2**40)]
    model = dhlo.compile(exported(lambda x: [*(x.clamp(low, high) for low, high in bounds), F.hardtanh(x, 6, 300)], x))
    for got, (low, high) in zip(model(x), [*bounds, (6, 300)], strict=True):
        assert torch.equal(got, x.long().clamp(low, high).to(dtype))
    for f in (lambda x: x.clamp_max(-300), lambda x: x.clamp_min(1000)):
        with pytest.raises(CompileError, match="is no"):
            dhlo.compile(exported(f, x))


@pytest.mark.parametrize("f", [lambda x: x // 256, lambda x: x % 0, lambda x: torch.fmod(x, 512), lambda x: x**-1])
def test_what_no_integer_is(f: Callable[[Tensor], Any]) -> None:
    for dtype in (torch.int8, torch.uint8):
        x = torch.tensor([0, 5, 44], dtype=dtype)
        with pytest.raises((ZeroDivisionError, RuntimeError)):
            f(x)
        with pytest.raises(CompileError, match="which is 0 as|to the power -1"):
            dhlo.compile(exported(f, x))


def test_negative_numbers_of_bytes() -> None:
    def f(x: Tensor) -> Any:
        return torch.full_like(x, -1), x.masked_fill(x > 5, -2)

    x = torch.tensor([0, 200], dtype=torch.uint8)
    model = dhlo.compile(exported(f, x))
    assert [y.tolist() for y in model(x)] == [y.tolist() for y in f(x)] == [[255, 255], [0, 254]]
