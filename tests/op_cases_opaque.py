"""Cases of ops that order, count, write by index and recur, for tests/test_ops.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dhlo.ir.dialect import build
from dhlo.ir.ops import adapters, complexes, compute, elementwise, lookup, random, sequence
from dhlo.ir.ops.movement import Full
from dhlo.ir.types import DType, TensorType, from_mlir
from tests.op_cases_elementwise import ALL, ANY_ZERO, FLOATS, INTS
from tests.programs import Draw, Part, anything, index_below, moderate, plain, powers, t, within

__all__ = ["CASES"]

NUMBERS = FLOATS + INTS
SUMS = {"f32": 2e-5, "f64": 1e-13, "f16": 1e-2, "bf16": 6e-2}


def case(
    cls: Any,
    args: Sequence[tuple[TensorType, Draw]],
    attrs: dict[str, Any],
    eager: Callable[..., Sequence[torch.Tensor]] | None = None,
    results: Sequence[TensorType] | None = None,
    **more: Any,
) -> Part:
    return Part(
        args,
        lambda *v: build(cls, v, attrs, results=results).results,
        eager,
        label=f"{cls.OPERATION_NAME} {[str(ty) for ty, _ in args]} {attrs}",
        **more,
    )


def repeated(d: DType, shape: list[int], g: torch.Generator) -> torch.Tensor:
    """Few different values, so that many are equal, and some NaN."""
    x = torch.randint(0, 5, shape, generator=g).to(d.torch)
    return torch.where(torch.rand(shape, generator=g) < 0.1, torch.full_like(x, float("nan")), x) if d.is_float else x


ARGREDUCE = [
    *(
        case(compute.ArgReduce, [(t(d, "n", "m + 1"), repeated if k % 2 else anything)], {"how": how, "dim": 1})
        for k, d in enumerate(NUMBERS)
        for how in ("max", "min")
    ),
    case(compute.ArgReduce, [(t("f32", 7, "m"), repeated)], {"how": "max", "dim": 0}),
    case(compute.ArgReduce, [(t("f32", "n", 3, "m"), plain)], {"how": "min", "dim": 1}, lambda x: [x.argmin(1)]),
]


def _scan_draw(d: str, how: str) -> Draw:
    if how == "prod" and d in FLOATS:
        return powers
    return anything if how in ("max", "min") or d not in FLOATS else within(0.5, 1.5)


SCAN = [
    *(
        case(
            compute.Scan,
            [(t(d, "n", "m"), _scan_draw(d, how))],
            {"how": how, "dim": k % 2},
            tol={**SUMS, "f16": 2e-2, "bf16": 0.3} if how == "sum" else ANY_ZERO,
        )
        for k, d in enumerate(NUMBERS)
        for how in ("sum", "prod", "max", "min")
        if not (d in ("f16", "bf16") and how == "sum")
    ),
    case(
        compute.Scan,
        [(t("f32", "n", 3, "m"), within(0, 1))],
        {"how": "sum", "dim": 1},
        lambda x: [x.cumsum(1)],
        tol=SUMS,
    ),
    case(compute.Scan, [(t("bf16", "n", 3, "m"), within(0, 1))], {"how": "sum", "dim": 1}, tol=SUMS),
    *(
        case(compute.Scan, [(t(d, "n", "m"), within(-50, 50))], {"how": "logsumexp", "dim": k % 2}, tol=SUMS)
        for k, d in enumerate(("f32", "f64", "f32", "bf16"))
    ),
]
SORT = [
    *(
        case(lookup.Sort, [(t(d, "n", "m"), repeated if k % 2 else anything)], {"dim": 1, "descending": bool(k % 3)})
        for k, d in enumerate(ALL)
    ),
    case(lookup.Sort, [(t("f32", "n", 3, "m"), repeated)], {"dim": 0, "descending": False}),
]
LEXSORT = [
    *(
        case(lookup.LexSort, [(t(d, "n", "m"), plain if d == "i1" else repeated if k % 2 else within(0, 3))], {})
        for k, d in enumerate(ALL)
    ),
    case(lookup.LexSort, [(t("i64", "n", 2), within(0, 3))], {}),
]
TOPK = [
    *(
        case(
            lookup.TopK,
            [(t(d, "n", "m + 3"), repeated if k % 2 else anything)],
            {"dim": 1, "largest": bool(k % 3)},
            results=[t(d, "n", 3), t("i64", "n", 3)],
        )
        for k, d in enumerate(NUMBERS)
    ),
    case(
        lookup.TopK,
        [(t("f32", "n + 1", "m"), repeated)],
        {"dim": 0, "largest": True},
        results=[t("f32", 1, "m"), t("i64", 1, "m")],
    ),
    case(lookup.TopK, [(t("f32", "n"), plain)], {"dim": 0, "largest": False}, results=[t("f32", "n"), t("i64", "n")]),
]
ROWS = index_below("7")


def _unique_rows(d: DType, shape: list[int], g: torch.Generator) -> torch.Tensor:
    return torch.randperm(7, generator=g)[: shape[0]]


SCATTER = [
    *(
        case(
            lookup.Scatter,
            [(t(d, 7, "m"), plain), (t("i64", 5), _unique_rows), (t(d, 5, "m"), plain)],
            {"dims": [0], "at": 0, "how": "set", "wrap": True},
        )
        for d in ALL
    ),
    *(
        case(
            lookup.Scatter,
            [
                (t(d, 7, "m"), powers if how == "mul" and d in FLOATS else plain),
                (t("i64", "n"), ROWS),
                (
                    t(d, "n", "m"),
                    powers if how == "mul" and d in FLOATS else moderate if how in ("max", "min") else plain,
                ),
            ],
            {"dims": [0], "at": 0, "how": how, "wrap": True},
            tol=SUMS,
            atol=0.3 if d in ("f16", "bf16") else 1e-4,
        )
        for d in ("f32", "f64", "i64", "i32", "ui8")
        for how in ("add", "mul", "max", "min")
    ),
    case(
        lookup.Scatter,
        [(t("f32", "n", 7), plain), (t("i64", "m"), ROWS), (t("f32", "n", "m"), plain)],
        {"dims": [1], "at": 1, "how": "add", "wrap": True},
        lambda x, i, s: [x.index_add(1, i % 7, s)],
        tol=SUMS,
        atol=1e-4,
    ),
    case(
        lookup.Scatter,
        [(t("f32", 7, "n", 7), plain), (t("i64", "m"), ROWS), (t("i64", "m"), ROWS), (t("f32", "m", "n"), plain)],
        {"dims": [0, 2], "at": 0, "how": "add", "wrap": True},
        tol=SUMS,
        atol=1e-4,
    ),
]


def _ascending(d: DType, shape: list[int], g: torch.Generator) -> torch.Tensor:
    return plain(d, shape, g).sort(-1).values


SEARCHSORTED = [
    *(
        case(
            lookup.SearchSorted,
            [(t(d, "m"), _ascending), (t(d, "n", 3), plain)],
            {"right": bool(k % 2)},
            lambda e, x, r=bool(k % 2): [torch.searchsorted(e, x, right=r)],
        )
        for k, d in enumerate(["f32", "f64", "i64", "i32", "i16", "i8", "ui8"])
    ),
    case(lookup.SearchSorted, [(t("f32", "n", "m"), _ascending), (t("f32", "n", 5), plain)], {"right": False}),
]
HISTOGRAM = [
    case(lookup.Histogram, [(t("f32", "n + 1", "m"), plain)], {"bins": 4, "low": -1.0, "high": 1.0}),
    case(lookup.Histogram, [(t("f64", "n + 1"), plain)], {"bins": 7, "low": 0.0, "high": 0.0}),
]
UNIQUE = [
    case(
        lookup.Unique,
        [(t(d, "n", "m"), within(0, 9) if d != "i1" else plain)],
        {"symbol": f"u{k}"},
        results=[t(d, f"u{k}"), t("i64", "n", "m"), t("i64", f"u{k}")],
    )
    for k, d in enumerate(["i64", "i32", "ui8", "i1"])
]


def _offsets(d: DType, shape: list[int], g: torch.Generator) -> torch.Tensor:
    return torch.tensor([0, 1, 1]).to(d.torch)


GROUPED = [
    case(
        sequence.GroupedMatmul,
        [(t(d, "n + 1", 4), within(-1, 1)), (t(d, 3, 4, 5), within(-1, 1)), (t(i, 3), _offsets)],
        {},
        tol={"f32": 1e-5, "f64": 1e-13},
        atol=1e-6,
    )
    for d, i in (("f32", "i64"), ("f64", "i32"))
]


def _runs(d: DType, shape: list[int], g: torch.Generator) -> torch.Tensor:
    """Adapters of rows, runs of them alike."""
    return torch.randint(-1, 3, [-(-shape[0] // 5)], generator=g).repeat_interleave(5)[: shape[0]].to(d.torch)


def _adapted(cls: Any, dtype: str, k: int, columns: list[int], rank: int, lead: Sequence[int] = ()) -> Part:
    """Products with adapters, or what they add to rows that have one."""
    at, end = [], 3
    for n in columns:
        at.append(end)
        end += rank * (k + n)
    x = t(dtype, *lead, "4 * n + 3", k)
    y = t("f32" if dtype == "f16" else dtype, *lead, "4 * n + 3", sum(columns))
    attrs = {"at": at, "columns": columns, "rank": rank}

    def body(*v: Any) -> list[Any]:
        if cls is adapters.Adapt:
            return [build(adapters.Adapt, [*v[3:], *v[:3]], attrs).results[0]]
        none = build(Full, [], {"value": "0"}, results=[from_mlir(v[2])]).results[0]
        chosen = build(elementwise.Ge, [v[2], none]).results[0]
        return [build(adapters.ChosenRows, [build(adapters.LowRank, v, attrs).results[0], chosen]).results[0]]

    args = [(x, within(-1, 1)), (t(dtype, 3, end + 2), within(-1, 1)), (t("i32", "4 * n + 3"), _runs)]
    args += [(y, within(-1, 1))] if cls is adapters.Adapt else []
    tol = {"f32": 1e-4, "bf16": 4e-2, "f16": 1e-2}
    return Part(args, body, tol=tol, atol=tol[dtype], label=f"{cls.OPERATION_NAME} {dtype} {k} {columns} {rank} {list(lead)}")


ADAPTED = [
    _adapted(cls, *given)
    for cls in (adapters.Adapt, adapters.LowRank)
    for given in (
        ("f32", 37, [33, 5], 16, (1,)),
        ("f32", 6, [70], 4),
        ("bf16", 19, [16, 33, 2], 48),
        ("f16", 11, [20], 8),
    )
]


def _offsets(d: DType, shape: list[int], g: torch.Generator) -> torch.Tensor:
    """Where segments of 40 rows begin and end; some are empty."""
    return torch.randint(0, 41, shape, generator=g).sort(-1).values


SEGMENTS = [
    *(
        case(
            lookup.SegmentReduce,
            [(t(d, 40, *row), powers if how == "prod" and d in FLOATS else plain), (t("i64", "m + 1"), _offsets)],
            {"how": how},
            tol=SUMS,
            atol=0.3 if d in ("f16", "bf16") else 1e-4,
        )
        for d in (*FLOATS, "i64", "i32", "ui8", "i1")
        for how in ("sum", "prod", "max", "min")
        if d != "i1" or how in ("max", "min")
        for row in (["n"], [])
    ),
    *(
        case(
            lookup.SegmentReduce,
            [(t("f32", 40, *row), plain), (t("i64", "m + 1"), _offsets)],
            {"how": "sum"},
            tol=SUMS,
            atol=1e-4,
        )
        for row in ([15], [16], [17], [128], [129], [3, "n"], [5, 7], [1])
    ),
    case(
        lookup.SegmentReduce,
        [(t("f32", "m", 40, "n"), plain), (t("i64", "m", 5), _offsets)],
        {"how": "max"},
    ),
]


UPDATE_SLICE = [
    case(lookup.UpdateSlice, [(t(d, *x), plain), (t(d, *src), plain)], {"starts": starts})
    for d, x, src, starts in (
        ("f32", ["n + 2", "m"], ["n", "m"], ["1", "0"]),
        ("f32", ["n", "m + 3"], ["n", "m"], ["0", "2"]),
        ("i64", ["n + 1", 3, "m + 1"], ["n", 1, "m"], ["0", "2", "1"]),
        ("i1", ["n", "m"], ["n", "m"], ["0", "0"]),
        ("bf16", ["n + m"], ["n"], ["m"]),
        ("f64", [3, "m", "n + 1", 4], [1, "m", "n", 4], ["2", "0", "1", "0"]),
        ("f32", [], [], []),
    )
]
RANDOM_BITS = [
    Part(
        [(t("i64", 2), within(-(1 << 62), 1 << 62)), (t("f32", "n", "m"), plain)],
        lambda key, _, k=k, ty=ty: build(random.RandomBits, [key], {"word": k}, results=[ty]).results,
    )
    for k, ty in enumerate([t("i32", "n", "m"), t("i32", "n", 3, "m"), t("i32", "m"), t("i32")])
]
RNN = {"f32": 1e-4, "f64": 1e-11}


def _recurrent(cls: Any, gates: int, rest: list[list[Any]], attrs: dict[str, Any] | None = None) -> list[Part]:
    """Cases with 3 hidden units; `rest` are the shapes of the operands after the gates."""
    return [
        case(
            cls,
            [(t(d, *shape), within(-1, 1)) for shape in (["n", "m", 3 * gates], *rest)],
            {**(attrs or {}), "reverse": reverse},
            tol=RNN,
            atol=1e-5,
        )
        for d in ("f32", "f64")
        for reverse in (False, True)
    ]


FFT = [
    case(
        sequence.Fft,
        [(t(d, *shape), within(-1, 1))] * 2,
        {"dims": dims, "inverse": inverse},
        tol={"f32": 1e-4, "f64": 1e-11},
        atol=1e-3,
    )
    for d, shape, dims, inverse in (
        ("f32", ["n", 8], [1], False),
        ("f64", ["n", "m + 1"], [1], True),
        ("f32", [4, "m + 1", 6], [1, 2], False),
    )
]

RFFT = [
    case(
        sequence.Rfft,
        [(t(d, *shape), within(-1, 1))],
        {"dim": dim},
        tol={"f32": 1e-4, "f64": 1e-11},
        atol=1e-3,
    )
    for d, shape, dim in (("f32", ["n", "m"], 1), ("f64", ["m", "n"], 0), ("f32", [3, 512], 1))
]


IRFFT = [
    case(
        sequence.Irfft,
        [(t(d, *half), within(-1, 1))] * 2,
        {"dim": dim},
        results=[t(d, *whole)],
        tol={"f32": 1e-4, "f64": 1e-11},
        atol=1e-3,
    )
    for d, half, whole, dim in (
        ("f32", ["n", "m + 1"], ["n", "2*m"], 1),
        ("f64", ["m + 1", "n"], ["2*m + 1", "n"], 0),
        ("f32", [3, 257], [3, 512], 1),
    )
]


def _through_complex(d: str) -> Part:
    """Two tensors as one complex one, and apart again."""

    def body(re: Any, im: Any) -> list[Any]:
        z = build(complexes.Interleave, [re, im]).results[0]
        return [build(cls, [z]).results[0] for cls in (complexes.Imag, complexes.Real)]

    return Part([(t(d, "n", "m"), anything)] * 2, body, lambda re, im: [im, re], label=f"{d} through complex")


COMPLEX = [_through_complex("f32"), _through_complex("f64")]
CASES: dict[str, list[Part]] = {
    **{f"dhlo.{name}": COMPLEX for name in ("interleave", "real", "imag")},
    "dhlo.argreduce": ARGREDUCE,
    "dhlo.scan": SCAN,
    "dhlo.sort": SORT,
    "dhlo.lexsort": LEXSORT,
    "dhlo.topk": TOPK,
    "dhlo.scatter": SCATTER,
    "dhlo.searchsorted": SEARCHSORTED,
    "dhlo.segment_reduce": SEGMENTS,
    "dhlo.histogram": HISTOGRAM,
    "dhlo.unique": UNIQUE,
    "dhlo.update_slice": UPDATE_SLICE,
    "dhlo.random_bits": RANDOM_BITS,
    "dhlo.grouped_matmul": GROUPED,
    **{f"dhlo.{name}": ADAPTED for name in ("adapt", "low_rank", "chosen_rows")},
    "dhlo.lstm": _recurrent(sequence.Lstm, 4, [[12, 3], ["m", 3], ["m", 3]])
    + _recurrent(sequence.Lstm, 4, [[12, 2], ["m", 2], ["m", 3], [2, 3]]),
    "dhlo.rnn": _recurrent(sequence.Rnn, 1, [[3, 3], ["m", 3]], {"activation": "tanh"})
    + _recurrent(sequence.Rnn, 1, [[3, 3], ["m", 3]], {"activation": "relu"}),
    "dhlo.gru": _recurrent(sequence.Gru, 3, [[9, 3], [9], ["m", 3]]),
    "dhlo.fft": FFT,
    "dhlo.irfft": IRFFT,
    "dhlo.rfft": RFFT,
}
