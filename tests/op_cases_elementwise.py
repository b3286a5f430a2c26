"""Cases of the elementwise ops: every dtype, special values, and a chain of views around the op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dhlo.ir.dialect import OPS, Kind, build
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops import special
from dhlo.ir.ops.movement import Broadcast, Concat, Full, Pad, Reshape, Reverse, Slice, Take, Transpose
from dhlo.ir.types import TensorType, from_mlir
from tests.programs import Draw, Part, anything, index_below, moderate, t, within

__all__ = ["CASES"]

FLOATS = ["f32", "f64", "f16", "bf16"]
INTS = ["i64", "i32", "i16", "i8", "ui8"]
ALL = [*FLOATS, *INTS, "i1"]

# Functions whose result isn't a correctly rounded operation: a few units in the last place.
TOLERANCE = {"f32": 1e-6, "f64": 2e-14, "f16": 1.0e-3, "bf16": 8e-3}

# Others that may differ from PyTorch: it rounds sqrt of vectors less well, and floor division of narrow floats at
# every step.
ANY_ZERO = dict.fromkeys(FLOATS, 0.0)
TOLERANCES: dict[type, dict[str, float]] = {
    ew.Sqrt: {"f32": 2.5e-7, "f64": 5e-16},
    ew.FloorDiv: {"f16": 2e-3, "bf16": 8e-3},
    ew.Maximum: ANY_ZERO,
    ew.Minimum: ANY_ZERO,
    ew.Digamma: {**TOLERANCE, "f32": 1e-5, "f64": 1e-12},
    ew.Lgamma: {**TOLERANCE, "f32": 1e-5, "f64": 1e-12},
    ew.ExpBelow: {**TOLERANCE, "f32": 1.5e-6},
    ew.SigmoidShort: {**TOLERANCE, "f32": 1e-5},
    ew.NormalCdf: {**TOLERANCE, "f32": 2e-4},  # far out to the left; see its test in codegen/test_vmath.py
    ew.Pow: TOLERANCE,
    ew.Atan2: TOLERANCE,
}

# Of numbers computed one by one, as far as PyTorch's own are right (see tests/codegen/test_special.py).
SLOW = {"f32": 1e-4, "f64": 1e-5, "f16": 4e-3, "bf16": 3e-2}

# Near whose zeros, or far out in whose tail, only the absolute error is small.
ROOTS = {ew.Digamma: 1e-6, ew.Lgamma: 1e-6, ew.NormalCdf: 1e-12}

DTYPES_OF: dict[type, Sequence[str]] = {
    ew.Add: ALL,
    ew.Sub: FLOATS + INTS,
    ew.Mul: ALL,
    ew.Div: FLOATS,
    ew.FloorDiv: FLOATS + INTS,
    ew.TruncDiv: FLOATS + INTS,
    ew.Remainder: FLOATS + INTS,
    ew.Fmod: FLOATS + INTS,
    ew.Pow: FLOATS + INTS,
    ew.Maximum: ALL,
    ew.Minimum: ALL,
    ew.Atan2: FLOATS,
    ew.Gcd: INTS,
    ew.And: INTS + ["i1"],
    ew.Or: INTS + ["i1"],
    ew.Xor: INTS + ["i1"],
    ew.ShiftLeft: INTS,
    ew.ShiftRight: INTS,
    ew.Copy: ALL,
    ew.Neg: FLOATS + INTS,
    ew.Abs: FLOATS + INTS,
    ew.Sign: ALL,
    ew.Not: INTS + ["i1"],
    ew.Eq: ALL,
    ew.Ne: ALL,
    ew.Lt: ALL,
    ew.Le: ALL,
    ew.Gt: ALL,
    ew.Ge: ALL,
    ew.Select: ALL,
}
# Values other than `anything`: (operand, dtype kind) -> draw
DRAWS: dict[tuple[type, int], Draw] = {
    (ew.NormalCdf, 0): within(-6, 9),
    (ew.ExpBelow, 0): within(-30, 0),
    (ew.ShiftLeft, 1): within(0, 70),
    (ew.ShiftRight, 1): within(0, 70),
    # PyTorch's own remainders of vectors give NaN where the quotient is huge.
    **{(cls, k): moderate for cls in (ew.Fmod, ew.Remainder) for k in (0, 1)},
}


def _slow(cls: type) -> bool:
    return issubclass(cls, special.SpecialBinary | special.SlowSpecialOp)


def _draw(cls: type, k: int) -> Draw:
    if _slow(cls):
        return (
            within(-1.5, 1.5)
            if "Polynomial" in cls.__name__ and not k
            else within(1.1, 9)
            if cls is not special.Ndtri
            else within(0, 1)
        )
    return DRAWS.get((cls, k), anything)


def _types(cls: Any, dtype: str) -> list[str]:
    """The dtypes of the operands."""
    if cls is ew.Select:
        return ["i1", dtype, dtype]
    return [dtype] * (2 if issubclass(cls, ew.Binary) else 1)


def _cases(cls: Any) -> list[Part]:
    dtypes = DTYPES_OF.get(cls, FLOATS)
    tol = TOLERANCES.get(cls, SLOW if _slow(cls) else TOLERANCE if issubclass(cls, ew.MathOp) else None)
    atol = 1e-5 if _slow(cls) else ROOTS.get(cls, 0.0)
    parts = []
    for d in dtypes:
        args = [(t(x, "n", "m"), _draw(cls, k)) for k, x in enumerate(_types(cls, d))]
        parts.append(Part(args, lambda *v: build(cls, v).results, tol=tol, atol=atol, label=d))
    args = [(t(x), _draw(cls, k)) for k, x in enumerate(_types(cls, dtypes[0]))]
    parts.append(Part(args, lambda *v: build(cls, v).results, tol=tol, atol=atol, label="rank 0"))
    parts.append(_chain(cls, dtypes[len(cls.OPERATION_NAME) % len(dtypes)], tol, atol))
    return parts


def _chain(cls: Any, dtype: str, tol: Any, atol: float) -> Part:
    """The op between views that are all computed inside its loops."""
    sources = [t("f32", "m", "n"), t("f32", "m"), t("f32", "n + 2", "2*m")]
    kinds = _types(cls, dtype)
    args = [(sources[k].with_dtype(d), _draw(cls, k)) for k, d in enumerate(kinds)] + [(t("i64", "n"), index_below("d0"))]

    def body(*values: Any) -> list[Any]:
        *xs, index = values
        shape = from_mlir(xs[0]).with_shape(["n", "m"])
        views = [
            lambda x: build(Transpose, [x], {"perm": [1, 0]}),
            lambda x: build(Broadcast, [x], {"dims": [1]}, results=[shape.with_dtype(from_mlir(x).dtype)]),
            lambda x: build(Slice, [x], {"starts": ["1", "0"], "steps": [1, 2]}, results=[shape.with_dtype(from_mlir(x).dtype)]),
        ]
        y = build(cls, [view(x).results[0] for view, x in zip(views, xs, strict=False)]).results[0]
        return after(y, index)

    return Part(args, body, tol=tol, atol=atol, label=f"{dtype} chain")


def after(y: Any, index: Any) -> list[Any]:
    """Three values that read [n, m] through reshape and pad, reverse and concat, take and reshape."""
    ty = from_mlir(y)
    flat = build(Reshape, [y], results=[ty.with_shape(["n*m"])]).results[0]
    padded = build(Pad, [flat], {"low": ["2"], "value": 1.0}, results=[ty.with_shape(["n*m + 3"])])
    back = build(Reverse, [y], {"dims": [1]}).results[0]
    joined = build(Concat, [y, back, y], {"dim": 1})
    taken = build(Take, [y, index], {"dims": [0], "at": 0, "wrap": True}).results[0]
    halves = build(
        Reshape,
        [build(Reshape, [taken], results=[ty.with_shape(["m*n"])]).results[0]],
        results=[ty.with_shape(["m", "n"])],
    )
    return [padded.results[0], joined.results[0], halves.results[0]]


def _convert() -> list[Part]:
    """Every pair of dtypes. Floats out of an integer type's range have no defined result but for ui8, which wraps."""
    parts = []
    for src in ALL:
        for dst in ALL:
            draw = anything
            if src in FLOATS and dst in INTS:
                draw = within(-1000, 1000) if dst == "ui8" else within(-120, 120)

            def body(x: Any, dst: str = dst) -> list[Any]:
                return [build(ew.Convert, [x], results=[from_mlir(x).with_dtype(dst)]).results[0]]

            def eager(x: Any, dst: str = dst) -> list[Any]:
                return [x.to(TensorType.of(dst, []).dtype.torch)]

            if src != dst:
                parts.append(Part([(t(src, "n", "m"), draw)], body, eager, label=f"{src} to {dst}"))
    return parts


