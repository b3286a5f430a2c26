"""Products whose right side is a matrix, or a few, repeated over batch dims: constants and arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import dhlo

BATCH, HEADS, ROWS = (Dim(name, min=1, max=64) for name in ("batch", "heads", "rows"))


class _Constant(nn.Module):
    """A constant that `expand` repeats `batch` times, or as often as the argument has matrices."""

    def __init__(self, batch: int | None, *shape: int) -> None:
        super().__init__()
        self.batch = batch
        self.weight = nn.Parameter(torch.randn(shape), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch = x.shape[0] if self.batch is None else self.batch
        return x @ self.weight.expand(batch, *([-1] * (x.dim() - 1)))


class _Argument(nn.Module):
    """The same of an argument; `across` takes rows that don't lie one behind the other."""

    def __init__(self, across: bool) -> None:
        super().__init__()
        self.across = across

    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x = x.transpose(0, 1) if self.across else x
        return x @ w.expand(x.shape[0], x.shape[1], -1, -1)


FOUR = ({0: BATCH, 1: HEADS, 2: ROWS},)
CASES: list[tuple[str, nn.Module, tuple[int, ...], Any, list[tuple[int, ...]]]] = [
    ("constant", _Constant(None, 37, 50), (5, 9, 37), ({0: BATCH, 1: ROWS},), [(1, 1), (7, 3), (4, 33), (3, 64)]),
    ("constant_fixed", _Constant(6, 37, 50), (6, 9, 37), ({1: ROWS},), [(6, 1), (6, 33), (6, 64)]),
    ("constant_heads", _Constant(None, 3, 37, 50), (5, 3, 9, 37), ({0: BATCH, 2: ROWS},), [(1, 3, 1), (7, 3, 33), (2, 3, 64)]),
    ("argument", _Argument(False), (5, 4, 9, 37), (*FOUR, {}), [(1, 1, 1), (3, 5, 2), (2, 4, 33), (1, 7, 64)]),
    ("argument_across", _Argument(True), (5, 4, 9, 37), (*FOUR, {}), [(1, 1, 1), (3, 5, 2), (2, 4, 33), (1, 7, 64)]),
]


@pytest.mark.parametrize(("module", "example", "dims", "shapes"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_repeated(module: nn.Module, example: tuple[int, ...], dims: Any, shapes: list[tuple[int, ...]]) -> None:
    torch.manual_seed(0)
    more = (torch.randn(37, 50),) if isinstance(module, _Argument) else ()
    compiled = dhlo.compile(torch.export.export(module, (torch.randn(example), *more), dynamic_shapes=dims))
    for shape in shapes:
        x = torch.randn(*shape, 37)
        torch.testing.assert_close(compiled(x, *more), module(x, *more), rtol=1e-5, atol=2e-5)


def test_packed_once() -> None:
    """However often a constant is repeated, the model holds it once."""
    sizes = []
    for batch in (2, 40):
        module, example = _Constant(batch, 64, 96), torch.randn(batch, 9, 64)
        compiled = dhlo.compile(torch.export.export(module, (example,), dynamic_shapes=({1: ROWS},)))
        sizes.append(compiled.native.constants_bytes)
    assert sizes[0] == sizes[1] < 2 * 64 * 96 * 4
