"""Vectors of integers divided as floats, where that is exact, beside Python's whole numbers."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch.export import Dim

import dhlo

N = Dim("n", min=0, max=1 << 20)
TYPES = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FUNCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "gcd": torch.gcd,
}


class Apply(torch.nn.Module):
    def __init__(self, *names: str) -> None:
        super().__init__()
        self.functions = [FUNCTIONS[name] for name in names]

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        return [f(a, b) for f in self.functions]


class By(torch.nn.Module):
    """Both quotients and remainders by a number that the program knows."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def forward(self, a: torch.Tensor) -> list[torch.Tensor]:
        b = torch.full((), self.number, dtype=a.dtype)
        return [FUNCTIONS[name](a, b) for name in ("floor", "trunc", "remainder", "fmod")]


def interesting(dtype: torch.dtype, rng: random.Random, count: int, most: int = 64) -> list[int]:
    """Numbers near powers of two, small ones and any, of up to `most` bits."""
    info = torch.iinfo(dtype)
    out = []
    for _ in range(count):
        near = (1 << rng.randrange(most)) + rng.randint(-2, 2)
        x = rng.choice([near, -near, rng.randint(-20, 20), rng.randint(-(1 << most - 1), (1 << most - 1) - 1), info.min, info.max])
        out.append(min(max(x, info.min), info.max))
    return out


def expected(name: str, a: int, b: int, dtype: torch.dtype) -> int:
    """In whole numbers; what doesn't fit wraps."""
    down = a // b
    to_zero = down + (down < 0 and down * b != a)
    x = {"floor": down, "trunc": to_zero, "remainder": a - down * b, "fmod": a - to_zero * b}[name]
    bits = torch.iinfo(dtype).bits
    x &= (1 << bits) - 1
    return x - (1 << bits) if dtype.is_signed and x >> bits - 1 else x


@pytest.mark.parametrize("target", ["native", "x86-64-v3"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_quotients_and_remainders(dtype: torch.dtype, target: str) -> None:
    names = ["floor", "trunc", "remainder", "fmod"]
    rng, example = random.Random(1), torch.ones(8, dtype=dtype)
    program = torch.export.export(Apply(*names), (example, example.clone()), dynamic_shapes=({0: N}, {0: N}))
    run = dhlo.compile(program, target=target)
    for size, most in [(0, 64), (1, 64), (7, 51), (17, 64), (1000, 50), (1000, 51), (1000, 52), (1000, 53), (3000, 64), (5000, 64)]:
        a, b = interesting(dtype, rng, size, most), [x or 3 for x in interesting(dtype, rng, size, most)]
        # Multiples, and what is next to them, where a rounded quotient could become the next whole number.
        for i in range(0, size, 3):
            x = b[i] * rng.randint(-(1 << rng.randrange(1, most)), 1 << rng.randrange(1, most)) + rng.randint(-1, 1)
            a[i] = x if torch.iinfo(dtype).min <= x <= torch.iinfo(dtype).max else a[i]
        got = run(torch.tensor(a, dtype=dtype), torch.tensor(b, dtype=dtype))
        for name, out in zip(names, got, strict=True):
            want = [expected(name, x, y, dtype) for x, y in zip(a, b, strict=True)]
            wrong = [(x, y, o, w) for x, y, o, w in zip(a, b, out.tolist(), want, strict=True) if o != w]
            assert not wrong, f"{name} of {size}: {wrong[:3]}"


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("number", [1, -1, 2, 7, -7, -8, 1 << 20, (1 << 31) - 1])
def test_constants(number: int, dtype: torch.dtype) -> None:
    rng, example = random.Random(2), torch.ones(8, dtype=dtype)
    run = dhlo.compile(torch.export.export(By(number), (example,), dynamic_shapes=({0: N},)))
    for size in (0, 1, 33, 2000):
        a = interesting(dtype, rng, size)
        for name, out in zip(("floor", "trunc", "remainder", "fmod"), run(torch.tensor(a, dtype=dtype)), strict=True):
            assert out.tolist() == [expected(name, x, number, dtype) for x in a], name


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_divisors_common_to_both(dtype: torch.dtype) -> None:
    rng, example = random.Random(3), torch.ones(8, dtype=dtype)
    run = dhlo.compile(torch.export.export(Apply("gcd"), (example, example.clone()), dynamic_shapes=({0: N}, {0: N})))
    a, b = (torch.tensor(interesting(dtype, rng, 2000, 31), dtype=dtype).clamp(min=-(1 << 30)) for _ in range(2))
    assert torch.equal(run(a, b)[0], torch.gcd(a, b))
