"""Finds attention that is written out: products with keys and values around a softmax of scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dhlo.ir.dialect import attr, build, defining, exprs
from dhlo.ir.function import requested_pages
from dhlo.ir.handles import Module
from dhlo.ir.mlir import ir
from dhlo.ir.ops import elementwise as ew
from dhlo.ir.ops.compute import Attention, Matmul, Reduce
from dhlo.ir.ops.movement import Broadcast, Concat, Full, Reshape, Slice, Transpose, number
from dhlo.ir.symbols import is_static
from dhlo.ir.types import DType, TensorType, from_mlir
from dhlo.passes.added_masks import hides, parts_of, together, truth_of
from dhlo.passes.cse import erase_dead

__all__ = ["find_attention"]


def find_attention(module: Module) -> None:
    """Makes `dhlo.attention` of products around a softmax over scores whose rows of nothing but -inf give zeros, or over scores
    and a number for each head, its sink (gpt-oss), whose share is dropped; in programs whose caches shall be pools, also of others,
    those with a sink among them whose result is multiplied by the share of the keys (Granite).

    (Elsewhere these stay as they are: a row that may attend to nothing gives NaN, or a mean, and not zeros. Beside a sink it gives
    zeros, and in a program of caches each token sees itself.)
    """
    for f in module.body.operations:
        for block in f.operation.regions[0].blocks:
            paged, found = bool(requested_pages(block)), False
            for op in list(block.operations):
                if isinstance(op, Matmul):
                    made, beside = _share_of_keys(op) if paged else (op, None)
                    with ir.InsertionPoint(made.operation), made.location:
                        y = _attention(op, paged, from_mlir(made.results[0]), beside)
                    if y is not None:
                        made.results[0].replace_all_uses_with(y)
                        found = True
            if found:
                erase_dead(block)


@dataclass(frozen=True)
class _Scores:
    """What a softmax is taken of: scale * q . k, then softcap * tanh(that / softcap) unless softcap is 0; `bools` say which keys
    are seen, `added` what is added."""

    product: Any
    scale: float = 1.0
    softcap: float = 0.0
    bools: tuple[Any, ...] = ()
    added: tuple[Any, ...] = ()


def _attention(op: Any, paged: bool, out: TensorType, beside: Any) -> Any:
    """The result of a product of weights with values as that of attention, as `out`, with sinks if there are some `beside`; None
    if it isn't one."""
    weights = _plain(op.operands[0])
    dropped = defining(weights)
    whole = dropped.operands[0] if isinstance(dropped, Slice) else weights
    given, zeros = _softmax_of(_plain(whole)), False
    if given is None:
        given, zeros = _safe_softmax_of(whole), True
    if given is None:
        return None
    sinks = None
    if whole is not weights:
        joined = _beside_sinks(given, from_mlir(weights), dropped)
        if joined is None:
            return None
        given, sinks = joined
    elif not paged and not zeros:
        return None
    if beside is not None:
        sinks = _of_heads(beside)
        if sinks is None:
            return None
    found, t = _Reader(exact=zeros).scores(given), from_mlir(given)
    if found is None or t.rank != 4:
        return None
    return _built(op, found, t, sinks, out, exact=zeros)


