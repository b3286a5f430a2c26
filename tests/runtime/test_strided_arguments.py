"""Arguments with gaps between elements, or whose memory runs along another dim than the last: copied in and back, or read as they
lie by products and attention."""

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


# ------------------------------------------------------------------------------------------------ read as they lie
N = Dim.AUTO


def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x @ y


def heads(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2) @ y.permute(0, 2, 3, 1)


def gram(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x @ x.mT @ y


def rows_of_many(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.flatten(0, 1) @ y


def attention(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(x.transpose(1, 2), y.transpose(1, 2), y.transpose(1, 2))


Sizes = tuple[tuple[int, ...], tuple[int, ...]]
READERS: dict[str, tuple[Callable[..., torch.Tensor], Callable[[int, int, int], Sizes]]] = {
    "matrices": (product, lambda m, k, n: ((m, k), (k, n))),
    "batch": (product, lambda m, k, n: ((3, m, k), (3, k, n))),
    "batches of batches": (product, lambda m, k, n: ((2, 3, m, k), (2, 3, k, n))),
    "batches that aren't read as they lie": (product, lambda m, k, n: ((2, 3, 2, m, k), (2, 3, 2, k, n))),
    "rows of a batch": (product, lambda m, k, n: ((2, m, k), (k, n))),
    "flattened rows": (rows_of_many, lambda m, k, n: ((2, max(m, 1), k), (k, n))),
    "heads": (heads, lambda m, k, n: ((2, m, 3, k), (2, n, 3, k))),
    "the same argument twice": (gram, lambda m, k, n: ((2, m, k), (2, m, n))),
    "attention": (attention, lambda m, k, n: ((2, m, 3, 16), (2, max(n, 1), 3, 16))),
}


class Read(nn.Module):
    def __init__(self, fn: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.fn(x, y)


def laid_out(dtype: torch.dtype, sizes: tuple[int, ...], rng: random.Random) -> torch.Tensor:
    """Numbers whose dims lie in memory in any order, with gaps, every second of them, or repeated."""
    order, way = list(range(len(sizes))), rng.randrange(4)
    if way:
        rng.shuffle(order)
    room, index = [], []
    for n in sizes:
        step = rng.choice((1, 1, 2)) if way > 1 else 1
        gap = rng.choice((0, 1, 3)) if way > 1 else 0
        once = way > 2 and rng.random() < 0.3
        room.append(1 if once else (n + gap) * step)
        index.append(slice(None) if once else slice(0, n * step, step))
    x = torch.randn([room[d] for d in order]).to(dtype).permute([order.index(d) for d in range(len(sizes))])
    return x[tuple(index)].expand(sizes)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 3e-2), (torch.float64, 1e-10), (torch.float16, 5e-3)]
)
def test_products_and_attention_read_arguments_of_any_strides(
    name: str, dtype: torch.dtype, tolerance: float, tmp_path: Path
) -> None:
    fn, sizes_of = READERS[name]
    if name == "attention" and dtype is torch.float64:
        pytest.skip("is multiplied out")
    rng = random.Random(f"{name}{dtype}")
    torch.manual_seed(0)
    example = [torch.randn(s).to(dtype) for s in sizes_of(6, 7, 9)]
    dims = {d: N for d in range(example[0].dim() - (1 if fn is attention else 0)) if fn is not attention or d != 2}
    program = export(
        Read(fn), tuple(example), dynamic_shapes={"x": dims, "y": {d: N for d in range(example[1].dim()) if d in dims}}
    )
    dhlo.compile(program).save(tmp_path / "model.so")
    models = [dhlo.load(tmp_path / "model.so", num_threads=threads) for threads in (1, 2)]
    for i in range(60):
        sizes = sizes_of(*(rng.choice(SIZES) for _ in range(3)))
        x, y = (laid_out(dtype, s, rng) for s in sizes)
        want = fn(x.double().contiguous(), y.double().contiguous())
        got = models[i % 2](x, y)
        scale = max(1.0, want.abs().max().item()) if want.numel() else 1.0
        torch.testing.assert_close(got.double(), want, rtol=0, atol=tolerance * scale)


def copies(compiled: dhlo.Model, *args: torch.Tensor) -> bool:
    """Whether a call copies an argument."""
    with compiled.profile() as profile:
        compiled(*args)
    return "copy_in" in str(profile)


def test_what_is_copied() -> None:
    """Products take any strides, attention those of heads whose elements lie side by side, other kernels dense memory."""
    x = torch.randn(2, 12, 3, 16)
    plain = dhlo.compile(
        export(Read(product), (torch.randn(4, 5), torch.randn(5, 6)), dynamic_shapes=(({0: N, 1: N}, {0: N, 1: N})))
    )
    assert not copies(plain, torch.randn(30, 40).T[::2], torch.randn(60, 60)[:30, ::2])
    attended = dhlo.compile(export(Read(attention), (x, torch.randn(2, 20, 3, 16)), dynamic_shapes=({0: N, 1: N}, {0: N, 1: N})))
    assert not copies(attended, torch.randn(2, 3, 20, 16).transpose(1, 2), torch.randn(2, 40, 3, 16)[:, :20])
    assert copies(attended, torch.randn(2, 20, 3, 32)[..., ::2], x)
    added = dhlo.compile(
        export(Read(lambda x, y: x @ y + y), (torch.randn(5, 5), torch.randn(5, 5)), dynamic_shapes=({0: N, 1: N}, {0: N, 1: N}))
    )
    assert not copies(added, torch.randn(30, 30).T, torch.randn(30, 30))
    assert copies(added, torch.randn(30, 30), torch.randn(30, 30).T)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.float64, torch.complex128])
def test_images_whose_channels_lie_side_by_side(dtype: torch.dtype) -> None:
    """Elements of a row are as many elements apart as there are channels."""

    class Doubled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + x

    dims = tuple(Dim(n, min=0, max=1000) for n in ("channels", "height", "width"))
    example = numbers(dtype, 3, 5, 7)
    compiled = dhlo.compile(export(Doubled(), (example,), dynamic_shapes=(dict(enumerate(dims)),)), cache="")
    for channels in (1, 2, 3, 4, 5, 17):
        for height, width in ((0, 3), (1, 1), (2, 15), (3, 16), (1, 17), (65, 33), (2, 100)):
            pixels = numbers(dtype, height, width, channels)
            for image in (pixels.permute(2, 0, 1), pixels.permute(2, 1, 0), pixels[:, 1:].permute(2, 0, 1)):
                torch.testing.assert_close(compiled(image), image + image, rtol=0, atol=0)
