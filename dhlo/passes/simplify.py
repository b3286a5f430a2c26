"""Local rewrites that hold for all sizes: views of views, identities, constants, lookups by position."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dhlo.ir.dialect import attr, build, defining, exprs
from dhlo.ir.handles import Block, Module, Value
from dhlo.ir.mlir import ir
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops.compute import Conv, Reduce, Scan
from dhlo.ir.ops.movement import Broadcast, Concat, Full, Iota, Pad, Reshape, Reverse, Slice, Take, Transpose, number
from dhlo.ir.symbols import parse
from dhlo.ir.types import DType, from_mlir

__all__ = ["is_rounded", "simplify"]


def simplify(module: Module) -> None:
    """Applies the rules to every op until nothing changes; ops that lose their last use are erased."""
    for f in module.body.operations:
        for _ in range(8):
            changed = False
            for block in f.operation.regions[0].blocks:
                changed |= _block(block)
            if not changed:
                break


def _block(block: Block) -> bool:
    changed = False
    for op in list(block.operations):
        for region in op.operation.regions:
            for inner in region.blocks:
                changed |= _block(inner)
        rule = _RULES.get(type(op))
        if rule is None:
            continue
        with ir.InsertionPoint(op.operation), op.location:
            new = rule(op)
        if new is not None:
            op.results[0].replace_all_uses_with(new)
            op.operation.erase()
            changed = True
    for op in reversed(list(block.operations)):
        if (
            getattr(op, "kind", None) is not None
            and (op.kind.pullable or op.OPERATION_NAME == "dhlo.weight")
            and not any(True for _ in op.results[0].uses)
        ):
            op.operation.erase()
    return changed


def _producer(v: Value, cls: type) -> Any:
    """The op that makes v, if it is of that class."""
    op = defining(v)
    return op if isinstance(op, cls) else None


def _reshape(op: Any) -> Any:
    x = op.operands[0]
    if from_mlir(x) == from_mlir(op.results[0]):
        return x
    inner = _producer(x, Reshape)
    if inner is not None:
        return build(Reshape, [inner.operands[0]], results=[from_mlir(op.results[0])]).results[0]
    full = _producer(x, Full)
    if full is not None:
        return build(Full, [], {"value": attr(full, "value")}, results=[from_mlir(op.results[0])]).results[0]
    return None


def _transpose(op: Any) -> Any:
    perm = attr(op, "perm")
    if perm == sorted(perm):
        return op.operands[0]
    inner = _producer(op.operands[0], Transpose)
    if inner is not None:
        first = attr(inner, "perm")
        return build(Transpose, [inner.operands[0]], {"perm": [first[p] for p in perm]}).results[0]
    return None


def _reverse(op: Any) -> Any:
    """Before a transposition, whose results then lie as they are asked for: rotations of images."""
    inner = _producer(op.operands[0], Transpose)
    if inner is None:
        return None
    perm = attr(inner, "perm")
    turned = build(Reverse, [inner.operands[0]], {"dims": [perm[d] for d in attr(op, "dims")]}).results[0]
    return build(Transpose, [turned], {"perm": perm}).results[0]


def _broadcast(op: Any) -> Any:
    x = op.operands[0]
    out = from_mlir(op.results[0])
    if from_mlir(x) == out:
        return x
    inner = _producer(x, Broadcast)
    if inner is not None:
        dims = attr(op, "dims")
        return build(Broadcast, [inner.operands[0]], {"dims": [dims[d] for d in attr(inner, "dims")]}, results=[out]).results[0]
    full = _producer(x, Full)
    if full is not None:
        return build(Full, [], {"value": attr(full, "value")}, results=[out]).results[0]
    return None


def _slice(op: Any) -> Any:
    full = _producer(op.operands[0], Full)
    if full is not None:
        return build(Full, [], {"value": attr(full, "value")}, results=[from_mlir(op.results[0])]).results[0]
    whole = all(s == 0 for s in exprs(attr(op, "starts"))) and all(s == 1 for s in attr(op, "steps"))
    return op.operands[0] if whole and from_mlir(op.operands[0]) == from_mlir(op.results[0]) else None


def _reduce(op: Any) -> Any:
    """A reduction of nothing; a sum of zeros."""
    if not attr(op, "dims"):
        return op.operands[0]
    out = from_mlir(op.results[0])
    if attr(op, "how") != "sum" or not out.dtype.is_int or _constant(op.operands[0]) != 0:
        return None
    return build(Full, [], {"value": "0"}, results=[out]).results[0]


def _scan(op: Any) -> Any:
    """Running sums of a whole number count by it."""
    out, step = from_mlir(op.results[0]), _constant(op.operands[0])
    if attr(op, "how") != "sum" or out.dtype.name not in ("i64", "i32") or not isinstance(step, int):
        return None
    how = {"dim": attr(op, "dim"), "start": str(step), "step": str(step)}
    return build(Iota, [], how, results=[out]).results[0]


def _concat(op: Any) -> Any:
    return op.operands[0] if len(op.operands) == 1 else None


def _pad(op: Any) -> Any:
    return op.operands[0] if from_mlir(op.operands[0]) == from_mlir(op.results[0]) else None


def _conv(op: Any) -> Any:
    """Zeros around the image, as many at all sizes, are the convolution's own padding."""
    x, w = op.operands
    pad = _producer(x, Pad)
    if pad is None or attr(op, "transposed") or attr(pad, "value") != 0:
        return None
    inner, outer, low = from_mlir(pad.operands[0]).shape, from_mlir(x).shape, exprs(attr(pad, "low"))
    high = [b - a - n for a, b, n in zip(inner, outer, low, strict=True)]
    if not all(n.is_Integer and n >= 0 for n in (*low, *high)) or any(low[:2]) or any(high[:2]):
        return None
    ends = [(a + int(lo), b + int(hi)) for (a, b), lo, hi in zip(op.pads, low[2:], high[2:], strict=True)]
    attrs = {n: attr(op, n) for n in ("stride", "dilation", "transposed", "output_padding", "groups")}
    before, after = [a for a, _ in ends], [b for _, b in ends]
    padding = before if before == after else before + after
    return build(Conv, [pad.operands[0], w], attrs | {"padding": padding}, results=[from_mlir(op.results[0])]).results[0]


