"""Computes only the part of a tensor that is read: slices move up through products, attention and norms to what these read.

A classifier that reads one token, or a language model's head that reads the last one, needs the last layer's queries, products
and norms of that token alone. So does a step over pools of blocks whose caller says by an argument which tokens' logits it wants;
other lookups stay where they are, for they may read rows many times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import sympy

from dhlo.ir.dialect import Kind, attr, build, defining, exprs
from dhlo.ir.handles import Block, Module, Value
from dhlo.ir.mlir import ir
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops.adapters import Adapt
from dhlo.ir.ops.compute import Attention, Matmul, Reduce
from dhlo.ir.ops.control import new_symbols
from dhlo.ir.ops.movement import Broadcast, Concat, Full, Iota, Pad, Reshape, Reverse, Slice, Take, Transpose
from dhlo.ir.ops.recurrence import Recurrence
from dhlo.ir.paging import paging_of
from dhlo.ir.symbols import is_static, parse, show, symbols_of
from dhlo.ir.types import TensorType, from_mlir
from dhlo.passes.cse import erase_dead

__all__ = ["hoist_slices"]


class Picked(NamedTuple):
    """Elements along a dim in the order of an index, an argument of the function; how many, and what negative ones mean."""

    index: Any
    count: sympy.Expr
    wrap: bool


Window = tuple[sympy.Expr, sympy.Expr] | Picked  # first element and count, along a dim
Windows = tuple[Window | None, ...]  # by dim; None: all of it
Dims = list[int | None]  # by operand dim: the result dim that it becomes, if any

_WORTH = (Kind.MATMUL, Kind.ATTENTION, Kind.REDUCTION)  # others are computed where they are read anyway


def hoist_slices(module: Module) -> None:
    """Computes only the part of a tensor that all its readers together read, where that saves work."""
    for f in module.body.operations:
        for block in f.operation.regions[0].blocks:
            plan = _Demand(block).plan()
            if any(p.op.kind in _WORTH and any(p.made) for p in plan):
                _Rewrite().run(plan)
                erase_dead(block)


@dataclass
class _Planned:
    """An op, the part of its result to be made, and the part of each operand that it reads for that."""

    op: Any
    made: Windows
    needs: list[Windows]


class _Demand:
    """Which part of each value of a block is read, found from the last op to the first."""

    def __init__(self, block: Block) -> None:
        self.block = block
        paging = paging_of(block)
        known = [op.results[1] for op in block.operations if isinstance(op, Recurrence) and len(op.results) > 1]
        of_tokens = [block.arguments[k] for k in paging.slots] + known if paging is not None else []
        self.tokens = from_mlir(of_tokens[0]).shape[0] if of_tokens else None
        self.late = {s for op in block.operations for s in new_symbols(op, ())}  # windows of such sizes would be known too late
        self.read: dict[Any, Windows] = {}

    def plan(self) -> list[_Planned]:
        """The ops that the rules cover, in order."""
        out: list[_Planned] = []
        for op in reversed(list(self.block.operations)):
            rule = next((_RULES[c] for c in type(op).__mro__ if c in _RULES), None)
            if rule is None and not self._picks(op):
                for v in _all_operands(op):
                    self._join(v, _whole(v))
                continue
            p = self._pick(op) if rule is None else self._apply(op, rule)
            for v, need in zip(op.operands, p.needs, strict=True):
                self._join(v, need)
            out.append(p)
        return out[::-1]

    def _apply(self, op: Any, rule: Rule) -> _Planned:
        y = op.results[0]
        read = self.read.get(y, _whole(y))
        if isinstance(op, Slice):
            made, need = _slice_windows(op, read)
            windows = [w for w in need if w is not None and not isinstance(w, Picked)]
            late = any((symbols_of(start) | symbols_of(count)) & self.late for start, count in windows)
            return _Planned(op, _whole(y), [_whole(op.operands[0])]) if late else _Planned(op, made, [need])
        free, operands = rule(op)
        if isinstance(op, (Iota, Attention)):  # of which parts are made by where they begin
            read = tuple(None if isinstance(w, Picked) else w for w in read)
        made = tuple(w if d in free else None for d, w in enumerate(read))
        return _Planned(op, made, [tuple(None if d is None else made[d] for d in dims) for dims in operands])

    def _picks(self, op: Any) -> bool:
        """Whether a lookup picks tokens by an argument of the function."""
        if not isinstance(op, Take) or len(attr(op, "dims")) != 1 or _rank(op.operands[1]) != 1:
            return False
        (d,) = attr(op, "dims")
        along_tokens = self.tokens is not None and from_mlir(op.operands[0]).shape[d] == self.tokens
        return along_tokens and attr(op, "at") == d and defining(op.operands[1]) is None

    def _pick(self, op: Any) -> _Planned:
        y, (d,) = op.results[0], attr(op, "dims")
        need = list(_whole(y))
        need[d] = Picked(op.operands[1], from_mlir(y).shape[d], attr(op, "wrap"))
        return _Planned(op, _whole(y), [tuple(need), (None,)])

    def _join(self, v: Value, need: Windows) -> None:
        have = self.read.get(v)
        self.read[v] = need if have is None else tuple(map(_hull, have, need, from_mlir(v).shape))


def _whole(v: Value) -> Windows:
    return (None,) * len(from_mlir(v).shape) if isinstance(v.type, ir.RankedTensorType) else ()


def _all_operands(op: Any) -> Iterator[Any]:
    yield from op.operands
    for region in op.operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from _all_operands(inner)


def _hull(a: Window | None, b: Window | None, size: sympy.Expr) -> Window | None:
    """The least window around both; all of the dim where that can't be told."""
    if a == b:
        return a
    if a is None or b is None or isinstance(a, Picked) or isinstance(b, Picked):
        return None
    if not all(is_static(x) for w in (a, b) for x in w):
        return None
    lo, hi = min(a[0], b[0]), max(a[0] + a[1], b[0] + b[1])
    return None if lo == 0 and hi == size else (lo, hi - lo)


