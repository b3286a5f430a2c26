"""Arguments with gaps between elements, or whose memory runs along another dim than the last: copied in and back."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim, export

import dhlo

# Around a vector's lanes, a block of rows, and none.
SIZES = (0, 1, 2, 3, 15, 16, 17, 31, 63, 64, 65, 130)


class Replaced(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.copy_(y)
        return y.clone()


def numbers(dtype: torch.dtype, *sizes: int) -> torch.Tensor:
    return torch.randint(0, 120, sizes).to(dtype)


def views(dtype: torch.dtype, sizes: tuple[int, ...], rng: random.Random) -> list[Callable[[], torch.Tensor]]:
    """Makers of tensors of these sizes whose dims lie in memory in any order, with gaps and without."""
    out = []
    orders = list(itertools.permutations(range(len(sizes))))
    for order in rng.sample(orders, min(len(orders), 4)):
        gaps = [rng.choice((0, 0, 1, 3)) for _ in sizes]

        def make(order: tuple[int, ...] = order, gaps: list[int] = gaps) -> torch.Tensor:
            room = numbers(dtype, *(sizes[d] + gaps[d] for d in order))
            back = [order.index(d) for d in range(len(sizes))]
            return room.permute(back)[tuple(slice(0, n) for n in sizes)]

        out.append(make)
    return out


@pytest.mark.parametrize(
    ("dtype", "rank"),
    [
        (torch.float32, 1),
        (torch.float32, 2),
        (torch.float32, 4),
        (torch.uint8, 3),
        (torch.bfloat16, 3),
        (torch.float64, 3),
        (torch.complex128, 2),
    ],
)
def test_arguments_of_any_strides_are_copied_in_and_back(dtype: torch.dtype, rank: int, tmp_path: Path) -> None:
    rng = random.Random(f"{dtype}{rank}")
    torch.manual_seed(rank)
    dims = {d: Dim(f"d{d}", min=0, max=1 << 12) for d in range(rank)}
    example = [numbers(dtype, *range(4, 4 + rank)) for _ in range(2)]
    program = export(Replaced(), tuple(example), dynamic_shapes=(dims, dims))
    dhlo.compile(program).save(tmp_path / "model.so")
    models = [dhlo.load(tmp_path / "model.so", num_threads=threads) for threads in (1, 2)]
    for i in range(30):
        sizes = tuple(rng.choice(SIZES) for _ in range(rank))
        for make_x, make_y in zip(views(dtype, sizes, rng), views(dtype, sizes, rng), strict=True):
            x, y = make_x(), make_y()
            around = x._base.clone() if x._base is not None else None
            assert torch.equal(models[i % 2](x, y), y)
            assert torch.equal(x, y)
            if around is not None and x._base is not None:  # nothing beside it is written
                inside = torch.zeros_like(around, dtype=torch.bool).as_strided(x.size(), x.stride()).fill_(True)
                mask = inside._base if inside._base is not None else inside
                assert torch.equal(x._base[~mask], around[~mask])


def test_values_that_are_repeated_are_copied_in() -> None:
    """Strides of 0."""
    dims = {0: Dim("a", min=0, max=1 << 12), 1: Dim("b", min=0, max=1 << 12)}
    program = export(Replaced(), (torch.zeros(4, 5), torch.zeros(4, 5)), dynamic_shapes=(dims, dims))
    compiled = dhlo.compile(program)
    for rows, columns in ((1, 1), (3, 65), (70, 16), (64, 1)):
        for y in (
            torch.randn(rows, 1).expand(rows, columns),
            torch.randn(1, columns).expand(rows, columns),
            torch.randn(1).expand(rows, columns),
        ):
            x = torch.empty(columns, rows).t()
            assert torch.equal(compiled(x, y), y) and torch.equal(x, y)