def _built(op: Any, found: _Scores, scores: TensorType, sinks: Any, out: TensorType, exact: bool) -> Any:
    """The result [batch, heads, rows, columns] of attention, as `out`; None where keys, queries and values aren't
    tensors of one dtype, which kernels take, and static depths."""
    q, turned = found.product.operands
    keys = defining(turned)
    rank = from_mlir(turned).rank
    if not isinstance(keys, Transpose) or attr(keys, "perm") != [*range(rank - 2), rank - 1, rank - 2] or rank < 3:
        return None
    v = op.operands[1]
    q, k = (_before_widening(x, from_mlir(v).dtype) for x in (q, keys.operands[0]))
    depths = [from_mlir(x).shape[-1] for x in (q, k, v)]
    dtypes = {from_mlir(x).dtype.name for x in (q, k, v)}
    if len(dtypes) != 1 or "f64" in dtypes or not all(map(is_static, depths)):
        return None
    batch, heads, rows, columns = scores.shape
    t = from_mlir(q)
    sizes = [(batch, heads, n, depth) for n, depth in zip((rows, columns, columns), depths, strict=True)]
    for x, size in zip((q, k, v), sizes, strict=True):  # views between the ops may have regrouped heads
        if from_mlir(x).shape not in (size, (batch * heads, *size[2:])):
            return None
    operands = [_reshaped(x, t.with_shape(size)) for x, size in zip((q, k, v), sizes, strict=True)]
    narrow = t.dtype.name if not exact or all(from_mlir(x).dtype == t.dtype for x in found.added) else "f32"
    mask = together(found.bools, found.added, t.with_shape(scores.shape).with_dtype(narrow))
    operands += [x for x in (mask, sinks) if x is not None]
    attrs = {"scale": found.scale, "softcap": found.softcap, "causal": False, "past": "0"}
    y = build(Attention, operands, attrs).results[0]
    if from_mlir(y).dtype != out.dtype:  # products of f16 are f32
        y = build(ew.Convert, [y], results=[from_mlir(y).with_dtype(out.dtype)]).results[0]
    return _reshaped(y, out)


def _plain(v: Any) -> Any:
    """v before views of the same elements in the same order, and conversions between floats."""
    while True:
        op = defining(v)
        floats = isinstance(op, ew.Convert) and from_mlir(op.operands[0]).dtype.is_float and from_mlir(v).dtype.is_float
        if not floats and not isinstance(op, (Reshape, ew.Copy)):
            return v
        v = op.operands[0]


def _softmax_of(v: Any) -> Any:
    """What v is the softmax along the last dim of: e / sum(e) with e = exp(x - max(x)); None if it is none."""
    op = defining(v)
    if not isinstance(op, ew.Mul):
        return None
    e, inverse = op.operands
    made, by = defining(e), _by_row(inverse)
    over = defining(by) if by is not None else None
    if not isinstance(made, ew.ExpBelow) or not isinstance(over, ew.Div) or _number(over.operands[0]) != 1:
        return None
    if not _reduces(over.operands[1], e, ("sum",)):
        return None
    x = _less_its_maximum(made.operands[0])
    while x is not None and (inner := _less_its_maximum(_plain(x))) is not None:
        x = inner  # taken away twice
    return None if x is None else _plain(x)


def _safe_softmax_of(v: Any) -> Any:
    """What v is the softmax along the last dim of, but for rows of nothing but -inf, which are zeros; None if it is none."""
    op = defining(v)
    if not isinstance(op, ew.Select) or _number(op.operands[1]) != 0:
        return None
    given, rows = _softmax_of(_plain(op.operands[2])), _by_row(op.operands[0])
    none = defining(rows) if rows is not None else None
    if given is None or not isinstance(none, ew.Eq) or _number(none.operands[1]) != -math.inf:
        return None
    return given if _reduces(none.operands[0], given, ("max", "maxnum")) else None


def _less_its_maximum(v: Any) -> Any:
    """x where v is x less the maximum of its row."""
    op = defining(v)
    if not isinstance(op, ew.Sub):
        return None
    top = _by_row(op.operands[1])
    return op.operands[0] if top is not None and _reduces(top, op.operands[0], ("max", "maxnum")) else None


def _by_row(v: Any) -> Any:
    """What v repeats along its last dim."""
    op = defining(v)
    if not isinstance(op, Broadcast):
        return None
    t = from_mlir(op.operands[0])
    dims = attr(op, "dims")
    return op.operands[0] if dims == list(range(t.rank)) and t.shape[-1:] == (1,) and t.rank == from_mlir(v).rank else None