def _slice_windows(op: Any, read: Windows) -> tuple[Windows, Windows]:
    """What a slice makes and needs for its result to be read so. Dims with steps are left as they are."""
    made: list[Window | None] = []
    need: list[Window | None] = []
    outer, inner = from_mlir(op.operands[0]).shape, from_mlir(op.results[0]).shape
    for d, (start, step) in enumerate(zip(exprs(attr(op, "starts")), attr(op, "steps"), strict=True)):
        window = read[d] if step == 1 else None
        if isinstance(window, Picked):
            all_of_it = start == 0 and inner[d] == outer[d]
            made.append(window if all_of_it else None)
            need.append(window if all_of_it else (start, inner[d]))
            continue
        lo, size = window or (sympy.Integer(0), inner[d])
        first = (start + lo).expand()
        whole = step != 1 or (first == 0 and (size - outer[d]).expand() == 0)
        made.append(window)
        need.append(None if whole else (first, size))
    return tuple(made), tuple(need)


# ------------------------------------------------------------------------------------------------------------ rules
# By op: the result dims along which it can be computed in part, and for each operand which result dim each of its dims becomes.
Rule = Callable[[Any], tuple[set[int], list[Dims]]]


def _rank(v: Value) -> int:
    return from_mlir(v).rank


def _same(op: Any) -> tuple[set[int], list[Dims]]:
    n = _rank(op.results[0])
    return set(range(n)), [list(range(n)) for _ in op.operands]


def _but(dims: Callable[[Any], Sequence[int]]) -> Rule:
    """Ops that treat `dims` as a whole and the others element by element."""

    def rule(op: Any) -> tuple[set[int], list[Dims]]:
        bound = set(dims(op))
        free = set(range(_rank(op.results[0]))) - bound
        return free, [[d if d in free else None for d in range(_rank(v))] for v in op.operands]

    return rule


def _iota(op: Any) -> tuple[set[int], list[Dims]]:
    whole = all(parse(attr(op, n)).is_integer for n in ("start", "step"))  # fractions would round in another way
    return {d for d in range(_rank(op.results[0])) if whole or d != attr(op, "dim")}, []


