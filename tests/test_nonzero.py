"""What isn't zero, and what masks choose, at sizes about those of words, chunks and parts of the kernels."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.export import Dim, export

import dhlo

CHUNK, PART = 4096, 128 * 4096
DENSITIES = (0, 0.01, 0.5, 0.99, 1)
SHAPES: dict[int, list[tuple[int, ...]]] = {
    0: [()],
    1: [(n + d,) for n in (1, 8, 16, 64, 128, CHUNK, 2 * CHUNK) for d in (-1, 0, 1)],
    2: [
        (0, 5),
        (5, 0),
        (1, 1),
        (7, 1),
        (1, 70),
        (33, 2),
        (2000, 3),
        (3, 2000),
        (2, CHUNK + 1),
        (CHUNK - 1, 2),
        (1, 9000),
        (9000, 1),
    ],
    3: [(0, 0, 0), (1, 1, 1), (17, 1, 5), (1, 300, 40), (40, 300, 1), (2, 3, 5000), (5000, 3, 2), (3, CHUNK, 2), (25, 20, 21)],
    4: [(1, 1, 1, 1), (2, 0, 3, 4), (3, 5, 7, 11), (1, 90, 1, 90), (20, 1, 20, 30), (2, 2, 2, 2000), (1500, 2, 3, 1)],
}


class Calls(torch.nn.Module):
    def __init__(self, fn: Callable[..., object]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: Tensor) -> object:
        return self.fn(*args)


def on_threads(fn: Callable[..., object], args: tuple[Tensor, ...], path: Path) -> list[Callable[..., object]]:
    """The function compiled for all sizes of its arguments, for one and for two threads."""
    sizes = ({d: Dim.DYNAMIC for d in range(x.dim())} for x in args)
    dhlo.compile(export(Calls(fn), args, dynamic_shapes=(tuple(sizes),))).save(path / "model.so")
    return [dhlo.load(path / "model.so", num_threads=threads) for threads in (1, 2)]


def sparse(shape: tuple[int, ...], density: float) -> Tensor:
    return torch.randn(shape) * (torch.rand(shape) < density)


@pytest.mark.parametrize("rank", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool], ids=str)
def test_indices_at_all_sizes_and_densities(rank: int, dtype: torch.dtype, tmp_path: Path) -> None:
    models = on_threads(lambda x: x.nonzero(), (torch.ones([5, 6, 7, 8][:rank], dtype=dtype),), tmp_path)
    calls = [(shape, density) for shape in SHAPES[rank] for density in DENSITIES]
    random.Random(rank).shuffle(calls)
    torch.manual_seed(rank)
    for shape, density in calls:
        x = sparse(shape, density).to(dtype)
        for model in models:
            assert torch.equal(model(x), x.nonzero()), (shape, density)


@pytest.mark.parametrize("rank", [1, 2])
def test_indices_of_parts_of_several_chunks(rank: int, tmp_path: Path) -> None:
    models = on_threads(lambda x: x.nonzero(), (torch.ones([5, 6][:rank], dtype=torch.uint8),), tmp_path)
    for n in (PART - 1, PART, PART + 1, 3 * PART + 77):
        for density in (0.001, 0.5, 1):
            x = (torch.rand([n, 1][:rank]) < density).to(torch.uint8)
            for model in models:
                assert torch.equal(model(x), x.nonzero()), (n, density)


def test_what_is_zero(tmp_path: Path) -> None:
    """Neither NaN nor the smallest numbers are, minus zero is."""
    values = [0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1.0]
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        info = torch.finfo(dtype)
        row = torch.tensor([*values, info.tiny, info.smallest_normal, info.smallest_normal * info.eps, -info.max], dtype=dtype)
        (model, _) = on_threads(lambda x: x.nonzero(), (row,), tmp_path)
        for n in (1, 7, 13):
            x = row.repeat(n)
            assert torch.equal(model(x), x.nonzero()), dtype
    for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64):
        x = torch.tensor([0, 1, torch.iinfo(dtype).max, torch.iinfo(dtype).min, 0] * 30, dtype=dtype)
        (model, _) = on_threads(lambda x: x.nonzero(), (x,), tmp_path)
        assert torch.equal(model(x), x.nonzero()), dtype
    z = torch.complex(torch.randint(0, 2, (150,)).float(), torch.randint(0, 2, (150,)).float())
    (model, _) = on_threads(lambda z: z.nonzero(), (z,), tmp_path)
    assert torch.equal(model(z), z.nonzero())


def put(x: Tensor, mask: Tensor) -> Tensor:
    y = x.clone()
    y[mask] = x[mask] * 2 + 1
    return y


CHOICES: dict[str, Callable[[Tensor, Tensor], object]] = {
    "index": lambda x, m: x[m],
    "select": torch.masked_select,
    "leading": lambda x, m: x[m[..., 0]],
    "trailing": lambda x, m: x[:, m[0]],
    "first": lambda x, m: x[m[:1].expand(x.shape)],
    "repeated": lambda x, m: x[:1].masked_select(m),
    "turned": lambda x, m: x.transpose(0, 1)[m.transpose(0, 1)],
    "put": put,
    "number": lambda x, m: x.index_put((m,), torch.tensor(3.0)),
    "added": lambda x, m: x.index_put((m,), x[m], accumulate=True),
    "scatter": lambda x, m: x.masked_scatter(m, x.flatten()),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rank", [2, 3, 4])
@pytest.mark.parametrize("name", CHOICES)
def test_choices_of_masks(name: str, rank: int, tmp_path: Path) -> None:
    fn, shape = CHOICES[name], (5, 6, 7, 8)[:rank]
    models = on_threads(fn, (torch.randn(shape), torch.rand(shape) > 0.5), tmp_path)
    calls = [(shape, density) for shape in SHAPES[rank] if 0 not in shape for density in DENSITIES]
    random.Random(rank).shuffle(calls)
    torch.manual_seed(rank)
    for shape, density in calls:
        x, mask = torch.randn(shape), torch.rand(shape) < density
        for model in models:
            assert torch.equal(model(x, mask), fn(x, mask)), (shape, density)
