"""Every row: a function, exported once with dynamic dims, equals eager at several sizes, 0 and 1 among them."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.frontend.helpers import EXPORTED_FOR_ALL_SIZES, check

rn = torch.randn


def ri(*shape: int, hi: int = 5, lo: int = 0) -> torch.Tensor:
    return torch.randint(lo, hi, shape)


def pos(*shape: int) -> torch.Tensor:
    return torch.rand(*shape) + 0.1


def sizes(make: Any, *shapes: tuple[int, ...]) -> list[list[torch.Tensor]]:
    """Input sets of one tensor each."""
    return [[make(*s)] for s in (shapes or ((3, 4), (5, 2), (1, 1), (0, 3)))]


def pairs(make: Any, other: Any = None) -> list[list[torch.Tensor]]:
    return [[make(*s), (other or make)(*s)] for s in ((3, 4), (5, 2), (1, 1), (0, 3))]


UNARY = [
    "exp",
    "exp2",
    "expm1",
    "sin",
    "cos",
    "tan",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "erf",
    "erfc",
    "sigmoid",
    "abs",
    "neg",
    "sign",
    "floor",
    "ceil",
    "round",
    "trunc",
    "frac",
    "square",
    "isnan",
    "isinf",
    "isfinite",
    "logical_not",
    "signbit",
    "nan_to_num",
    "positive",
]
POSITIVE = ["log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "lgamma", "digamma", "acosh"]
ACTIVATIONS = [
    F.relu,
    F.relu6,
    F.gelu,
    F.silu,
    F.mish,
    F.softplus,
    F.elu,
    F.selu,
    F.celu,
    F.hardtanh,
    F.hardswish,
    F.hardsigmoid,
    F.leaky_relu,
    F.logsigmoid,
    F.softsign,
    F.tanhshrink,
    F.softshrink,
    F.hardshrink,
    lambda x: F.gelu(x, approximate="tanh"),
    lambda x: F.threshold(x, 0.1, 20),
]
ARITHMETIC = [
    torch.add,
    torch.sub,
    torch.mul,
    torch.maximum,
    torch.minimum,
    torch.fmax,
    torch.fmin,
    torch.eq,
    torch.ne,
    torch.lt,
    torch.le,
    torch.gt,
    torch.ge,
]


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    check(getattr(torch, name), *sizes(rn))


@pytest.mark.parametrize("name", POSITIVE)
def test_positive(name: str) -> None:
    check(lambda x: getattr(torch, name)(x + (1 if name == "acosh" else 0)), *sizes(pos))


@pytest.mark.parametrize("name", ["asin", "acos", "atanh", "erfinv"])
def test_bounded(name: str) -> None:
    check(getattr(torch, name), *sizes(lambda *s: torch.rand(*s) * 1.8 - 0.9))


@pytest.mark.parametrize("f", ACTIVATIONS)
def test_activation(f: Any) -> None:
    check(f, *sizes(rn))


@pytest.mark.parametrize("f", ARITHMETIC)
def test_arithmetic(f: Any) -> None:
    check(f, *pairs(rn))
    check(f, *pairs(ri, rn))
    check(f, *pairs(ri))


@pytest.mark.parametrize("mode", [None, "floor", "trunc"])
def test_division(mode: Any) -> None:
    check(lambda a, b: torch.div(a, b, rounding_mode=mode), *pairs(rn, pos))
    check(
        lambda a, b: torch.div(a, b, rounding_mode=mode),
        *pairs(lambda *s: ri(*s, lo=-9, hi=9), lambda *s: ri(*s, lo=1, hi=4)),
    )
    check(lambda a: (a // 3, a % 3, a / 3, torch.fmod(a, 3), -a % -3), *sizes(lambda *s: ri(*s, lo=-9, hi=9)))


def test_bitwise() -> None:
    check(lambda a, b: (a & b, a | b, a ^ b, ~a), *pairs(ri))
    check(lambda a, b: (a & b, a | b, a ^ b, ~a, torch.logical_xor(a, b)), *pairs(lambda *s: rn(*s) > 0))
    check(lambda a: (a << 2, a >> 1), *sizes(ri))


PROMOTIONS: dict[str, Any] = {
    "int and float scalar": (lambda x: x + 1.5, lambda: ri(3, 4)),
    "int over int": (lambda x: x / 2, lambda: ri(3, 4)),
    "bool and int scalar": (lambda x: x + 1, lambda: rn(3, 4) > 0),
    "bool sum": (lambda x: x.sum(), lambda: rn(3, 4) > 0),
    "bf16 and scalar": (lambda x: x * 0.1, lambda: rn(3, 4).bfloat16()),
    "i32 and scalar": (lambda x: x * 3, lambda: ri(3, 4).int()),
    "rank 0 and rank 2": (lambda x: x + x.double().mean(), lambda: rn(3, 4)),
    "u8": (lambda x: x + x, lambda: ri(3, 4, hi=250).byte()),
    "int sin": (torch.sin, lambda: ri(3, 4)),
    "f64": (lambda x: x.double().exp() * 2, lambda: rn(3, 4)),
    "where": (lambda x: torch.where(x > 0, x, 0), lambda: ri(3, 4)),
    "pow": (lambda x: (x**2, x**3, x**0.5, 2**x), lambda: pos(3, 4)),
    "int pow": (lambda x: (x**2, x**3, 2**x), lambda: ri(3, 4)),
    "cat": (lambda x: torch.cat([x, x.float()]), lambda: ri(3, 4)),
    "to": (lambda x: (x.to(torch.int32), x.bool(), x.half(), x.to(torch.int64)), lambda: rn(3, 4) * 5),
    "clamp": (lambda x: (x.clamp(1, 3), x.clamp(min=1.5), x.clamp(max=2)), lambda: ri(3, 4)),
    "full": (lambda x: torch.full_like(x, 3) + torch.ones(x.shape[0], 1), lambda: ri(3, 4)),
}


@pytest.mark.parametrize("name", PROMOTIONS)
def test_promotion(name: str) -> None:
    f, make = PROMOTIONS[name]
    check(f, [make()], rtol=2e-3)


BROADCASTS: dict[str, Any] = {
    "row": (lambda a, b: a + b, [[rn(3, 4), rn(4)], [rn(1, 1), rn(1)], [rn(0, 2), rn(2)]]),
    "column": (lambda a, b: a * b[:, None], [[rn(3, 4), rn(3)], [rn(2, 5), rn(2)]]),
    "outer": (lambda a, b: a[:, None] - b[None], [[rn(3), rn(4)], [rn(1), rn(6)], [rn(0), rn(2)]]),
    "expand": (lambda a, b: a[:, None].expand(-1, b.shape[0]) + b, [[rn(3), rn(4)], [rn(2), rn(5)]]),
    "size as data": (lambda a: a * a.shape[0] + torch.arange(a.shape[1]), [[rn(3, 4)], [rn(5, 2)]]),
}


@pytest.mark.parametrize("name", BROADCASTS)
def test_broadcast(name: str) -> None:
    f, sets = BROADCASTS[name]
    check(f, *sets)


REDUCTIONS: dict[str, Any] = {
    "sum": lambda x: (x.sum(), x.sum(0), x.sum(-1, keepdim=True), x.sum((0, 1))),
    "mean": lambda x: (x.mean(), x.mean(1), x.mean(0, True)),
    "prod": lambda x: (x.prod(), x.prod(0)),
    "var": lambda x: (x.var(1, correction=0), x.var(0, unbiased=False), x.std(1, correction=0)),
    "var1": lambda x: (x.var(1), x.std(0), torch.var_mean(x, 1)),
    "norm": lambda x: (x.norm(dim=1), torch.linalg.vector_norm(x, 1, dim=0)),
    "any": lambda x: ((x > 0).any(), (x > 0).any(1), (x > 0).all(0), (x > 0).all()),
    "cumsum": lambda x: (x.cumsum(0), x.cumsum(1)),
    "cumprod": lambda x: x.cumprod(1),
    "softmax": lambda x: (x.softmax(-1), x.softmax(0), x.log_softmax(-1)),
    "count": torch.count_nonzero,
    "logsumexp": lambda x: x.logsumexp(1),
    "diff": lambda x: x.diff(dim=1),
}
EXTREMES: dict[str, Any] = {
    "max": lambda x: (x.max(), x.max(1), x.min(0), x.amax(0), x.amin((0, 1))),
    "arg": lambda x: (x.argmax(), x.argmax(1), x.argmin(0, True)),
    "sort": lambda x: (x.sort(1), x.sort(0, descending=True)[0], x.argsort(-1)),
    "topk": lambda x: x.topk(1, 1),
    "minmax": lambda x: x.max(1, keepdim=True)[0] - x.min(1, keepdim=True).values,
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduction(name: str) -> None:
    shapes = ((3, 4), (5, 3)) if name in ("var1", "diff") else ((3, 4), (5, 2), (1, 1), (2, 0), (0, 3))
    check(REDUCTIONS[name], *sizes(rn, *shapes))


@pytest.mark.parametrize("name", EXTREMES)
def test_extreme(name: str) -> None:
    check(EXTREMES[name], *sizes(rn, (3, 4), (5, 2), (1, 1)))
    check(EXTREMES[name], *sizes(lambda *s: torch.randperm(s[0] * s[1]).reshape(s), (3, 4), (5, 2)))


SHAPES: dict[str, Any] = {
    "view": lambda x: (x.view(-1), x.reshape(x.shape[1], -1), x.flatten(), x.unsqueeze(0), x.unsqueeze(-1)),
    "squeeze": lambda x: x.unsqueeze(1).squeeze(1) + x[None].squeeze(0),
    "transpose": lambda x: (x.t(), x.transpose(0, 1), x.permute(1, 0), x.mT),
    "movedim": lambda x: x[None].movedim(0, -1),
    "repeat": lambda x: (x.repeat(2, 1), x.repeat(2, 1, 3), x.tile(2)),
    "interleave": lambda x: (x.repeat_interleave(3, 1), x.repeat_interleave(2)),
    "flip": lambda x: (x.flip(0), x.flip(0, 1)),
    "roll": lambda x: (x.roll(1, 0), x.roll(-2, 1), x.roll(3)),
    "cat": lambda x: (torch.cat([x, x, x * 2]), torch.cat([x, x[:1]], 0)),
    "stack": lambda x: (torch.stack([x, x]), torch.stack([x, x], -1), torch.hstack([x, x]), torch.vstack([x, x])),
    "slice": lambda x: (x[1:], x[:-1], x[:, ::2], x[-1:], x[:, 1:2], x[:2]),
    "select": lambda x: (x[0], x[:, -1], x.select(1, 0)),
    "chunk": lambda x: torch.cat([x, x]).chunk(2),
    "tril": lambda x: (x.tril(), x.triu(1), x.tril(-1), x.triu()),
    "diagonal": torch.diagonal,
    "pad": lambda x: (F.pad(x, (1, 2)), F.pad(x, (0, 1, 2, 0), value=3.0)),
    "eye": lambda x: (torch.eye(x.shape[0]), torch.eye(x.shape[0], 3)),
    "arange": lambda x: (
        torch.arange(x.shape[0]),
        torch.arange(1, x.shape[0] + 3, 2),
        torch.arange(x.shape[1], dtype=torch.float32) / 2,
    ),
    "ranges": lambda x: (torch.arange(0, 1, 0.1), torch.linspace(-1, 1, 7), torch.arange(x.shape[0], 0, -1)),
    "new": lambda x: (x.new_zeros(x.shape[1]), x.new_ones(2, x.shape[0]), torch.zeros_like(x), x.new_full((2,), 7)),
    "meshgrid": lambda x: torch.meshgrid(x[0], x[:, 0], indexing="ij"),
    "unfold": lambda x: x.unfold(1, 2, 1),
    "fill": lambda x: x.masked_fill(x > 0, -1.0),
    "broadcast": lambda x: torch.broadcast_tensors(x, x[:1]),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shape(name: str) -> None:
    check(SHAPES[name], *sizes(rn, (3, 4), (5, 3), (6, 7), (4, 9)))


def test_shape_of_one() -> None:
    for name in ("repeat", "flip", "roll", "cat", "select", "tril", "pad", "arange", "new", "ranges"):
        check(SHAPES[name], [rn(3, 4)], [rn(1, 1)], [rn(1, 3)], [rn(4, 1)])


PADS = [("reflect", (1, 2)), ("replicate", (3, 1)), ("circular", (2, 2)), ("reflect", (-1, 2)), ("replicate", (2, -2))]
PADS += [("circular", (2, -2)), ("circular", (-2, 1)), ("circular", (0, 4)), ("reflect", (0, 1))]


@pytest.mark.parametrize(("mode", "pad"), PADS)
def test_pad_modes(mode: str, pad: tuple[int, int]) -> None:
    check(lambda x: F.pad(x, pad, mode=mode), *sizes(rn, (2, 3, 5), (1, 2, 4)))


INDEXING: dict[str, Any] = {
    "embedding": (lambda i, w: F.embedding(i, w), [[ri(3, 4), rn(5, 6)], [ri(1, 1), rn(5, 2)], [ri(0, 2), rn(5, 3)]]),
    "index": (lambda x, i: (x[i], x[:, i], x[i, i], x[i, :, i - 1]), [[rn(5, 5, 5), ri(3)], [rn(6, 5, 7), ri(2)]]),
    "mixed": (lambda x, i: x[i[:, None], torch.arange(2)], [[rn(5, 4), ri(3)], [rn(6, 4), ri(2)]]),
    "gather": (lambda x, i: (x.gather(1, i), x.gather(0, i)), [[rn(5, 5), ri(3, 2)], [rn(6, 6), ri(4, 4)]]),
    "select": (lambda x, i: (x.index_select(0, i), x.index_select(1, i)), [[rn(5, 6), ri(3)], [rn(7, 5), ri(1)]]),
    "along": (lambda x, i: torch.take_along_dim(x, i, 1), [[rn(3, 5), ri(3, 2)], [rn(3, 5), ri(3, 4)]]),
    "add": (
        lambda x, i, y: (x.index_add(0, i, y), x.index_copy(0, i, y)),
        [[rn(5, 3), torch.tensor([4, 0]), rn(2, 3)], [rn(6, 2), torch.tensor([1]), rn(1, 2)]],
    ),
    "scatter": (
        lambda x, i, y: (x.scatter(1, i, y), x.scatter_add(1, i, y), x.scatter(1, i, 2.0)),
        [[rn(3, 5), torch.tensor([[0, 1], [2, 3], [4, 0]]), rn(3, 2)], [rn(1, 6), torch.tensor([[3]]), rn(1, 1)]],
    ),
    "reduce": (
        lambda x, i, y: tuple(
            x.scatter_reduce(1, i, y, how, include_self=s) for how in ("sum", "prod", "amax", "mean") for s in (True, False)
        ),
        [[rn(3, 5), ri(3, 7), rn(3, 7)], [rn(2, 5), ri(2, 3), rn(2, 3)]],
    ),
    "put": (
        lambda x, i, y: x.index_put((i,), y, accumulate=True),
        [[rn(5, 3), ri(4), rn(4, 3)], [rn(5, 1), ri(2), rn(2, 1)]],
    ),
    "put mask": (lambda x: x.index_put((x > 0,), torch.tensor(0.0)), [[rn(5, 3)], [rn(2, 2)]]),
    "nonzero": (
        lambda x: (x.nonzero(), x[x > 0], x.masked_select(x < 0)),
        [[rn(5, 3)], [rn(2, 2)], [rn(0, 2)], [torch.zeros(2, 2)]],
    ),
    "masked_scatter": (lambda x, y: x.masked_scatter(x > 0, y), [[rn(5, 3), rn(20)], [rn(2, 2), rn(9)]]),
    "search": (
        lambda e, x: (torch.searchsorted(e, x), torch.bucketize(x, e, right=True)),
        [[rn(5).sort()[0], rn(3, 4)], [rn(1), rn(0, 2)]],
    ),
    "unique": (lambda x: torch.unique(x, return_inverse=True, return_counts=True), [[ri(9)], [ri(1)]]),
    "unique rows": (
        lambda x: torch.unique(x, dim=0, return_inverse=True, return_counts=True),
        [[ri(9, 2) % 3], [ri(1, 1)], [ri(40, 3) % 2]],
    ),
    "unique columns": (lambda x: torch.unique(x, dim=1), [[ri(2, 9, 2) % 2], [ri(1, 1, 1)]]),
    "unique runs": (
        lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True),
        [[ri(30) % 2], [ri(1)]],
    ),
    "unique runs of rows": (
        lambda x: torch.unique_consecutive(x, dim=0, return_inverse=True, return_counts=True),
        [[ri(30, 2) % 2], [ri(1, 1)]],
    ),
    "repeats": (lambda x, r: x.repeat_interleave(r, 0), [[rn(3, 2), ri(3)], [rn(1, 4), ri(1)]]),
    "one_hot": (lambda i: F.one_hot(i, 5), [[ri(3, 4)], [ri(1, 1)]]),
    "take": (lambda x, i: x.take(i), [[rn(5, 3), ri(4)], [rn(3, 3), ri(1)]]),
}


@pytest.mark.parametrize("name", INDEXING)
def test_indexing(name: str) -> None:
    f, sets = INDEXING[name]
    check(f, *sets)


PRODUCTS: dict[str, Any] = {
    "matmul": (torch.matmul, [[rn(3, 4), rn(4, 5)], [rn(1, 1), rn(1, 2)], [rn(0, 2), rn(2, 3)]]),
    "batched": (torch.matmul, [[rn(2, 3, 4), rn(2, 4, 5)], [rn(1, 1, 2), rn(1, 2, 1)]]),
    "broadcast": (
        lambda a, b: (a[:, None] @ b, a @ b[0], b[0].mT @ a[0].mT),
        [[rn(2, 3, 4), rn(6, 4, 5)], [rn(3, 1, 2), rn(2, 2, 7)]],
    ),
    "vector": (
        lambda a, v: (a @ v, v @ a.t(), torch.dot(v, v), torch.outer(v, v)),
        [[rn(3, 4), rn(4)], [rn(1, 2), rn(2)]],
    ),
    "linear": (
        F.linear,
        [[rn(2, 3, 4), rn(5, 4), rn(5)], [rn(1, 1, 2), rn(3, 2), rn(3)], [rn(0, 1, 2), rn(3, 2), rn(3)]],
    ),
    "addmm": (
        lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2),
        [[rn(5), rn(3, 4), rn(4, 5)], [rn(2), rn(1, 1), rn(1, 2)]],
    ),
    "einsum": (
        lambda a, b: (
            torch.einsum("bij,bjk->bik", a, b),
            torch.einsum("bij,cjk->bcik", a, b),
            torch.einsum("...ij->...ji", a),
            torch.einsum("bij,bjk->", a, b),
        ),
        [[rn(2, 3, 4), rn(2, 4, 5)], [rn(3, 1, 2), rn(3, 2, 1)]],
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_product(name: str) -> None:
    f, sets = PRODUCTS[name]
    check(f, *sets)


def qkv(b: int, h: int, s: int, t: int, hk: int = 0) -> list[torch.Tensor]:
    return [rn(b, h, s, 8), rn(b, hk or h, t, 8), rn(b, hk or h, t, 8)]


BATCH_AND_LENGTHS = ({0: torch.export.Dim.AUTO, 2: torch.export.Dim.AUTO},) * 3


def test_attention() -> None:
    sets = [qkv(2, 4, 5, 6), qkv(1, 4, 1, 3), qkv(3, 4, 7, 2)]
    check(F.scaled_dot_product_attention, *sets, shapes=BATCH_AND_LENGTHS)
    check(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3),
        *sets,
        shapes=BATCH_AND_LENGTHS,
    )
    check(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        qkv(2, 4, 5, 6, 2),
        qkv(1, 4, 3, 3, 2),
        shapes=BATCH_AND_LENGTHS,
    )


def test_attention_masks() -> None:
    f = lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m)
    for mask in (
        lambda s, t: rn(s, t),
        lambda s, t: rn(2, 1, s, t) > 0,
        lambda s, t: torch.arange(t) <= torch.arange(s)[:, None],
    ):
        sets = [[*qkv(2, 4, s, t), mask(s, t)] for s, t in ((5, 6), (3, 4), (1, 7))]
        n = sets[0][3].dim()
        lengths = ({2: torch.export.Dim.AUTO},) * 3
        check(f, *sets, shapes=(*lengths, {n - 2: torch.export.Dim.AUTO, n - 1: torch.export.Dim.AUTO}))
    check(
        lambda q, k, v: F.scaled_dot_product_attention(q[:, 0], k[:, 0], v[:, 0]),
        qkv(2, 4, 5, 6),
        shapes=BATCH_AND_LENGTHS,
    )


def test_norms() -> None:
    w, b = rn(8), rn(8)
    feature = ({0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO},)
    sets = [[rn(3, 4, 8)], [rn(1, 1, 8)], [rn(0, 2, 8)]]
    check(
        lambda x: (F.layer_norm(x, (8,), w, b), F.rms_norm(x, (8,), w, 1e-6), F.layer_norm(x, (8,))),
        *sets,
        shapes=feature,
    )
    check(
        lambda x: F.layer_norm(x.bfloat16(), (8,), w.bfloat16(), b.bfloat16()).float(),
        *sets,
        shapes=feature,
        rtol=2e-2,
        atol=2e-2,
    )
    images = [[rn(2, 8, 5, 6)], [rn(1, 8, 3, 3)]]
    auto = ({0: torch.export.Dim.AUTO, 2: torch.export.Dim.AUTO, 3: torch.export.Dim.AUTO},)
    check(
        lambda x: (F.group_norm(x, 4, w, b), F.instance_norm(x), F.batch_norm(x, w, w.abs(), w, b)),
        *images,
        shapes=auto,
    )


CONVOLUTIONS: dict[str, Any] = {
    "plain": lambda x: F.conv2d(x, torch.ones(4, 3, 3, 3), torch.ones(4)),
    "stride": lambda x: F.conv2d(x, torch.ones(4, 3, 3, 3), stride=2, padding=1),
    "depthwise": lambda x: F.conv2d(x, torch.ones(3, 1, 3, 3), groups=3, dilation=2, padding=2),
    "same": lambda x: F.conv2d(x, torch.ones(4, 3, 2, 3), padding="same"),
    "transposed": lambda x: F.conv_transpose2d(x, torch.ones(3, 4, 3, 3), stride=2),
    "1d": lambda x: F.conv1d(x[:, :, 0], torch.ones(4, 3, 3), padding=1),
    "max": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max of integers": lambda x: (F.max_pool2d((x * 90).long(), 3, 2, 1), F.max_pool2d((x * 90).abs().byte(), 2, 1)),
    "ceil": lambda x: (
        F.max_pool2d(x, 2, 2, ceil_mode=True),
        F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
    ),
    "avg": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "adaptive": lambda x: (F.adaptive_avg_pool2d(x, 1), F.adaptive_avg_pool2d(x, (2, 3))),
    "nearest": lambda x: (F.interpolate(x, scale_factor=2), F.interpolate(x, size=(7, 5))),
    "bilinear": lambda x: (
        F.interpolate(x, scale_factor=2, mode="bilinear"),
        F.interpolate(x, size=(7, 5), mode="bilinear", align_corners=True),
    ),
    "indices": lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
    "grid": lambda x: F.grid_sample(x, torch.linspace(-1.2, 1.2, 24).reshape(1, 3, 4, 2).expand(x.shape[0], 3, 4, 2)),
    "border": lambda x: F.grid_sample(
        x, torch.linspace(-2, 1, 24).reshape(1, 3, 4, 2).expand(x.shape[0], 3, 4, 2), "nearest", "border", True
    ),
    "bicubic": lambda x: F.interpolate(x, size=(9, 4), mode="bicubic"),
    "shuffle": lambda x: F.pixel_shuffle(F.pad(x, (0, 0, 0, 0, 0, 1)), 2),
}


POOLING = ("max", "max of integers", "ceil", "avg", "adaptive", "indices")


@pytest.mark.parametrize("name", [pytest.param(n, marks=EXPORTED_FOR_ALL_SIZES) if n in POOLING else n for n in CONVOLUTIONS])
def test_convolution(name: str) -> None:
    auto = ({0: torch.export.Dim.AUTO, 2: torch.export.Dim.AUTO, 3: torch.export.Dim.AUTO},)
    check(CONVOLUTIONS[name], *sizes(rn, (2, 3, 8, 9), (1, 3, 7, 6), (3, 3, 11, 5)), shapes=auto, atol=1e-4)


COMPOSITES: dict[str, Any] = {
    "losses": lambda x, y: (F.mse_loss(x, y), F.l1_loss(x, y), F.smooth_l1_loss(x, y), F.huber_loss(x, y)),
    "logits": lambda x, y: (F.binary_cross_entropy_with_logits(x, y), F.cross_entropy(x, y.argmax(1))),
    "reductions": lambda x, y: (torch.aminmax(x), x.nansum(0), x.nanmean(), torch.trace(x), x.kthvalue(2, 1)),
    "products": lambda x, y: (torch.tensordot(x, y, ([0], [0])), torch.inner(x, y), torch.cdist(x, y)),
    "similarity": lambda x, y: (F.cosine_similarity(x, y), torch.isclose(x, y), torch.isin(x, y), torch.sinc(x)),
    "turns": lambda x, y: (x.rot90(), x.rot90(3), x.fliplr(), torch.diag_embed(x, 1), torch.diag(x), x.msort()),
}


@pytest.mark.parametrize("name", COMPOSITES)
def test_composite(name: str) -> None:
    check(COMPOSITES[name], *[[rn(*s), rn(*s)] for s in ((3, 4), (5, 7), (4, 3))])


def test_unfold_and_cross() -> None:
    check(lambda x: F.unfold(x, 2, padding=1, stride=2), [rn(2, 3, 5, 6)], [rn(1, 3, 4, 8)])
    check(lambda x: torch.linalg.cross(x, x + 1), [rn(5, 3)], [rn(2, 3)], shapes=({0: torch.export.Dim.AUTO},))


def test_recurrent_cells() -> None:
    w, u, v = rn(12, 4), rn(12, 3), rn(12)
    auto = ({0: torch.export.Dim.AUTO}, {0: torch.export.Dim.AUTO})
    check(lambda x, h: torch.lstm_cell(x, (h, h), w, u, v, v), [rn(2, 4), rn(2, 3)], [rn(1, 4), rn(1, 3)], shapes=auto)
    check(
        lambda x, h: torch.gru_cell(x, h, w[:9], u[:9], v[:9], v[:9]),
        [rn(2, 4), rn(2, 3)],
        [rn(5, 4), rn(5, 3)],
        shapes=auto,
    )


def test_complex() -> None:
    def rotate(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
        z = torch.view_as_complex(x) * torch.polar(torch.ones_like(angle), angle)
        return torch.view_as_real(z).flatten(1)

    auto = ({0: torch.export.Dim.AUTO}, {0: torch.export.Dim.AUTO})
    check(rotate, [rn(3, 4, 2), rn(3, 4)], [rn(1, 4, 2), rn(1, 4)], shapes=auto)
    check(lambda x: torch.fft.fft2(x).real, [rn(3, 4, 6)], [rn(1, 2, 5)])


def test_python_numbers_come_back() -> None:
    check(lambda x: (x + 1, x.shape[0] * 2, None, 3), [rn(3, 4)], [rn(5, 2)])


def test_arithmetic_of_sizes() -> None:
    def f(x: torch.Tensor) -> Any:
        n, m = x.shape
        return x.reshape(n * m)[: (n * m) // 2], x.new_zeros(n // 2 + m % 3), x * (n / m), operator.mul(x, n - m)

    check(f, [rn(5, 4)], [rn(3, 7)], [rn(2, 2)])