def _reduces(v: Any, of: Any, how: Sequence[str]) -> bool:
    """Whether v is a reduction of another value along its last dim."""
    op = defining(v)
    while isinstance(op, Reshape):
        op = defining(op.operands[0])
    last = from_mlir(of).rank - 1
    return isinstance(op, Reduce) and op.operands[0] == of and attr(op, "how") in how and attr(op, "dims") == [last]


def _beside_sinks(joined: Any, kept: TensorType, drop: Any) -> tuple[Any, Any] | None:
    """The scores that a number for each head is joined to, and these [heads]. `drop` keeps what is `kept` of all shares."""
    op = defining(joined)
    if not isinstance(op, Concat) or len(op.operands) != 2 or attr(op, "dim") != from_mlir(joined).rank - 1:
        return None
    scores, last = op.operands
    starts_first = all(s == 0 for s in exprs(attr(drop, "starts"))) and set(attr(drop, "steps")) == {1}
    if not starts_first or kept.shape != from_mlir(scores).shape or from_mlir(last).shape[-1] != 1 or kept.rank != 4:
        return None
    sinks = _of_heads(last)
    return None if sinks is None else (_plain(scores), sinks)


def _share_of_keys(op: Any) -> tuple[Any, Any]:
    """Where the product of a softmax with values is multiplied by sigmoid(log(sum(exp(scores))) - sink), the share that keys have
    beside a sink: that multiplication, and the sinks, repeated. Else the product, and None."""
    given, y = _softmax_of(_plain(op.operands[0])), op.results[0]
    while given is not None and len(users := [use.owner.operation.opview for use in y.uses]) == 1:
        (user,) = users
        if isinstance(user, (Reshape, ew.Copy, ew.Convert)):
            y = user.results[0]
            continue
        if not isinstance(user, ew.Mul) or from_mlir(y).shape != from_mlir(op.results[0]).shape:
            break
        share = user.operands[1 if user.operands[0] == y else 0]
        by = _by_row(share)
        sigmoid = None if by is None else defining(_plain(by))
        less = defining(_plain(sigmoid.operands[0])) if isinstance(sigmoid, ew.Sigmoid) else None
        if not isinstance(less, ew.Sub) or _log_sum_of(less.operands[0]) != given:
            break
        rows, t = from_mlir(less.results[0]).shape, from_mlir(given)  # [batch, heads, queries], or with a dim of 1 behind
        same = t.rank == 4 and rows[:3] == t.shape[:3] and from_mlir(by).shape == (*t.shape[:3], 1)
        return (user, less.operands[1]) if same else (op, None)
    return op, None


def _log_sum_of(v: Any) -> Any:
    """x where v is log(sum(exp(x))) of the rows of x; None for others."""
    op = defining(_plain(v))
    if isinstance(op, ew.Select):  # of a row whose maximum isn't finite, that
        endless = defining(op.operands[0])
        if not isinstance(endless, ew.IsInf) or _plain(endless.operands[0]) != _plain(op.operands[1]):
            return None
        return _log_sum_of(op.operands[2]) if defining(_plain(op.operands[2])) != op else None
    if not isinstance(op, ew.Add):
        return None
    for log, top in (tuple(op.operands), tuple(reversed(op.operands))):
        inner = defining(_plain(log))
        total = defining(_plain(inner.operands[0])) if isinstance(inner, ew.Log) else None
        made = defining(total.operands[0]) if isinstance(total, Reduce) else None
        x = _less_its_maximum(made.operands[0]) if isinstance(made, ew.ExpBelow) else None
        if x is None or total is None or made is None or not _reduces(total.results[0], made.results[0], ("sum",)):
            continue
        if _reduces(_plain(top), x, ("max", "maxnum")):
            return _plain(x)
    return None