def _constant(v: Value) -> float | int | None:
    """The number that fills v."""
    full = _producer(v, Full)
    if full is None:
        return None
    text = attr(full, "value")
    if text in ("true", "false"):
        return int(text == "true")
    return number(text)


def _neutral(op: Any) -> Any:
    """x + 0, x - 0, x * 1, x / 1, x & true, x | false (floats: x + 0 changes only the sign of -0, so it stays)."""
    a, b = op.operands
    dtype = from_mlir(a).dtype
    ca, cb = _constant(a), _constant(b)
    right, left = _NEUTRAL[type(op)](dtype)
    if right is not None and cb is not None and cb == right:
        return a
    if left is not None and ca is not None and ca == left:
        return b
    return None


def _add(op: Any) -> Any:
    """1 + tanh(x) = 2 sigmoid(2 x), as gelu's approximation is written: cheaper, and exact where the sum cancels."""
    for one, y in (tuple(op.operands), tuple(reversed(op.operands))):
        tanh, out = _producer(y, ew.Tanh), from_mlir(op.results[0])
        if tanh is None or _constant(one) != 1 or out.dtype.name not in ("f32", "f64"):
            continue
        two = build(Full, [], {"value": "2.0"}, results=[out]).results[0]
        doubled = build(ew.Mul, [tanh.operands[0], two]).results[0]
        return build(ew.Mul, [build(ew.Sigmoid, [doubled]).results[0], two]).results[0]
    return _neutral(op)


def _all_ones(dtype: Any) -> int | None:
    return 1 if dtype.is_bool else None


_NEUTRAL: dict[type, Callable[[Any], tuple[float | None, float | None]]] = {
    ew.Add: lambda d: (None, None) if d.is_float else (0, 0),
    ew.Sub: lambda d: (0, None),
    ew.Mul: lambda d: (1, 1),
    ew.Div: lambda d: (1, None),
    ew.And: lambda d: (_all_ones(d), _all_ones(d)),
    ew.Or: lambda d: (0, 0),
}


