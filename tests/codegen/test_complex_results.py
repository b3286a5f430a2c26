"""Complex results whose parts are computed where they are interleaved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.export import Dim, export

import dhlo
from tests.calls import Call
from tests.test_memory_bounds import guarded

A: Any = Dim.AUTO


FORMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "product": lambda a, b: a * b,
    "quotient": lambda a, b: a / (b + 3),
    "with itself": lambda a, b: a * a.conj() + b,
    "exponential": lambda a, b: torch.exp(a) * b,
    "by rows": lambda a, b: a * b[:1],
    "by columns": lambda a, b: a * b[:, :1],
    "by one": lambda a, b: a * b[0, 0],
    "transposed": lambda a, b: (a * b).t().contiguous(),
    "joined": lambda a, b: torch.cat([a * b, b], 1),
    "joined rows": lambda a, b: torch.cat([a * b, b], 0) * 2,
    "reversed": lambda a, b: a.flip(1) * b,
    "every other": lambda a, b: a[:, ::2] * 2,
    "parts": lambda a, b: torch.complex(a.imag, b.real * 2),
    "parts of other rows": lambda a, b: torch.complex(a.imag.t(), b.real.t()),
    "one number": lambda a, b: a[0, 0] * b[0, 0],
    "sums": lambda a, b: (a * b).sum(1) * a[:, 0],
    "several": lambda a, b: (a * b, a + b, (a * b).real, torch.complex((a * b).real, b.imag)),
    "reshaped": lambda a, b: (a * b).flatten() * 2,
    "by pairs": lambda a, b: torch.view_as_complex(torch.view_as_real(a * b) * 2),
}
SHAPES = ((1, 1), (1, 2), (2, 1), (3, 7), (2, 15), (4, 16), (3, 17), (17, 3), (5, 33), (2, 1025), (20, 20))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize("name", FORMS)
def test_sizes_of_the_call(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    f, example = FORMS[name], tuple(torch.randn(6, 7, dtype=dtype) for _ in range(2))
    sizes = ({0: A, 1: A}, {0: A, 1: A})
    model = dhlo.compile(export(Call(f), example, dynamic_shapes=(sizes,), prefer_deferred_runtime_asserts_over_guards=True))
    done = 0
    for shape in SHAPES:
        a, b = (guarded(torch.randn(shape, dtype=dtype)) for _ in range(2))
        try:
            y = model(a, b)
        except dhlo.ContractError:
            continue
        done += 1
        torch.testing.assert_close(y, f(a, b), rtol=1e-4, atol=1e-4)
        strided = torch.randn(shape[1], shape[0], dtype=dtype).t()
        torch.testing.assert_close(model(strided, b), f(strided, b), rtol=1e-4, atol=1e-4)
    assert done >= 5


def test_halves() -> None:
    torch.manual_seed(0)
    f = lambda x, y: torch.complex(x + y, x * y)
    model = dhlo.compile(export(Call(f), (torch.rand(5, 7).half(), torch.rand(5, 7).half()), dynamic_shapes=(({0: A, 1: A},) * 2,)))
    for shape in SHAPES[3:]:
        x, y = (guarded(torch.rand(shape).half()) for _ in range(2))
        torch.testing.assert_close(torch.view_as_real(model(x, y)), torch.stack([x + y, x * y], -1), rtol=1e-3, atol=1e-3)


def test_no_numbers() -> None:
    f = lambda x, y: torch.complex(x + y, x * y)
    model = dhlo.compile(export(Call(f), (torch.rand(5, 7), torch.rand(5, 7)), dynamic_shapes=(({0: Dim("n", min=0)},) * 2,)))
    for n in (0, 1, 3):
        x, y = torch.rand(n, 7), torch.rand(n, 7)
        torch.testing.assert_close(model(x, y), f(x, y))