def _nearest() -> list[Part]:
    """Integers and what lies halfway between two, and others."""

    def body(x: Any) -> list[Any]:
        half = build(Full, [], {"value": "0.5"}, results=[from_mlir(x)]).results[0]
        halves = build(ew.Mul, [build(ew.Round, [x]).results[0], half]).results[0]
        return [build(ew.Nearest, [y]).results[0] for y in (halves, x)]

    def eager(x: Any) -> list[Any]:
        return [y.round().int() for y in (x.round() * 0.5, x)]

    return [Part([(t("f32", "n", "m"), within(-1e6, 1e6))], body, eager, label="f32 to the nearest i32")]


_SAME_WIDTH = [
    ("f32", "i32"),
    ("i32", "f32"),
    ("f64", "i64"),
    ("i64", "f64"),
    ("bf16", "i16"),
    ("i16", "f16"),
    ("i8", "ui8"),
    ("ui8", "i8"),
    ("f16", "bf16"),
    ("f32", "f32"),
]


def _bitcast() -> list[Part]:
    parts = []
    for src, dst in _SAME_WIDTH:

        def body(x: Any, dst: str = dst) -> list[Any]:
            return [build(ew.Bitcast, [x], results=[from_mlir(x).with_dtype(dst)]).results[0]]

        def eager(x: Any, dst: str = dst) -> list[Any]:
            return [x.view(TensorType.of(dst, []).dtype.torch)]

        parts.append(Part([(t(src, "n", "m"), within(-120, 120))], body, eager, label=f"{src} as {dst}"))
    return parts


_CONVERSIONS = {ew.Convert: _convert, ew.Bitcast: _bitcast, ew.Nearest: _nearest}
CASES: dict[str, list[Part]] = {
    name: _CONVERSIONS[cls]() if cls in _CONVERSIONS else _cases(cls) for name, cls in OPS.items() if cls.kind is Kind.ELEMENTWISE
}