def _select(op: Any) -> Any:
    """A choice that is always the same."""
    sees = _constant(op.operands[0])
    return None if sees is None else op.operands[1 if sees else 2]


def _compare(op: Any) -> Any:
    """Comparisons of positions with constants that are the same for every size: iota >= 0, and 1 + iota == 0."""
    a, b = op.operands
    bound, low = _constant(b), _lower_bound(a)
    if bound is None or low is None:
        return None
    known = {ew.Ge: low >= bound, ew.Gt: low > bound, ew.Ne: low > bound, ew.Eq: low > bound}[type(op)]
    if not known:
        return None
    return build(Full, [], {"value": "false" if isinstance(op, ew.Eq) else "true"}, results=[from_mlir(op.results[0])]).results[0]


def _lower_bound(v: Value) -> int | None:
    """A number that no element of an integer tensor of positions is below."""
    while True:
        view = _producer(v, Broadcast) or _producer(v, Reshape) or _producer(v, Transpose) or _producer(v, Slice)
        if view is None:
            break
        v = view.operands[0]
    iota = _producer(v, Iota)
    if iota is None or not from_mlir(v).dtype.is_int:
        return None
    start, step = parse(attr(iota, "start")), parse(attr(iota, "step"))
    return int(start) if start.is_Integer and step.is_nonnegative else None


def _convert(op: Any) -> Any:
    x = op.operands[0]
    if from_mlir(x) == from_mlir(op.results[0]):
        return x
    value, out = _constant(x), from_mlir(op.results[0])
    if value is not None and not out.dtype.is_complex:
        given = from_mlir(x).dtype
        exact = torch.tensor(float(value), dtype=torch.float64) if given.is_float else torch.tensor(int(value))
        if given.name == "f32":  # whose constants are written as they came
            exact = exact.float()
        result = exact.to(out.dtype.torch).item()  # rounded, or truncated
        return build(Full, [], {"value": str(result).lower()}, results=[out]).results[0]
    narrow = _producer(x, ew.Convert)
    if narrow is None or from_mlir(narrow.operands[0]) != out or not (out.dtype.is_float and from_mlir(x).dtype.is_float):
        return None
    return narrow.operands[0] if is_rounded(narrow.operands[0], from_mlir(x).dtype) else None


def _bound(op: Any) -> Any:
    """Bounds of what was rounded to f16 or bf16 are applied before that if they are numbers of it: rounding doesn't change the
    order, and what rounds it again to store it then falls away."""
    x, bound = op.operands
    wide, out = _producer(x, ew.Convert), from_mlir(op.results[0])
    value = _constant(bound)
    rounded = None if wide is None or value is None or out.dtype.name != "f32" else _producer(wide.operands[0], ew.Convert)
    if rounded is None or from_mlir(rounded.operands[0]) != out:
        return None
    narrow, once = from_mlir(rounded.results[0]), all(len(list(c.results[0].uses)) == 1 for c in (wide, rounded))
    if narrow.dtype.name not in ("f16", "bf16") or not once or not is_rounded(bound, narrow.dtype):
        return None
    bounded = build(type(op), [rounded.operands[0], bound]).results[0]
    return build(ew.Convert, [build(ew.Convert, [bounded], results=[narrow]).results[0]], results=[out]).results[0]


# Operations that only choose among their operands' elements, up to their signs and places; and how many of them, one after another,
# are looked through for what was rounded before.
_CHOICES, _MOST_CHOICES = (ew.Maximum, ew.Minimum, ew.Neg, ew.Abs, ew.Select, Broadcast, Reshape, Slice, Transpose), 8


