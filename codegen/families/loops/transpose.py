"""Transposition of a group's values whose memory runs along another dim than its results'."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from dhlo.codegen.elementwise.emit import MOST_APART, Touch
from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.families.kernel import GroupKernel
from dhlo.codegen.kernel_ir.builder import BITS, V
from dhlo.codegen.kernel_ir.transpose import transpose_block
from dhlo.ir.dialect import attr
from dhlo.ir.ops.movement import Transpose
from dhlo.ir.types import from_mlir

__all__ = ["Turned"]

# Positions that an item covers along the dim in which memory is contiguous, at most.
_ALONG = 128
# To the second-level cache, as if to read (see `Turned.blocks`).
_AHEAD = Touch(locality=2, write=False)


@dataclass
class Turned:
    """Transposed values of a group that are read along `dim`, in which their memory is contiguous,
    a square block of vectors at once.

    Reading them along the results' last dim would gather every element from a cache line of its own.
    """

    k: GroupKernel
    shape: tuple[sympy.Expr, ...]
    dim: int
    lane: int
    ops: list[Any]

    @staticmethod
    def of(k: GroupKernel, shape: tuple[sympy.Expr, ...]) -> Turned | None:
        """The values for which this pays, in a group that computes elements of this shape, whose vectors run along the last of its
        dims; None if there are none."""
        lane = max((d for d, s in enumerate(shape) if s != 1), default=0)
        found: dict[int, list[Any]] = {}
        for op in k.ops:
            if isinstance(op, Transpose) and from_mlir(op.results[0]).shape == shape:
                d = attr(op, "perm").index(len(shape) - 1)
                near = shape[d].is_Integer and shape[d] <= MOST_APART and attr(op, "perm")[lane] == len(shape) - 2
                if d != lane and shape[d] != 1 and not near and not from_mlir(op.results[0]).dtype.is_bool:
                    found.setdefault(d, []).append(op)
        if not found:
            return None
        dim, ops = max(found.items(), key=lambda item: len(item[1]))
        return Turned(k, shape, dim, lane, ops)

    @property
    def scratch_bytes(self) -> int:
        """What a worker needs."""
        return sum(self.k.fn.lanes**2 * BITS[self._register(op)] // 8 for op in self.ops)

    @staticmethod
    def _register(op: Any) -> str:
        return from_mlir(op.results[0]).dtype.register

    @property
    def along(self) -> int:
        """How many positions of `dim` an item covers."""
        n, lanes = self.shape[self.dim], self.k.fn.lanes
        return min(_ALONG, max(-(-int(n) // lanes), 1) * lanes) if n.is_Integer else _ALONG

    def blocks(self, at: dict[int, Index], lo: V, hi: V, store: Callable[[dict[int, Index]], None]) -> None:
        """Computes an item: the positions [lo, hi) of the lane dim. `at` are the positions in all other dims, of `dim` the number
        of the item's; `store` is called with those of one vector of results.

        Where memory comes from afar, blocks follow each other along `dim`, in which what is read is contiguous, and each fetches
        what the one below it reads and writes to the second-level cache: pieces of rows, which no hardware expects. On a Zen 4
        rows of 8 KB are turned in 0.4 of the time so; prefetching to the first cache, which has few buffers for misses, or for
        writing, takes longer than not to prefetch at all. What is near takes 1.2 times as long so.
        """
        fn, em = self.k.fn, self.k.em
        here = dict(at)
        first, size = fn.mul(em.position(here.pop(self.dim)), self.along), fn.i64(em.size(self.shape[self.dim]))
        end = fn.min(fn.add(first, self.along), size)
        nbytes = sum((from_mlir(v).numel * from_mlir(v).dtype.bytes for v in self.k.group.results), sympy.Integer(0))
        far = fn.cmp("ne", self.k.args.get(("far", nbytes)), 0)

        def vector(at: V) -> Index:
            return Index(at, 1, multiple=fn.lanes)

        with fn.when(fn.not_(far)), fn.loop(first, end, fn.lanes) as start, fn.loop(lo, hi, fn.lanes) as column, em.scope():
            self._block(here, start.iv, vector(column.iv), hi, store)
        with fn.when(far), fn.loop(lo, hi, fn.lanes) as column, fn.loop(first, end, fn.lanes) as start, em.scope():
            self._block(here, start.iv, vector(column.iv), hi, store)
            if not self.k.lookups:  # an index that wasn't read is wrong
                with em.touches(_AHEAD):
                    after = fn.min(fn.add(start.iv, fn.lanes), size)
                    self._touch(here, start.iv, vector(fn.add(column.iv, fn.lanes)), after, store)

    def _touch(self, at: dict[int, Index], start: V, columns: Index, end: V, store: Callable[[dict[int, Index]], None]) -> None:
        """Prefetches what a block reads and writes."""
        fn, em = self.k.fn, self.k.em
        along, first = Index(start, 1, multiple=fn.lanes), fn.i64(columns.base)
        for op in self.ops:
            for j in range(fn.lanes):
                here = {**at, self.dim: along, self.lane: Index(fn.add(first, j))}
                op.pull(em, [here.get(d, em.zero) for d in range(len(self.shape))])
        with fn.loop(start, end) as row, em.scope():
            store({**at, self.dim: Index(row.iv), self.lane: columns})

    def _block(self, at: dict[int, Index], start: V, columns: Index, stop: V, store: Callable[[dict[int, Index]], None]) -> None:
        """Computes up to a vector of positions of `dim` from `start`
        by the vector of the lane dim at `columns`, those below `stop`."""
        fn, em = self.k.fn, self.k.em
        rank, size = len(self.shape), fn.i64(em.size(self.shape[self.dim]))
        first, last = fn.i64(columns.base), fn.sub(stop, 1)

        def index(here: dict[int, Index]) -> list[Index]:
            return [here.get(d, em.zero) for d in range(rank)]

        buffers = self._buffers()
        with em.scope(fn.tail_mask(fn.sub(size, start))):
            along, rows = Index(start, 1, multiple=fn.lanes), [Index(fn.min(fn.add(first, j), last)) for j in range(fn.lanes)]
            for op, buffer in zip(self.ops, buffers, strict=True):
                read = [op.pull(em, index({**at, self.dim: along, self.lane: row})) for row in rows]
                for r, x in enumerate(transpose_block(fn, [x if x.lanes else fn.splat(x) for x in read])):
                    fn.store(x, fn.gep(buffer, r * fn.lanes, x.elem))
        with fn.loop(0, fn.min(fn.sub(size, start), fn.lanes)) as row, em.scope(fn.tail_mask(fn.sub(stop, first))):
            here = {**at, self.dim: Index(fn.add(start, row.iv)), self.lane: columns}
            for op, buffer in zip(self.ops, buffers, strict=True):
                em.leaves[op.results[0]] = self._leaf(op, buffer, row.iv, index(here))
            store(here)
            for op in self.ops:
                del em.leaves[op.results[0]]

    def _buffers(self) -> list[V]:
        fn, out, at = self.k.fn, [], 0
        for op in self.ops:
            out.append(fn.gep(fn.args[4], at, "i8"))
            at += self.k.fn.lanes**2 * BITS[self._register(op)] // 8
        return out

    def _leaf(self, op: Any, buffer: V, row: V, here: Sequence[Index]) -> Callable[[Any, Sequence[Index]], V]:
        """The value where the results are; elsewhere it is computed as ever."""
        elem = self._register(op)

        def leaf(em: Any, idx: Sequence[Index]) -> V:
            if [i.key for i in idx] == [i.key for i in here]:
                x: V = em.fn.load(em.fn.gep(buffer, em.fn.mul(row, em.fn.lanes), elem), em.fn.vec(elem))
            else:
                x = op.pull(em, list(idx))
            return x

        return leaf
