"""Cases of views, joins, constants and lookups for tests/test_ops.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dhlo.ir.dialect import build
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops import movement as mv
from dhlo.ir.types import DTYPES, from_mlir
from tests.op_cases_elementwise import ALL, after
from tests.programs import Draw, Part, anything, index_below, t

__all__ = ["CASES", "WEIGHTS"]

WEIGHTS = {
    "w": torch.arange(15, dtype=torch.float32).reshape(3, 5),
    "h": torch.arange(6).reshape(2, 3).to(torch.float16),
}
Eager = Callable[..., Sequence[torch.Tensor]]


def one(
    cls: Any,
    shape: Sequence[object],
    attrs: dict[str, Any] | None,
    out: Sequence[object] | None,
    eager: Callable[[torch.Tensor], torch.Tensor],
    dtypes: Sequence[str] = ("f32",),
    extra: Sequence[Sequence[object]] = (),
) -> list[Part]:
    """A view of one tensor in some dtypes. `extra` are shapes of arguments that only make the symbols known."""
    parts = []
    for d in dtypes:
        args = [(t(d, *shape), anything), *((t("f32", *s), anything) for s in extra)]

        def body(x: Any, *_: Any) -> list[Any]:
            results = None if out is None else [from_mlir(x).with_shape(out)]
            return [build(cls, [x], attrs, results=results).results[0]]

        parts.append(Part(args, body, lambda x, *_: [eager(x)], label=f"{cls.OPERATION_NAME} {d} {list(shape)} {attrs}"))
    return parts


RESHAPE = [
    *one(mv.Reshape, ["n", "m"], None, ["n*m"], lambda x: x.reshape(-1), ALL),
    *one(mv.Reshape, ["n", "m"], None, ["m", "n"], lambda x: x.reshape(x.shape[1], x.shape[0])),
    *one(mv.Reshape, ["n*m"], None, ["n", "m"], lambda x: x, (), [["n", "m"]]),
    *one(mv.Reshape, ["n", 6], None, ["n", 2, 3], lambda x: x.reshape(-1, 2, 3)),
    *one(mv.Reshape, ["n", 2, 3], None, ["n*2", 3], lambda x: x.reshape(-1, 3)),
    *one(mv.Reshape, ["n", "m", 4], None, [4, "n*m"], lambda x: x.reshape(4, x.shape[0] * x.shape[1])),
    *one(mv.Reshape, [1, "n", 1], None, ["n", 1, 1, 1], lambda x: x.reshape(-1, 1, 1, 1)),
    *one(mv.Reshape, [1], None, [], lambda x: x.reshape(())),
    *one(mv.Reshape, [], None, [1, 1], lambda x: x.reshape(1, 1)),
]
TRANSPOSE = [
    *one(mv.Transpose, ["n", "m"], {"perm": [1, 0]}, None, lambda x: x.t(), ALL),
    *one(mv.Transpose, ["n", 3, "m"], {"perm": [2, 0, 1]}, None, lambda x: x.permute(2, 0, 1)),
    *one(mv.Transpose, ["n", 3, "m"], {"perm": [1, 0, 2]}, None, lambda x: x.permute(1, 0, 2)),
    *one(mv.Transpose, ["n", 2, 1, "m"], {"perm": [3, 1, 0, 2]}, None, lambda x: x.permute(3, 1, 0, 2)),
    *one(mv.Transpose, [], {"perm": []}, None, lambda x: x.clone()),
]
BROADCAST = [
    *one(mv.Broadcast, ["n", 1], {"dims": [0, 1]}, ["n", 7], lambda x: x.expand(-1, 7), ALL),
    *one(mv.Broadcast, ["m"], {"dims": [1]}, ["n", "m"], lambda x: x, (), [["n", "m"]]),
    *one(mv.Broadcast, ["m"], {"dims": [2]}, [2, 3, "m"], lambda x: x.expand(2, 3, -1)),
    *one(mv.Broadcast, ["m"], {"dims": [0]}, ["m", 3, 5], lambda x: x[:, None, None].expand(-1, 3, 5)),
    *one(mv.Broadcast, ["n", 1, "m"], {"dims": [0, 1, 3]}, ["n", 4, 2, "m"], lambda x: x[:, :, None].expand(-1, 4, 2, -1)),
    *one(mv.Broadcast, [], {"dims": []}, [2, 19], lambda x: x.expand(2, 19)),
]
SLICE = [
    *one(mv.Slice, ["n + 3", "m + 2"], {"starts": ["3", "1"], "steps": [1, 1]}, ["n", "m"], lambda x: x[3:, 1:-1], ALL),
    *one(mv.Slice, ["n", "2*m + 1"], {"starts": ["0", "1"], "steps": [1, 2]}, ["n", "m"], lambda x: x[:, 1::2]),
    *one(mv.Slice, ["3*n", "m"], {"starts": ["2", "0"], "steps": [3, 1]}, ["n", "m"], lambda x: x[2::3]),
    *one(
        mv.Slice,
        ["n", "m"],
        {"starts": ["n - floordiv(n, 2)", "0"], "steps": [1, 1]},
        ["floordiv(n, 2)", "m"],
        lambda x: x[x.shape[0] - x.shape[0] // 2 :],
    ),
    *one(mv.Slice, ["n", "m"], {"starts": ["0", "0"], "steps": [1, 3]}, ["n", "floordiv(m + 2, 3)"], lambda x: x[:, ::3]),
    *one(mv.Slice, ["n", "m"], {"starts": ["n", "m"], "steps": [1, 1]}, [0, 0], lambda x: x[x.shape[0] :, x.shape[1] :]),
]
REVERSE = [
    *one(mv.Reverse, ["n", "m"], {"dims": [1]}, None, lambda x: x.flip(1), ALL),
    *one(mv.Reverse, ["n", "m"], {"dims": [0]}, None, lambda x: x.flip(0)),
    *one(mv.Reverse, [2, "n", "m"], {"dims": [0, 2]}, None, lambda x: x.flip(0, 2)),
]
PAD = [
    *one(mv.Pad, ["n", "m"], {"low": ["2", "1"], "value": 1.0}, ["n + 2", "m + 4"], lambda x: _pad(x, [1, 3, 2, 0]), ALL),
    *one(
        mv.Pad,
        ["n", "m"],
        {"low": ["0", "m"], "value": float("-inf")},
        ["n", "3*m"],
        lambda x: _pad(x, [x.shape[1], x.shape[1], 0, 0], -float("inf")),
    ),
    *one(mv.Pad, ["n", "m"], {"low": ["0", "0"], "value": 2.5}, ["n + 1", "m"], lambda x: _pad(x, [0, 0, 0, 1], 2.5)),
    *one(mv.Pad, ["n", "m"], {"low": ["0", "0"], "value": 0.0}, ["n", "m"], lambda x: x),
    *one(
        mv.Pad,
        ["n", "m"],
        {"low": ["3", "17"], "value": 0.0},
        ["n + 3", "m + 17"],
        lambda x: _pad(x, [17, 0, 3, 0], 0.0),
    ),
]


def padded_lookup() -> Part:
    """A row's looked-up value, padded along the row: no lane may want it, and then its index isn't read either."""

    def body(x: Any, index: Any, like: Any) -> list[Any]:
        taken = build(mv.Take, [x, index], {"dims": [0], "at": 0, "wrap": True}).results[0]
        wide = build(mv.Broadcast, [taken], {"dims": [0]}, results=[from_mlir(like)]).results[0]
        out = from_mlir(like).with_shape(["n + 1", "m + 2"])
        return [build(mv.Pad, [wide], {"low": ["1", "1"], "value": 0.5}, results=[out]).results[0]]

    args = [(t("f32", 7), anything), (t("i64", "n"), index_below("7")), (t("f32", "n", "m"), anything)]
    return Part(args, body, label="padded lookup")


def _pad(x: torch.Tensor, sides: list[int], value: float = 1.0) -> torch.Tensor:
    y = torch.full([x.shape[0] + sides[2] + sides[3], x.shape[1] + sides[0] + sides[1]], value).to(x.dtype)
    y[sides[2] : sides[2] + x.shape[0], sides[0] : sides[0] + x.shape[1]] = x
    return y


def join(dim: int, shapes: Sequence[Sequence[object]], dtype: str = "f32") -> Part:
    return Part(
        [(t(dtype, *s), anything) for s in shapes],
        lambda *v: build(mv.Concat, v, {"dim": dim}).results,
        lambda *x: [torch.cat(x, dim)],
        label=f"concat {dtype} {shapes}",
    )


def computed_join() -> Part:
    """Pieces that are computed, not loaded, and a joined tensor that goes on being computed with."""

    def body(a: Any, b: Any, index: Any) -> list[Any]:
        x = build(ew.Add, [a, a]).results[0]
        wide = build(
            mv.Slice,
            [build(mv.Concat, [x, b], {"dim": 1}).results[0]],
            {"starts": ["0", "m"], "steps": [1, 1]},
            results=[from_mlir(b)],
        ).results[0]
        return after(build(ew.Mul, [wide, b]).results[0], index)

    return Part(
        [(t("f32", "n", "m"), anything), (t("f32", "n", "m"), anything), (t("i32", "n"), index_below("d0"))],
        body,
        label="computed",
    )


CONCAT = [
    *(join(1, [["n", "m"], ["n", "m + 1"]], d) for d in ALL),
    join(0, [["n", "m"], ["n", "m"], ["2*n", "m"]]),
    join(1, [["n", "m"], ["n", 3], ["n", 3], ["n", "m"]]),
    join(0, [["n"], ["m"]]),
    join(1, [["n", "m", 2], ["n", 1, 2]]),
    join(2, [[2, "n", "m"], [2, "n", 0], [2, "n", 5]]),
    computed_join(),
]


def source(
    cls: Any,
    dtype: str,
    shape: Sequence[object],
    attrs: dict[str, Any],
    eager: Callable[[int, int], torch.Tensor] | None,
) -> Part:
    """A value that reads no tensor; an argument makes n and m known."""
    want = None if eager is None else lambda x: [eager(*x.shape)]
    return Part(
        [(t("f32", "n", "m"), anything)],
        lambda _: build(cls, [], attrs, results=[t(dtype, *shape)]).results,
        want,
        label=f"{dtype} {attrs}",
    )


def full(dtype: str, text: str, value: Callable[[int, int], Any]) -> Part:
    return source(
        mv.Full,
        dtype,
        ["n", 1, "m"],
        {"value": text},
        lambda n, m: torch.full([n, 1, m], value(n, m), dtype=DTYPES[dtype].torch),
    )


FULL = [
    *(full(d, "3", lambda n, m: 3) for d in ALL if d != "i1"),
    full("i1", "true", lambda n, m: True),
    *(full(d, v, lambda n, m, v=v: float(v)) for d in ("f32", "f64", "f16", "bf16") for v in ("nan", "-inf", "0.1", "-0.0")),
    full("i64", str(-(1 << 63)), lambda n, m: -(1 << 63)),
    full("i8", "-128", lambda n, m: -128),
    full("ui8", "255", lambda n, m: 255),
    full("i64", "n*m + 1", lambda n, m: n * m + 1),
    full("f32", "floordiv(n, 2)", lambda n, m: n // 2),
    full("f64", "truediv(n, 3)", lambda n, m: n / 3),
    full("i1", "Eq(n, 1)", lambda n, m: n == 1),
    source(mv.Full, "f32", [], {"value": "2.5"}, lambda n, m: torch.tensor(2.5)),
]
IOTA = [
    *(
        source(
            mv.Iota,
            d,
            ["n", "m"],
            {"dim": 1, "start": "0", "step": "1"},
            lambda n, m, d=d: torch.arange(m).to(DTYPES[d].torch).expand(n, m),
        )
        for d in ALL
        if d not in ("i1",)
    ),
    source(
        mv.Iota,
        "i64",
        ["n", "m"],
        {"dim": 0, "start": "n", "step": "-2"},
        lambda n, m: torch.arange(n, -n, -2)[:, None].expand(n, m),
    ),
    source(
        mv.Iota,
        "f32",
        ["m"],
        {"dim": 0, "start": "0.1", "step": "0.3"},
        lambda n, m: (torch.arange(m, dtype=torch.float64) * 0.3 + 0.1).float(),
    ),
    source(
        mv.Iota,
        "i32",
        ["m", 3],
        {"dim": 0, "start": "m - 1", "step": "n"},
        lambda n, m: (torch.arange(m) * n + m - 1).int()[:, None].expand(m, 3),
    ),
]


def take(
    dtype: str,
    shape: Sequence[object],
    index: Sequence[tuple[str, Sequence[object], Draw]],
    dims: list[int],
    at: int,
    eager: Eager,
) -> Part:
    args = [(t(dtype, *shape), anything), *((t(d, *s), draw) for d, s, draw in index)]
    return Part(
        args,
        lambda x, *i: build(mv.Take, [x, *i], {"dims": dims, "at": at, "wrap": True}).results,
        eager,
        label=f"take {dtype} {shape} {[i[:2] for i in index]} dims {dims} at {at}",
    )


ROWS = index_below("7")  # a static dim of 7, so that looking up in it is possible at every size
TAKE = [
    *(take(d, [7, "m"], [("i64", ["n"], ROWS)], [0], 0, lambda x, i: [x[i]]) for d in ALL),
    *(take("f32", [7, "m"], [(d, ["n"], ROWS)], [0], 0, lambda x, i: [x[i.long()]]) for d in ("i32", "i16", "i8", "ui8")),
    take("f32", [7, "m"], [("i64", ["n", 3], ROWS)], [0], 0, lambda x, i: [x[i]]),
    take("f32", ["n", 7], [("i64", ["m"], ROWS)], [1], 1, lambda x, i: [x[:, i]]),
    take("f32", ["n", 7], [("i64", ["m"], ROWS)], [1], 0, lambda x, i: [x[:, i].t()]),
    take("f32", ["n", 7, "m"], [("i64", [], ROWS)], [1], 1, lambda x, i: [x[:, i]]),
    take("f32", [7, "n", 7], [("i64", ["m"], ROWS), ("i64", ["m"], ROWS)], [0, 2], 0, lambda x, i, j: [x[i, :, j]]),
    take("f32", [7, 7, "n"], [("i64", [2, "m"], ROWS), ("i64", [2, "m"], ROWS)], [0, 1], 0, lambda x, i, j: [x[i, j]]),
    take("i64", [7], [("i64", [], ROWS)], [0], 0, lambda x, i: [x[i]]),
]


def weight(name: str) -> Part:
    w = WEIGHTS[name]
    ty = t({torch.float32: "f32", torch.float16: "f16"}[w.dtype], *w.shape)
    return Part(
        [(ty, anything)],
        lambda x: [
            build(ew.Add, [x, build(mv.Weight, [], {"name_": name}, results=[ty]).results[0]]).results[0],
            build(mv.Weight, [], {"name_": name}, results=[ty]).results[0],
        ],
        lambda x: [x + w, w],
        label=name,
    )


CASES: dict[str, list[Part]] = {
    "dhlo.reshape": RESHAPE,
    "dhlo.transpose": TRANSPOSE,
    "dhlo.broadcast": BROADCAST,
    "dhlo.slice": SLICE,
    "dhlo.reverse": REVERSE,
    "dhlo.pad": [*PAD, padded_lookup()],
    "dhlo.concat": CONCAT,
    "dhlo.full": FULL,
    "dhlo.iota": IOTA,
    "dhlo.take": TAKE,
    "dhlo.weight": [weight("w"), weight("h")],
}