def is_rounded(v: Value, to: DType, left: int = _MOST_CHOICES) -> bool:
    """Whether every element of a tensor of floats is a number of the float type `to`, so that rounding to it changes none."""
    op = defining(v)
    if isinstance(op, ew.Convert):
        return from_mlir(op.operands[0]).dtype == to and _nested(to, from_mlir(v).dtype)
    if isinstance(op, Full):
        value = number(attr(op, "value"))
        return value is not None and torch.tensor(value, dtype=torch.float64).to(to.torch).item() == value
    if left == 0 or not isinstance(op, _CHOICES):
        return False
    chosen = list(op.operands)[1:] if isinstance(op, ew.Select) else op.operands
    return all(is_rounded(x, to, left - 1) for x in chosen)


def _nested(x: DType, y: DType) -> bool:
    """Whether one of two float types has all numbers of the other: not so f16 and bf16, of which rounding to the second makes
    numbers that are too large for the first."""

    def holds(a: torch.finfo, b: torch.finfo) -> bool:
        return bool(a.eps <= b.eps and a.max >= b.max and a.smallest_normal * a.eps <= b.smallest_normal * b.eps)

    if not (x.is_float and y.is_float):
        return False
    a, b = torch.finfo(x.torch), torch.finfo(y.torch)
    return holds(a, b) or holds(b, a)


def _take(op: Any) -> Any:
    """A lookup of a dim by its own positions 0, 1, 2, ... is a view."""
    dims, at = attr(op, "dims"), attr(op, "at")
    x, index = op.operands[0], list(op.operands)[1:]
    shape = from_mlir(x).shape
    rank = from_mlir(index[0]).rank
    place: dict[int, int] = {}  # operand dim -> dim of the index shape that it runs along
    for d, v in zip(dims, index, strict=True):
        k = _position_dim(v)
        if k is None or k in place.values() or from_mlir(v).shape[k] != shape[d]:
            return None
        place[d] = k
    out = from_mlir(op.results[0])
    rest = [d for d in range(len(shape)) if d not in dims]
    where = {d: at + place[d] for d in dims} | {d: (n if n < at else n + rank) for n, d in enumerate(rest)}
    order = sorted(range(len(shape)), key=lambda d: where[d])
    moved = build(Transpose, [x], {"perm": order}).results[0]
    return build(Broadcast, [moved], {"dims": [where[d] for d in order]}, results=[out]).results[0]


def _position_dim(v: Value) -> int | None:
    """The dim along which v counts 0, 1, 2, ..., through views that add dims."""
    iota = _producer(v, Iota)
    if iota is not None:
        return attr(iota, "dim") if attr(iota, "start") == "0" and attr(iota, "step") == "1" else None
    b = _producer(v, Broadcast)
    if b is not None:
        k = _position_dim(b.operands[0])
        if k is None or from_mlir(b.operands[0]).shape[k] != from_mlir(v).shape[attr(b, "dims")[k]]:
            return None
        d: int = attr(b, "dims")[k]
        return d
    r = _producer(v, Reshape)
    if r is not None:
        k = _position_dim(r.operands[0])
        src, dst = from_mlir(r.operands[0]).shape, from_mlir(v).shape
        if k is None or [s for s in src if s != 1] != [s for s in dst if s != 1] or src[k] == 1:
            return None
        n = [d for d, s in enumerate(src) if s != 1].index(k)
        return [d for d, s in enumerate(dst) if s != 1][n]
    c = _producer(v, ew.Convert)
    return _position_dim(c.operands[0]) if c is not None and from_mlir(v).dtype.name in ("i32", "i64") else None


_RULES: dict[type, Callable[[Any], Any]] = {
    Reshape: _reshape,
    Transpose: _transpose,
    Reverse: _reverse,
    Broadcast: _broadcast,
    Slice: _slice,
    Concat: _concat,
    Pad: _pad,
    ew.Add: _add,
    ew.Sub: _neutral,
    ew.Mul: _neutral,
    ew.Div: _neutral,
    ew.And: _neutral,
    ew.Or: _neutral,
    ew.Select: _select,
    Conv: _conv,
    Reduce: _reduce,
    Scan: _scan,
    ew.Ge: _compare,
    ew.Gt: _compare,
    ew.Eq: _compare,
    ew.Convert: _convert,
    ew.Maximum: _bound,
    ew.Minimum: _bound,
    Take: _take,
}