def _transpose(op: Any) -> tuple[set[int], list[Dims]]:
    perm = attr(op, "perm")
    return set(range(len(perm))), [[perm.index(d) for d in range(len(perm))]]


def _broadcast(op: Any) -> tuple[set[int], list[Dims]]:
    src, dst = from_mlir(op.operands[0]).shape, from_mlir(op.results[0]).shape
    return set(range(len(dst))), [[d if s != 1 else None for s, d in zip(src, attr(op, "dims"), strict=True)]]


def _reshape(op: Any) -> tuple[set[int], list[Dims]]:
    src, dst = from_mlir(op.operands[0]).shape, from_mlir(op.results[0]).shape
    pairs = _kept_dims(src, dst)
    return set(pairs), [[next((d for d, s in pairs.items() if s == k), None) for k in range(len(src))]]


def _kept_dims(src: Sequence[sympy.Expr], dst: Sequence[sympy.Expr]) -> dict[int, int]:
    """Dims that a reshape keeps, as result dim -> operand dim: those before the first and after the last that it cuts or joins,
    apart from dims of size 1 that come or go."""
    front = _paired(src, dst)
    left_src, left_dst = (max(front.values()) + 1, max(front) + 1) if front else (0, 0)
    back = _paired(src[left_src:][::-1], dst[left_dst:][::-1])
    return front | {len(dst) - 1 - d: len(src) - 1 - s for d, s in back.items()}


def _paired(src: Sequence[sympy.Expr], dst: Sequence[sympy.Expr]) -> dict[int, int]:
    out: dict[int, int] = {}
    i = j = 0
    while i < len(src) and j < len(dst):
        if src[i] == dst[j]:
            out[j] = i
            i, j = i + 1, j + 1
        elif src[i] == 1:
            i += 1
        elif dst[j] == 1:
            j += 1
        else:
            break
    return out


def _reduce(op: Any) -> tuple[set[int], list[Dims]]:
    kept = [d for d in range(_rank(op.operands[0])) if d not in attr(op, "dims")]
    return set(range(len(kept))), [[kept.index(d) if d in kept else None for d in range(_rank(op.operands[0]))]]


def _matmul(op: Any) -> tuple[set[int], list[Dims]]:
    """A right side of rank 2 stays whole: it is packed, once where it is a weight."""
    n, batched = _rank(op.results[0]), _rank(op.operands[1]) > 2
    right: Dims = [*range(n - 2), None, n - 1] if batched else [None, None]
    return set(range(n if batched else n - 1)), [[*range(n - 1), None], right]


def _adapt(op: Any) -> tuple[set[int], list[Dims]]:
    n = _rank(op.results[0])
    rows: Dims = [*range(n - 1), None]
    return set(range(n - 1)), [rows, rows, [None, None], [n - 2]]


def _attention(op: Any) -> tuple[set[int], list[Dims]]:
    q: Dims = [0, None, 2, None]
    kv: Dims = [0, None, None, None]
    more: list[Dims] = [q if from_mlir(v).rank == 4 else [None] for v in list(op.operands)[op.least :]]
    return {0, 2}, [q, kv, kv, *more]


def _padded(op: Any) -> list[int]:
    sizes = zip(exprs(attr(op, "low")), from_mlir(op.operands[0]).shape, from_mlir(op.results[0]).shape, strict=True)
    return [d for d, (low, a, b) in enumerate(sizes) if low != 0 or a != b]


_RULES: dict[type, Rule] = {
    ew.Elementwise: _same,
    Full: _same,
    Iota: _iota,
    Slice: _same,
    Transpose: _transpose,
    Broadcast: _broadcast,
    Reshape: _reshape,
    Reduce: _reduce,
    Matmul: _matmul,
    Adapt: _adapt,
    Attention: _attention,
    Concat: _but(lambda op: [attr(op, "dim")]),
    Reverse: _but(lambda op: attr(op, "dims")),
    Pad: _but(_padded),
}


