"""Cases of reductions, products, attention, convolution, pooling and control flow, for tests/test_ops.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import torch

from dhlo.ir.dialect import build
from dhlo.ir.mlir import ir
from dhlo.ir.ops import compute, control
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops import movement as mv
from dhlo.ir.ops.paged import PagedAttention
from dhlo.ir.types import TensorType, from_mlir, from_torch_dtype
from tests.op_cases_elementwise import ALL, ANY_ZERO, FLOATS, INTS
from tests.programs import Draw, Part, anything, mostly_true, plain, powers, runs_below, t, within

__all__ = ["CASES", "WEIGHTS"]

# Sums are added in another order than PyTorch's; narrow floats are added in f32 and rounded once.
SUMS = {"f32": 2e-5, "f64": 1e-13, "f16": 4e-3, "bf16": 3e-2}
_GEN = torch.Generator().manual_seed(1)


def _random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=_GEN, dtype=torch.float64).to(dtype)


WEIGHTS = {
    "linear": _random(7, 5),
    "linear64": _random(7, 5, dtype=torch.float64),
    "linear8": torch.randint(-128, 128, (37, 70), generator=_GEN, dtype=torch.int8),
    "conv": _random(8, 3, 3, 3),
    "conv1": _random(4, 1, 5),
    "lone": _random(40, 1, 9),
    "depth": _random(6, 1, 3, 3),
    "up": _random(3, 4, 3, 3),
    "grouped": _random(4, 2, 1, 3),
    "conv3": _random(2, 2, 3, 1, 2),
    "side by side": _random(3, 5, 2, 2),
    "frames": _random(6, 2, 40),
}


def weight(name: str) -> Any:
    w = WEIGHTS[name]
    return build(mv.Weight, [], {"name_": name}, results=[TensorType.of(from_torch_dtype(w.dtype), w.shape)]).results[0]


# ---------------------------------------------------------------------------------------------------- reductions
def reduce(x: Any, how: str, dims: Sequence[int]) -> Any:
    return build(compute.Reduce, [x], {"how": how, "dims": list(dims)}).results[0]


def spread(x: Any, like: Any, dims: Sequence[int]) -> Any:
    """A reduced value at every element of what was reduced."""
    ty = from_mlir(like)
    return build(mv.Broadcast, [x], {"dims": [d for d in range(ty.rank) if d not in dims]}, results=[ty]).results[0]


def reduction(dtype: str, how: str, shape: Sequence[object], dims: Sequence[int], draw: Draw, **more: Any) -> Part:
    return Part(
        [(t(dtype, *shape), draw)],
        lambda x: [reduce(x, how, dims)],
        label=f"{how} {dtype} {list(shape)} {list(dims)}",
        **more,
    )


def _reductions() -> list[Part]:
    parts = []
    for dims in (d for k in (1, 2, 3) for d in combinations(range(3), k)):
        parts.append(
            reduction(
                "f32",
                "sum",
                ["n", 3, "m"],
                dims,
                within(-1, 2),
                tol=SUMS,
                atol=1e-2,
                eager=lambda x, d=dims: [x.sum(d)],
            )
        )
        parts.append(reduction("f32", "max", ["n", "m", 2], dims, anything, tol=ANY_ZERO))
    for k, d in enumerate(ALL):
        hows = ["max", "min", "sum", "prod", *(["any", "all"] if d == "i1" else [] if d in FLOATS else ["xor"])]
        for how in [*hows, *(["maxnum"] if d in FLOATS else [])]:
            draw = anything if how in ("max", "min", "maxnum") or d not in FLOATS else within(0.5, 1.5) if how == "sum" else powers
            tol = SUMS if how == "sum" else ANY_ZERO
            parts.append(reduction(d, how, ["n", "m"], [(k + len(how)) % 2], draw, tol=tol))
    parts.append(reduction("f32", "sum", [], [], plain))
    parts.append(reduction("f32", "sum", [1, "m", 1], [0, 1], within(0, 1), tol=SUMS))
    return parts


def softmax(dtype: str, shape: Sequence[object], dim: int) -> Part:
    def body(x: Any) -> list[Any]:
        e = build(ew.Exp, [build(ew.Sub, [x, spread(reduce(x, "max", [dim]), x, [dim])]).results[0]]).results[0]
        return [build(ew.Div, [e, spread(reduce(e, "sum", [dim]), x, [dim])]).results[0]]

    return Part(
        [(t(dtype, *shape), plain)],
        body,
        lambda x: [x.softmax(dim)],
        tol={"f32": 1e-5, "f64": 1e-13, "f16": 1e-2, "bf16": 6e-2},
        atol=1e-7,
        label=f"softmax {dtype} {shape} {dim}",
    )


def layernorm(dtype: str) -> Part:
    """Normalisation of the last dim; also gives the mean, and the reciprocal deviation."""

    def body(x: Any, gain: Any) -> list[Any]:
        size = build(mv.Full, [], {"value": "m"}, results=[from_mlir(x).with_shape(["n"])]).results[0]
        eps = build(mv.Full, [], {"value": "1e-5"}, results=[from_mlir(x).with_shape(["n"])]).results[0]
        mean = build(ew.Div, [reduce(x, "sum", [1]), size]).results[0]
        centered = build(ew.Sub, [x, spread(mean, x, [1])]).results[0]
        square = build(ew.Mul, [centered, centered]).results[0]
        var = build(ew.Div, [reduce(square, "sum", [1]), size]).results[0]
        r = build(ew.Rsqrt, [build(ew.Add, [var, eps]).results[0]]).results[0]
        wide = build(mv.Broadcast, [gain], {"dims": [1]}, results=[from_mlir(x)]).results[0]
        y = build(ew.Mul, [build(ew.Mul, [centered, spread(r, x, [1])]).results[0], wide]).results[0]
        return [y, mean, r]

    def eager(x: torch.Tensor, gain: torch.Tensor) -> list[torch.Tensor]:
        mean = x.mean(1)
        r = (((x - mean[:, None]) ** 2).mean(1) + 1e-5).rsqrt()
        return [(x - mean[:, None]) * r[:, None] * gain, mean, r]

    return Part(
        [(t(dtype, "n", "m"), plain), (t(dtype, "m"), plain)],
        body,
        eager if dtype in ("f32", "f64") else None,
        tol={"f32": 2e-4, "f64": 1e-11, "f16": 0.1, "bf16": 0.3},
        atol=1e-5 if dtype in ("f32", "f64") else 0.1,
        label=f"layernorm {dtype}",
    )


def wrapped_sum() -> Part:
    """A sum of unsigned bytes stays in their range before anything else is done with it."""

    def body(x: Any) -> list[Any]:
        s = reduce(x, "sum", [1])
        return [build(ew.Convert, [s], results=[from_mlir(s).with_dtype("i32")]).results[0]]

    return Part([(t("ui8", "n", "m"), anything)], body, lambda x: [x.sum(1).to(torch.uint8).int()], label="ui8 sum, converted")


REDUCE = [
    *_reductions(),
    wrapped_sum(),
    *(softmax(d, ["n", "m"], 1) for d in FLOATS),
    softmax("f32", ["n", "m"], 0),
    softmax("f32", [2, "m", 3], 1),
    softmax("f32", ["n", 2, "m"], 2),
    *(layernorm(d) for d in FLOATS),
]


# ---------------------------------------------------------------------------------------------------- products
PRODUCT = {"f32": 1e-4, "f64": 1e-12, "bf16": 2e-2}


def product(
    dtype: str, a: Sequence[object], b: Sequence[object], left: list[int] | None = None, right: list[int] | None = None
) -> Part:
    """A matrix product, its operands perhaps transposed; `left` and `right` are permutations."""

    def body(x: Any, y: Any) -> list[Any]:
        x = x if left is None else build(mv.Transpose, [x], {"perm": left}).results[0]
        y = y if right is None else build(mv.Transpose, [y], {"perm": right}).results[0]
        return [build(compute.Matmul, [x, y]).results[0]]

    def eager(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [torch.matmul(x if left is None else x.permute(left), y if right is None else y.permute(right))]

    return Part(
        [(t(dtype, *a), within(-1, 1)), (t(dtype, *b), within(-1, 1))],
        body,
        eager,
        tol=PRODUCT,
        atol={"f32": 1e-4, "f64": 1e-12, "bf16": 0.3}[dtype],
        label=f"matmul {dtype} {a} {b}",
    )


def linear(name: str, dtype: str, shape: Sequence[object]) -> Part:
    """x @ w.T + bias, then relu, of a constant matrix."""
    w = WEIGHTS[name]

    def body(x: Any, bias: Any) -> list[Any]:
        y = build(compute.Matmul, [x, build(mv.Transpose, [weight(name)], {"perm": [1, 0]}).results[0]]).results[0]
        y = build(
            ew.Add,
            [y, build(mv.Broadcast, [bias], {"dims": [from_mlir(y).rank - 1]}, results=[from_mlir(y)]).results[0]],
        ).results[0]
        return [build(ew.Maximum, [y, build(mv.Full, [], {"value": "0"}, results=[from_mlir(y)]).results[0]]).results[0]]

    return Part(
        [(t(dtype, *shape), within(-1, 1)), (t(dtype, 7), plain)],
        body,
        lambda x, b: [(x @ w.t() + b).relu()],
        tol=PRODUCT,
        atol=1e-5,
        label=f"linear {dtype}",
    )


def byte_product(left: str, a: Sequence[object], b: Sequence[object], perm: Sequence[int] | None = None) -> Part:
    """Bytes by bytes, exactly; the right side is transposed."""

    def body(x: Any, y: Any) -> list[Any]:
        y = y if perm is None else build(mv.Transpose, [y], {"perm": perm}).results[0]
        return [build(compute.Matmul, [x, y]).results[0]]

    def eager(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [torch.matmul(x.int(), (y if perm is None else y.permute(perm)).int())]

    return Part([(t(left, *a), anything), (t("i8", *b), anything)], body, eager, label=f"matmul {left} {a} {b}")


def byte_linear(left: str, shape: Sequence[object]) -> Part:
    """x @ w.T, scaled by row and column, plus a bias: what quantised layers are."""
    w = WEIGHTS["linear8"]

    def body(x: Any, rows: Any, columns: Any) -> list[Any]:
        y = build(compute.Matmul, [x, build(mv.Transpose, [weight("linear8")], {"perm": [1, 0]}).results[0]]).results[0]
        ty = from_mlir(y).with_dtype("f32")
        y = build(ew.Convert, [y], results=[ty]).results[0]
        by_row, by_column = (
            build(mv.Broadcast, [v], {"dims": dims}, results=[ty]).results[0]
            for v, dims in ((rows, list(range(ty.rank - 1))), (columns, [ty.rank - 1]))
        )
        y = build(ew.Mul, [build(ew.Mul, [y, by_row]).results[0], by_column]).results[0]
        return [build(ew.Add, [y, by_column]).results[0]]

    def eager(x: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> list[torch.Tensor]:
        return [torch.matmul(x.int(), w.t().int()).float() * rows[..., None] * columns + columns]

    args = [(t(left, *shape), anything), (t("f32", *shape[:-1]), within(-1, 1)), (t("f32", w.shape[0]), within(-1, 1))]
    return Part(args, body, eager, tol={"f32": 1e-6}, atol=1e-6, label=f"linear {left} {shape}")


MATMUL = [
    product("f32", ["n", "m"], ["m", 5]),
    product("f64", ["n", "m"], ["m", "n"]),
    product("f32", ["m", "n"], ["n", "m"]),
    product("bf16", ["n", "m"], ["m", 5]),
    product("f32", ["n", 3, "m"], ["n", "m", 4]),
    product("f32", ["n", 2, 3, "m"], ["n", 2, "m", 1]),
    product("f32", ["n", 3, "m"], ["m", 9]),
    product("f32", ["m", "n"], ["m", 3], left=[1, 0]),
    product("f32", ["n", 3, 2, "m"], ["n", 4, 2, "m"], left=[0, 2, 1, 3], right=[0, 2, 3, 1]),
    linear("linear", "f32", ["n", "m", 5]),
    linear("linear", "f32", ["n", 5]),
    linear("linear64", "f64", ["m", 5]),
    byte_product("i8", ["n", "m"], ["m", "n"]),
    byte_product("ui8", ["m", "n"], ["n", "m"]),
    byte_product("i8", ["n", 3, "m"], ["n", 5, "m"], [0, 2, 1]),
    byte_product("ui8", [2, "n", 3, "m"], [33, "m"], [1, 0]),
    byte_linear("i8", ["n", "m", 70]),
    byte_linear("ui8", ["m", 70]),
]


def attention(
    dtype: str,
    q: Sequence[object],
    k: Sequence[object],
    mask: str | None = None,
    causal: bool = False,
    past: str = "0",
    softcap: float = 0.0,
    sinks: bool = False,
) -> Part:
    shape = [q[0], q[1], q[2], k[2]]
    args: list[Any] = [(t(dtype, *q), within(-1, 1)), (t(dtype, *k), within(-1, 1)), (t(dtype, *k), within(-1, 1))]
    if mask is not None:
        args.append((t(mask, *shape), mostly_true if mask == "i1" else within(-2, 2)))
    if sinks:
        args.append((t("f32", q[1]), within(-3, 3)))
    attrs = {"scale": 0.25, "softcap": softcap, "causal": causal, "past": past}

    def body(*v: Any) -> list[Any]:
        return [build(compute.Attention, v, attrs).results[0]]

    return Part(
        args,
        body,
        tol={"f32": 1e-4, "f16": 1e-2, "bf16": 5e-2},
        atol={"f32": 1e-5, "f16": 4e-3, "bf16": 4e-2}[dtype],
        label=f"attention {dtype} {q} {k} mask {mask} causal {causal} past {past} {softcap} {sinks}",
    )


ATTENTION = [
    *(attention(d, ["n", 4, "m", 16], ["n", 2, "m", 16]) for d in ("f32", "f16", "bf16")),
    attention("f32", ["n", 2, "m", 16], ["n", 2, "m", 16], causal=True),
    attention("f32", [1, 4, "m", 16], [1, 2, "m + n", 16], causal=True, past="n"),
    attention("f32", [1, 2, "n", 16], [1, 2, "m + n", 16], mask="i1", causal=True, past="m - 3"),
    attention("f32", [1, 2, "m", 16], [1, 2, "n", 16], mask="f32"),
    attention("f32", [1, 2, "n", 16], [1, 1, "m", 16], mask="i1"),
    attention("f32", ["n", 4, 1, 16], ["n", 2, "m + 1", 16]),
    attention("f32", ["n", 4, "m", 16], ["n", 2, "n", 16], mask="i1", sinks=True),
    attention("bf16", [1, 4, "m", 16], [1, 4, "m + n", 16], causal=True, past="n", sinks=True, softcap=0.2),
    attention("f32", [1, 4, "n", 20], [1, 1, "m", 20], mask="f32", softcap=0.5),
]


def paged(
    dtype: str,
    heads: tuple[int, int],
    depth: tuple[int, int],
    mask: str | None = None,
    sinks: bool = False,
    hides: bool = False,
    past: tuple[int, int] = (0, 70),
    **given: Any,
) -> Part:
    """Sequences of n tokens, of one, and of m, each behind `past` keys at least and at most; blocks of 16 slots lie as tables are
    drawn. `hides`: any of the 32 keys before a token's own are hidden from it."""
    slots, tokens, columns = 384, "n + m + 1", "n + m + 5"
    attrs = {"block": 16, "window": 0, "scale": 0.25, "softcap": 0.0, "causal": True, **given}
    args: list[Any] = [
        (t(dtype, 1, heads[0], tokens, depth[0]), within(-1, 1)),
        (t(dtype, heads[1], slots, depth[0]), within(-1, 1)),
        (t(dtype, heads[1], slots, depth[1]), within(-1, 1)),
        (t("i32", 3, columns), runs_below(slots // attrs["block"])),
        (t("i32", 3), lambda d, shape, g: torch.randint(past[0], past[1] + 1, shape, generator=g).to(d.torch)),
        (t("f32", "n"), plain),  # which says how long the first is
    ]
    if mask is not None:
        shape = t(mask, 1, heads[0], tokens, f"{attrs['block']} * ({columns})")
        args.append((shape, mostly_true if mask == "i1" else within(-2, 2)))
    if sinks:
        args.append((t("f32", heads[0]), within(-3, 3)))
    if hides:
        args.append((t("i32", tokens), lambda d, shape, g: torch.randint(-(1 << 31), 1 << 31, shape, generator=g).to(d.torch)))

    def body(q: Any, k: Any, v: Any, tables: Any, past: Any, _: Any, *more: Any) -> list[Any]:
        def numbers(*values: str) -> Any:
            each = [build(mv.Full, [], {"value": x}, results=[t("i32", 1)]).results[0] for x in values]
            return build(mv.Concat, each, {"dim": 0}).results[0]

        lengths = build(ew.Add, [past, numbers("n", "1", "m")]).results[0]
        starts = numbers("0", "n", "n + 1", tokens)
        return [build(PagedAttention, [q, k, v, tables, starts, lengths, *more], attrs).results[0]]

    return Part(
        args,
        body,
        tol={"f32": 1e-4, "f16": 1e-2, "bf16": 5e-2},
        atol={"f32": 1e-5, "f16": 4e-3, "bf16": 4e-2}[dtype],
        label=f"paged attention {dtype} {heads} {depth} mask {mask} {sinks} {hides} {past} {given}",
    )


PAGED_ATTENTION = [
    *(paged(d, (4, 2), (16, 24)) for d in ("f32", "f16", "bf16")),
    paged("f32", (2, 2), (20, 20), window=1),
    paged("f32", (6, 1), (16, 16), window=37, block=32),
    paged("f32", (4, 2), (16, 16), causal=False, mask="i1"),
    paged("bf16", (4, 4), (16, 16), mask="bf16", window=20),
    paged("f32", (4, 2), (16, 24), sinks=True, window=20),
    paged("f32", (4, 1), (16, 16), sinks=True, mask="i1", softcap=0.1),
    *(paged(d, (4, 2), (16, 24), hides=True) for d in ("f32", "bf16")),
    paged("f32", (6, 1), (16, 16), window=37, hides=True, sinks=True),
    # Two rows whose first key isn't the first of a vector of scores: they mustn't end in each other's (4 lanes).
    paged("f32", (2, 1), (16, 16), past=(64, 67), window=61),
]


# -------------------------------------------------------------------- convolution, pooling
def conv(x: Sequence[object], name: str, out: Sequence[object], dtype: str = "f32", constant: bool = True, **given: Any) -> Part:
    n = len(x) - 2
    w = WEIGHTS[name].to(torch.float64 if dtype == "f64" else torch.float32)
    attrs = {
        "stride": [1] * n,
        "padding": [0] * n,
        "dilation": [1] * n,
        "transposed": False,
        "output_padding": [0] * n,
        "groups": 1,
        **given,
    }
    args: list[Any] = [(t(dtype, *x), within(-1, 1))]
    if not constant:
        args.append((t(dtype, *w.shape), lambda _d, _s, _g: w))

    def body(*v: Any) -> list[Any]:
        y = build(compute.Conv, [v[0], v[1] if len(v) > 1 else weight(name)], attrs, results=[t(dtype, *out)]).results[0]
        return [build(ew.Maximum, [y, build(mv.Full, [], {"value": "0"}, results=[from_mlir(y)]).results[0]]).results[0]]

    def eager(x: torch.Tensor, *_: torch.Tensor) -> list[torch.Tensor]:
        padding = attrs["padding"]
        if len(padding) > n:
            ends = zip(reversed(padding[:n]), reversed(padding[n:]), strict=True)
            x, padding = torch.nn.functional.pad(x, [p for pair in ends for p in pair]), [0] * n
        return [
            torch.ops.aten.convolution(
                x,
                w,
                None,
                attrs["stride"],
                padding,
                *(attrs[k] for k in ("dilation", "transposed", "output_padding", "groups")),
            ).relu()
        ]

    return Part(
        args,
        body,
        eager,
        tol={"f32": 1e-4, "f64": 1e-12},
        atol=1e-4 if dtype == "f32" else 1e-12,
        label=f"conv {x} {name} {given}",
    )


CONV = [
    conv(["n", 3, "m + 1", 9], "conv", ["n", 8, "m + 1", 9], padding=[1, 1]),
    conv(["n", 3, "m + 2", 9], "conv", ["n", 8, "floordiv(m + 1, 2) + 1", 5], padding=[1, 1], stride=[2, 2]),
    conv(["n", 3, "m + 5", 7], "conv", ["n", 8, "m + 1", 3], dilation=[2, 2], constant=False),
    conv(["n", 3, 5, "m + 3"], "conv", ["n", 8, 3, "m + 1"], dtype="f64", constant=False),
    conv(["n", 1, "m + 5"], "conv1", ["n", 4, "m + 1"]),
    conv(["n", 1, "4*m + 9"], "lone", ["n", 40, "m + 1"], stride=[4]),
    conv(["n", 1, "m + 9"], "lone", ["n", 40, "m + 1"], dtype="f64", constant=False),
    conv(["n", 6, "m + 1", 5], "depth", ["n", 6, "m + 1", 5], padding=[1, 1], groups=6),
    conv(["n", 3, "m + 2", 8], "conv", ["n", 8, "floordiv(m, 2) + 1", 4], padding=[0, 0, 1, 1], stride=[2, 2]),
    conv(["n", 6, "m + 1", 5], "depth", ["n", 6, "m + 2", 4], padding=[2, 0, 1, 1], groups=6),
    conv(["n", 4, "m + 1", 5], "grouped", ["n", 4, "m + 1", 3], groups=2),
    conv(["n", 2, "m + 3", 3, 4], "conv3", ["n", 2, "m + 1", 3, 3]),
    conv(
        ["n", 3, "m + 1", 4],
        "up",
        ["n", 4, "2*m + 2", 8],
        transposed=True,
        stride=[2, 2],
        padding=[1, 1],
        output_padding=[1, 1],
    ),
    conv(["n", 3, "m + 1", 4], "side by side", ["n", 5, "2*m + 2", 8], transposed=True, stride=[2, 2]),
    conv(["n", 6, "m + 1"], "frames", ["n", 2, "20*m + 40"], transposed=True, stride=[20]),
    conv(
        ["n", 6, "m + 1"],
        "frames",
        ["n", 2, "8*m + 35"],
        transposed=True,
        stride=[8],
        padding=[3],
        output_padding=[1],
        constant=False,
    ),
    conv(["n", 6, "m + 1"], "frames", ["n", 2, "4*m + 38"], dtype="f64", transposed=True, stride=[4], padding=[1], constant=False),
]


def pool(x: Sequence[object], out: Sequence[object], how: str, window: list[int], dtype: str = "f32", **given: Any) -> Part:
    n = len(window)
    attrs = {
        "how": how,
        "window": window,
        "stride": window,
        "padding": [0] * n,
        "dilation": [1] * n,
        "count_pad": False,
        "divisor": 0,
        **given,
    }
    return Part(
        [(t(dtype, *x), anything if how == "max" else plain)],
        lambda v: build(compute.Pool, [v], attrs, results=[t(dtype, *out)]).results,
        tol=ANY_ZERO if how == "max" else SUMS,
        atol=1e-5,
        label=f"pool {how} {dtype} {x} {window} {given}",
    )


def adaptive(x: Sequence[object], out: Sequence[object], how: str, dtype: str = "f32") -> Part:
    n = len(x) - 2
    return Part(
        [(t(dtype, *x), plain)],
        lambda v: build(compute.AdaptivePool, [v], {"how": how, "spatial": n}, results=[t(dtype, *out)]).results,
        tol=SUMS,
        atol=1e-5,
        label=f"adaptive {how} {x} {out}",
    )


POOL = [
    *(pool(["n", 2, "2*m + 2", 6], ["n", 2, "m + 1", 3], "max", [2, 2], d) for d in FLOATS),
    *(pool(["n", 2, "2*m + 2", 6], ["n", 2, "m + 1", 3], "max", [2, 2], d) for d in ("i8", "ui8", "i16", "i32", "i64")),
    pool(["n", 2, "m + 1"], ["n", 2, "m + 1"], "max", [3], "ui8", stride=[1], padding=[1]),
    *(pool(["n", 2, "2*m + 2", 6], ["n", 2, "m + 1", 3], "avg", [2, 2], d) for d in FLOATS),
    pool(["n", 2, "m + 1"], ["n", 2, "m + 1"], "max", [3], stride=[1], padding=[1]),
    pool(["n", 2, "m + 1", 5], ["n", 2, "m + 1", 3], "avg", [3, 3], stride=[1, 2], padding=[1, 1], count_pad=True),
    pool(["n", 2, "m + 1", 5], ["n", 2, "m + 1", 3], "avg", [3, 3], stride=[1, 2], padding=[1, 1]),
    pool(["n", 2, 4, "m + 2", 3], ["n", 2, 2, "m + 1", 1], "max", [2, 2, 3], stride=[2, 1, 3]),
]
ADAPTIVE = [
    adaptive(["n", 2, "m + 1", 5], ["n", 2, 3, 4], "avg"),
    adaptive(["n", 2, "m + 1", 5], ["n", 2, 1, 1], "avg", "f16"),
    adaptive(["n", 2, "m + 1", 5], ["n", 2, 3, 2], "max"),
    adaptive(["n", 2, "m + 1"], ["n", 2, "m + 1"], "avg", "f64"),
]


# ---------------------------------------------------------------------------------------------------- control
def item(dtype: str, symbol: str) -> Part:
    """A number of the data becomes a size (or, for floats, a value)."""

    def body(x: Any) -> list[Any]:
        build(control.Item, [x], {"symbol": symbol})
        shape = [3] if dtype in ("f32", "f64") else [symbol]
        return build(mv.Full, [], {"value": symbol}, results=[t("f64" if shape == [3] else "i64", *shape)]).results

    def eager(x: torch.Tensor) -> list[torch.Tensor]:
        n = x.item()
        return [torch.full([3], n, dtype=torch.float64) if isinstance(n, float) else torch.full([int(n)], int(n))]

    return Part(
        [(t(dtype), plain if dtype in ("f32", "f64") else within(0, 1) if dtype == "i1" else within(0, 99))],
        body,
        eager,
        label=f"item {dtype}",
    )


def nonzero(dtype: str, shape: Sequence[object], symbol: str) -> Part:
    """Positions, and arithmetic on them."""

    def body(x: Any) -> list[Any]:
        y = build(control.Nonzero, [x], {"symbol": symbol}, results=[t("i64", symbol, len(shape))]).results[0]
        return [y, build(ew.Add, [y, y]).results[0], reduce(y, "sum", [0])]

    def eager(x: torch.Tensor) -> list[torch.Tensor]:
        y = x.nonzero()
        return [y, y + y, y.sum(0)]

    return Part(
        [
            (
                t(dtype, *shape),
                within(-1, 1) if dtype in INTS and dtype != "ui8" else anything if dtype in FLOATS else plain,
            )
        ],
        body,
        eager,
        label=f"nonzero {dtype} {shape}",
    )


def branch(other: Callable[[Any], Any]) -> Part:
    """Either branch, with different work, one of them a plain view of what is outside."""

    def body(p: Any, x: Any) -> list[Any]:
        ty = from_mlir(x)
        op = build(control.Cond, [p], results=[ty, ty.with_shape(["n"])], regions=2)
        for region, f in zip(op.operation.regions, (lambda v: build(ew.Exp, [v]).results[0], other), strict=True):
            with ir.InsertionPoint(ir.Block.create_at_start(region, [])):
                y = f(x)
                build(control.Yield, [y, reduce(y, "max", [1])])
        first, second = op.results
        return [first, build(ew.Neg, [second]).results[0]]

    return Part([(t("i1"), plain), (t("f32", "n", "m"), plain)], body, tol={"f32": 1e-6}, label="cond")


def repeated(soft: bool = False) -> Part:
    """x is doubled (or goes through a softmax) and counted until the count is reached."""

    def body(count: Any, x: Any) -> list[Any]:
        start = build(mv.Full, [], {"value": "0"}, results=[t("i64")]).results[0]
        op = build(control.While, [start, x], results=[t("i64"), from_mlir(x)], regions=2)
        blocks = [ir.Block.create_at_start(r, [start.type, x.type]) for r in op.operation.regions]
        with ir.InsertionPoint(blocks[0]):
            build(control.Yield, [build(ew.Lt, [blocks[0].arguments[0], count]).results[0]])
        with ir.InsertionPoint(blocks[1]):
            i, y = blocks[1].arguments
            one = build(mv.Full, [], {"value": "1"}, results=[t("i64")]).results[0]
            new = softmax("f32", ["n", "m"], 1).body(y)[0] if soft else build(ew.Add, [y, y]).results[0]
            build(control.Yield, [build(ew.Add, [i, one]).results[0], new])
        return list(op.results)

    def eager(k: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
        for _ in range(int(k)):
            x = x.softmax(1) if soft else x + x
        return [k.clamp(min=0), x]

    args = [(t("i64"), within(-1, 5)), (t("f32", "n", "m"), plain if soft else anything)]
    return Part(args, body, eager, tol={"f32": 1e-5} if soft else None, atol=1e-7, label="while")


def sized_branch(symbol: str) -> Part:
    """A result with as many rows as the branch that was taken gives it."""

    def body(p: Any, x: Any) -> list[Any]:
        ty = from_mlir(x).with_shape([symbol, "m"])
        op = build(control.Cond, [p], results=[ty], regions=2)
        for region, twice in zip(op.operation.regions, (True, False), strict=True):
            with ir.InsertionPoint(ir.Block.create_at_start(region, [])):
                y = build(mv.Concat, [x, x], {"dim": 0}).results[0] if twice else build(ew.Neg, [x]).results[0]
                build(control.Yield, [y])
        y = op.results[0]
        return [y, build(ew.Add, [y, y]).results[0]]

    def eager(p: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
        y = torch.cat([x, x]) if p else -x
        return [y, y + y]

    return Part([(t("i1"), plain), (t("f32", "n", "m"), anything)], body, eager, label="cond with sizes")


def asserted() -> Part:
    def body(x: Any, ok: Any) -> list[Any]:
        build(control.Assert, [], {"condition": "n <= 2000", "message": "too many rows"})
        build(control.AssertTensor, [ok], {"message": "not ok"})
        return [build(ew.Neg, [x]).results[0]]

    return Part(
        [(t("f32", "n"), anything), (t("i1"), lambda _d, s, _g: torch.ones(s, dtype=torch.bool))],
        body,
        lambda x, _: [-x],
        label="assert",
    )


COND = [sized_branch("u0"), branch(lambda x: x), branch(lambda x: build(ew.Add, [x, x]).results[0])]
CONTROL = {
    "dhlo.item": [
        item("i64", "u0"),
        item("i32", "u1"),
        item("ui8", "u2"),
        item("i1", "u3"),
        item("f32", "zuf0"),
        item("f64", "zuf1"),
    ],
    "dhlo.nonzero": [
        nonzero("i1", ["n", "m"], "u0"),
        nonzero("i64", ["m"], "u1"),
        nonzero("f32", ["n", 2, "m"], "u2"),
        nonzero("f16", ["m", "n", 1, 3], "u3"),
        nonzero("i32", ["n", "m"], "u4"),
        nonzero("i8", ["m", "n"], "u5"),
        nonzero("f64", ["n", 3, "m"], "u6"),
    ],
    "dhlo.cond": COND,
    "dhlo.yield": COND[:1],
    "dhlo.group": COND[1:],
    "dhlo.while": [repeated(), repeated(soft=True)],
    "dhlo.assert": [asserted()],
    "dhlo.assert_tensor": [asserted()],
}

CASES: dict[str, list[Part]] = {
    "dhlo.reduce": REDUCE,
    "dhlo.matmul": MATMUL,
    "dhlo.attention": ATTENTION,
    "dhlo.paged_attention": PAGED_ATTENTION,
    "dhlo.conv": CONV,
    "dhlo.pool": POOL,
    "dhlo.adaptive_pool": ADAPTIVE,
    **CONTROL,
}