def _of_heads(v: Any) -> Any:
    """The numbers [heads], as f32, that v [batch, heads, rows, 1] repeats."""
    heads = from_mlir(v).shape[1]
    op = defining(v)
    while isinstance(op, Broadcast) or isinstance(op, ew.Convert) and from_mlir(op.operands[0]).dtype.is_float:
        if isinstance(op, Broadcast):
            t, dims = from_mlir(op.operands[0]), attr(op, "dims")
            if any(s != (heads if d == 1 else 1) for s, d in zip(t.shape, dims, strict=True)) or 1 not in dims:
                return None
            x = (
                build(ew.Convert, [op.operands[0]], results=[t.with_dtype("f32")]).results[0]
                if t.dtype.name != "f32"
                else op.operands[0]
            )
            return _reshaped(x, t.with_shape([heads]).with_dtype("f32"))
        op = defining(op.operands[0])
    return None


@dataclass(frozen=True)
class _Reader:
    """Reads what scores are made of. `exact`: nothing but -inf hides a key."""

    exact: bool
    known: dict[Any, _Scores | None] = field(default_factory=dict)

    def scores(self, v: Any) -> _Scores | None:
        v = _plain(v)
        if v not in self.known:
            self.known[v] = self._read(defining(v))
        return self.known[v]

    def _read(self, op: Any) -> _Scores | None:
        match op:
            case Matmul():
                return _Scores(op)
            case ew.Add():
                for at, other in ((0, 1), (1, 0)):
                    found = self.scores(op.operands[at])
                    if found is not None:
                        bools, added = ([], [op.operands[other]]) if self.exact else parts_of(op.operands[other])
                        return replace(found, bools=(*found.bools, *bools), added=(*found.added, *added))
            case ew.Sub():
                found = self.scores(op.operands[0])
                if found is not None:
                    return replace(found, added=(*found.added, build(ew.Neg, [op.operands[1]]).results[0]))
            case ew.Select():
                sees, left, right = op.operands
                for hidden, rest in ((right, left), (left, right)):
                    hides_key = _number(hidden) == -math.inf if self.exact else hides(hidden)
                    found = self.scores(rest) if hides_key else None
                    if found is not None:
                        sees = truth_of(sees)
                        sees = sees if rest is left else build(ew.Not, [sees]).results[0]
                        return replace(found, bools=(*found.bools, sees))
            case ew.Maximum() if not self.exact:  # no less than what hides keys: what is hidden stays so
                for at, other in ((0, 1), (1, 0)):
                    if hides(op.operands[other]):
                        return self.scores(op.operands[at])
            case ew.Mul() | ew.Div():
                return self._scaled(op)
        return None

    def _scaled(self, op: Any) -> _Scores | None:
        """Scores times a number, or tanh of scores times what they are capped by."""
        x, factor = op.operands[0], _number(op.operands[1])
        if factor is None and isinstance(op, ew.Mul):
            x, factor = op.operands[1], _number(op.operands[0])
        if not factor:
            return None
        factor = 1 / factor if isinstance(op, ew.Div) else factor
        inner = defining(_plain(x))
        if isinstance(inner, ew.Tanh) and factor > 0:
            found = self.scores(inner.operands[0])
            if found is None or found.softcap or found.added or found.bools:
                return None
            return replace(found, scale=found.scale * factor, softcap=factor)
        found = self.scores(x)
        if found is None or found.softcap or factor < 0 and found.bools:
            return None
        added = tuple(_times(v, factor) for v in found.added)
        return replace(found, scale=found.scale * factor, added=added)


def _times(v: Any, factor: float) -> Any:
    return build(ew.Mul, [v, build(Full, [], {"value": repr(factor)}, results=[from_mlir(v)]).results[0]]).results[0]


def _number(v: Any) -> float | None:
    op = defining(v)
    return number(attr(op, "value")) if isinstance(op, Full) else None


def _before_widening(v: Any, dtype: DType) -> Any:
    """What v widens to f32, if that is of `dtype`; else v."""
    op = defining(v)
    narrow = isinstance(op, ew.Convert) and from_mlir(v).dtype.name == "f32" and from_mlir(op.operands[0]).dtype == dtype
    return op.operands[0] if narrow else v


def _reshaped(v: Any, t: TensorType) -> Any:
    return v if from_mlir(v).shape == t.shape else build(Reshape, [v], results=[t]).results[0]