# ---------------------------------------------------------------------------------------------------------- rewriting
class _Rewrite:
    """Builds the planned ops anew for the parts that are read; the old ones are left without readers."""

    def __init__(self) -> None:
        self.new: dict[Any, tuple[Any, Windows]] = {}  # by old value: the part of it that is made, and which

    def run(self, plan: list[_Planned]) -> None:
        for p in plan:
            op = p.op
            if not any(p.made) and not (isinstance(op, (Slice, Take)) and op.operands[0] in self.new):
                continue
            with ir.InsertionPoint(op.operation), op.location:
                operands = [self._part(v, need) for v, need in zip(op.operands, p.needs, strict=True)]
                y = op.results[0]
                sizes = [w[1] if w else s for w, s in zip(p.made, from_mlir(y).shape, strict=True)]
                value = _rebuild(op, operands, from_mlir(y).with_shape(sizes), p.made)
            if any(p.made):
                self.new[y] = value, p.made
            else:
                y.replace_all_uses_with(value)

    def _part(self, v: Value, need: Windows) -> Any:
        """The part of v, from the part of it that there is."""
        value, have = self.new.get(v, (v, (None,) * len(need)))
        for d, (w, h) in enumerate(zip(need, have, strict=True)):
            if isinstance(w, Picked) and h is None:
                value = _taken(value, d, w)
        shape = from_mlir(value).shape
        need, have = (tuple(None if isinstance(w, Picked) else w for w in side) for side in (need, have))
        windows = [w or (sympy.Integer(0), s) for w, s in zip(need, shape, strict=True)]
        starts = [(w[0] - (h[0] if h else 0)).expand() for w, h in zip(windows, have, strict=True)]
        sizes = [w[1] for w in windows]
        if all(s == 0 for s in starts) and all(a == b for a, b in zip(sizes, shape, strict=True)):
            return value
        return build(
            Slice, [value], {"starts": starts, "steps": [1] * len(sizes)}, results=[from_mlir(v).with_shape(sizes)]
        ).results[0]


def _taken(value: Any, d: int, w: Picked) -> Any:
    """Elements of a value along dim d."""
    t = from_mlir(value)
    out = t.with_shape([*t.shape[:d], w.count, *t.shape[d + 1 :]])
    if isinstance(full := defining(value), Full):
        return build(Full, [], {"value": attr(full, "value")}, results=[out]).results[0]
    return build(Take, [value, w.index], {"dims": [d], "at": d, "wrap": w.wrap}, results=[out]).results[0]


def _rebuild(op: Any, operands: list[Any], out: TensorType, made: Windows) -> Any:
    """`op` on parts of its operands, giving the part `made` of its result."""
    attrs = {k: op.attributes[k] for k in op.attributes}
    if isinstance(op, Take):
        return operands[0]
    if isinstance(op, Slice):
        steps = attr(op, "steps")
        if all(k == 1 for k in steps):
            return operands[0]
        attrs["starts"] = ir.ArrayAttr.get(
            [s if k != 1 else ir.StringAttr.get("0") for s, k in zip(op.attributes["starts"], steps, strict=True)]
        )
    elif isinstance(op, Iota):
        window = made[attr(op, "dim")]
        if window is not None:
            start = parse(attr(op, "start")) + window[0] * parse(attr(op, "step"))
            return build(Iota, [], {"dim": attr(op, "dim"), "start": start, "step": attr(op, "step")}, results=[out]).results[0]
    elif isinstance(op, Attention) and made[2] is not None and attr(op, "causal"):
        past = (parse(attr(op, "past")) + made[2][0]).expand()
        sees_all = (past + 1 - from_mlir(operands[1]).shape[2]).expand().is_nonnegative
        new = {
            "scale": attr(op, "scale"),
            "softcap": attr(op, "softcap"),
            "causal": not sees_all,
            "past": "0" if sees_all else show(past),
        }
        return build(Attention, operands, new).results[0]
    return ir.Operation.create(op.OPERATION_NAME, results=[out.mlir()], operands=operands, attributes=attrs).results[0]
