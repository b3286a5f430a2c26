"""Lets attention over compressed keys and values read them as they are cached, and not what a product makes of each of them.

Multi-head latent attention (DeepSeek-V2, 2024) caches a latent row and a few rotated columns for each position. Keys and values of
all heads are products of the latents with constant matrices, computed anew at every step for all that is cached. As

    q . (W c) = (W^T q) . c    and    sum of p (V c) = V (sum of p c)

the queries and the results can be multiplied instead, of which there are few, and attention has one key and value head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sympy

from dhlo.ir.dialect import attr, build, defining, exprs
from dhlo.ir.function import bodies, requested_pages
from dhlo.ir.mlir import ir
from dhlo.ir.ops.compute import Attention, Matmul
from dhlo.ir.ops.movement import Broadcast, Concat, Reshape, Slice, Transpose
from dhlo.ir.types import from_mlir
from dhlo.passes.attention_heads import attention_heads
from dhlo.passes.cse import cse, erase_dead
from dhlo.passes.find_attention import find_attention
from dhlo.passes.fold_weights import made_of_weights
from dhlo.passes.simplify import simplify

__all__ = ["absorb_latents"]


def absorb_latents(module: Any) -> None:
    """Where a program's caches shall be pools of blocks, attention whose keys and values are products of cached rows with constants
    reads the rows."""
    if not any(requested_pages(block) for block in bodies(module)):
        return
    for rewrite in (cse, simplify, find_attention, attention_heads, simplify, cse):
        rewrite(module)
    for block in bodies(module):
        for op in list(block.operations):
            if isinstance(op, Attention) and not attr(op, "causal"):
                found = _Latents.of(op)
                if found is not None:
                    with ir.InsertionPoint(op.operation), op.location:
                        op.results[0].replace_all_uses_with(found.attend(op))
                    op.operation.erase()
        erase_dead(block)


@dataclass(frozen=True)
class _Columns:
    """Columns of a tensor [batch, heads, rows, columns]: `size` from `start` on."""

    of: Any
    start: int
    size: int


@dataclass(frozen=True)
class _Latents:
    """Attention whose keys [B, H, S, D] are columns of a product with the latents, then columns that all heads share; its values
    are other columns of the product.

    latents  [B, 1, S, L]
    weight   [L, H * columns of a head], a constant
    shared   [B, 1, S, R]
    """

    latents: Any
    weight: Any
    shared: Any
    heads: int
    keys: _Columns
    values: _Columns

    @staticmethod
    def of(op: Any) -> _Latents | None:
        """That of an attention op, if it is of this kind."""
        keys, values = (_columns(op.operands[i]) for i in (1, 2))
        if len(keys) != 2 or len(values) != 1 or keys[0].of != values[0].of:
            return None
        spread = defining(keys[1].of)
        if not isinstance(spread, Broadcast) or keys[1].start or attr(spread, "dims") != [0, 1, 2, 3]:
            return None
        shared, product = spread.operands[0], _product(keys[0].of)
        if product is None or from_mlir(shared).shape[1] != 1 or from_mlir(shared).shape[3] != keys[1].size:
            return None
        latents, weight = product
        heads = from_mlir(keys[0].of).shape[1]
        if not heads.is_Integer or from_mlir(latents).shape[:3] != from_mlir(shared).shape[:3]:
            return None
        return _Latents(latents, weight, shared, int(heads), keys[0], values[0])

    def attend(self, op: Any) -> Any:
        """The result of the op, by the latents."""
        q, _, _, *more = op.operands
        t = from_mlir(q)
        batch, heads, rows, _ = t.shape
        depth = from_mlir(self.latents).shape[3]
        own, turned = (_slice(q, 3, start, size) for start, size in ((0, self.keys.size), (self.keys.size, self._shared_columns)))
        own = build(Matmul, [own, self._matrix(self.keys, batch, turned=False)]).results[0]
        cached = build(Concat, [self.latents, self.shared], {"dim": 3}).results[0]
        values = _slice(cached, 3, 0, int(depth))
        query = build(Concat, [own, turned], {"dim": 3}).results[0]
        attrs = {"scale": attr(op, "scale"), "softcap": attr(op, "softcap"), "causal": False, "past": "0"}
        y = build(Attention, [query, cached, values, *more], attrs).results[0]
        return build(Matmul, [y, self._matrix(self.values, batch, turned=True)]).results[0]

    @property
    def _shared_columns(self) -> int:
        return int(from_mlir(self.shared).shape[3])

    def _matrix(self, columns: _Columns, batch: sympy.Expr, *, turned: bool) -> Any:
        """The heads' matrices of some columns, [batch, heads, columns, L], or with the last two dims in turn."""
        t = from_mlir(self.weight)
        depth, all_columns = (int(s) for s in t.shape)
        rows = build(Transpose, [self.weight], {"perm": [1, 0]}).results[0]
        by_head = build(Reshape, [rows], results=[t.with_shape([self.heads, all_columns // self.heads, depth])]).results[0]
        x = _slice(by_head, 1, columns.start, columns.size)
        if turned:
            x = build(Transpose, [x], {"perm": [0, 2, 1]}).results[0]
        shape = from_mlir(x).shape
        return build(Broadcast, [x], {"dims": [1, 2, 3]}, results=[from_mlir(x).with_shape([batch, *shape])]).results[0]


def _slice(v: Any, dim: int, start: int, size: int) -> Any:
    t = from_mlir(v)
    starts = [str(start) if d == dim else "0" for d in range(t.rank)]
    out = t.with_shape([size if d == dim else s for d, s in enumerate(t.shape)])
    return build(Slice, [v], {"starts": starts, "steps": [1] * t.rank}, results=[out]).results[0]


def _columns(v: Any) -> list[_Columns]:
    """What the columns of v [batch, heads, rows, columns] are columns of, through joins and slices of columns."""
    t, op = from_mlir(v), defining(v)
    if t.rank != 4 or not t.shape[3].is_Integer:
        return []
    if isinstance(op, Concat) and attr(op, "dim") == 3:
        return [c for x in op.operands for c in _columns(x)]
    if isinstance(op, Slice) and from_mlir(op.operands[0]).shape[:3] == t.shape[:3] and attr(op, "steps")[3] == 1:
        return _crop(_columns(op.operands[0]), int(exprs(attr(op, "starts"))[3]), int(t.shape[3]))
    return [_Columns(v, 0, int(t.shape[3]))]


def _crop(columns: list[_Columns], start: int, size: int) -> list[_Columns]:
    """`size` columns from `start` on."""
    out, at = [], 0
    for c in columns:
        lo, hi = max(start, at), min(start + size, at + c.size)
        if lo < hi:
            out.append(_Columns(c.of, c.start + lo - at, hi - lo))
        at += c.size
    return out


def _product(v: Any) -> tuple[Any, Any] | None:
    """The rows [B, 1, S, L] and the constant [L, H * columns] whose product v [B, H, S, columns] is, by heads."""
    turned = defining(v)
    if not isinstance(turned, Transpose) or attr(turned, "perm") != [0, 2, 1, 3]:
        return None
    split = defining(turned.operands[0])
    made = defining(split.operands[0]) if isinstance(split, Reshape) else None
    if not isinstance(made, Matmul) or from_mlir(made.operands[1]).rank != 2 or not made_of_weights(made.operands[1]):
        return None
    rows, (batch, heads, count, columns) = made.operands[0], from_mlir(v).shape
    t = from_mlir(rows)
    if t.rank != 4 or t.shape[:3] != (batch, 1, count) or from_mlir(made.results[0]).shape[3] != heads * columns:
        return None
    return rows, made.operands[1]
