"""Reductions along a dim that results' memory runs along, of operands whose memory runs along kept dims: norms over channels.

Of [batch, channels, height, width] read as [batch, height, width, channels], say. A vector of channels would take a cache line for
each of them, and where planes share sets of the first cache the lines would be gone before their next element is read. So vectors
run along positions, as operands lie, and the results of some channels are transposed on their way to memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.families.kernel import GroupKernel
from dhlo.codegen.kernel_ir.builder import V
from dhlo.codegen.kernel_ir.transpose import transpose_block
from dhlo.ir.dialect import attr
from dhlo.ir.handles import Value
from dhlo.ir.ops.movement import Transpose
from dhlo.ir.symbols import is_static, product
from dhlo.ir.types import from_mlir

__all__ = ["Turn", "TurnedStores"]


@dataclass(frozen=True)
class Turn:
    """`run`: neighbouring kept dims of the domain in which operands are contiguous; `across`: the reduced one in which results
    are."""

    run: tuple[int, ...]
    across: int

    @staticmethod
    def of(k: GroupKernel, shape: Sequence[sympy.Expr], dims: Sequence[int], across: int) -> Turn | None:
        """How a group of the domain `shape`, which reduces `dims`, can be turned; None where that doesn't pay: everything else that
        it reads must be small, since vectors of it would be gathered."""
        turns = [op for op in k.ops if isinstance(op, Transpose) and from_mlir(op.results[0]).shape == tuple(shape)]
        runs = {_run(attr(op, "perm"), shape, dims) for op in turns}
        if len(runs) != 1 or not (run := runs.pop()):
            return None
        if any(not _plain(v) for v in [*(op.results[0] for op in turns), *k.yields]):
            return None
        above = set(_operands_of(k, turns))
        inside = {v for op in k.ops for v in op.results}
        for op in k.ops:
            read = () if op in turns or op.results[0] in above else (v for v in op.operands if v not in inside)
            if not all(is_static(s) for v in read for s in from_mlir(v).shape):
                return None
        return Turn(run, across)


def _run(perm: Sequence[int], shape: Sequence[sympy.Expr], dims: Sequence[int]) -> tuple[int, ...]:
    """The dims of a transposed value whose elements follow each other in its operand, if all of them are kept; else none."""
    last = list(perm).index(len(perm) - 1)
    first = last
    while first > 0 and first - 1 not in dims and perm[first - 1] == perm[first] - 1:
        first -= 1
    return () if last in dims or all(shape[d] == 1 for d in range(first, last + 1)) else tuple(range(first, last + 1))


def _plain(v: Value) -> bool:
    return not (from_mlir(v).dtype.is_bool or from_mlir(v).dtype.is_complex)


def _operands_of(k: GroupKernel, ops: Sequence[Any]) -> Iterator[Value]:
    """The values of a group that `ops` are computed from."""
    made = {v: op for op in k.ops for v in op.results}
    todo = [v for op in ops for v in op.operands]
    while todo:
        v = todo.pop()
        if v in made:
            yield v
            todo += made[v].operands


class TurnedStores:
    """Results of some positions, `width` at most, by a vector of the dim `across`: collected in scratch, then stored transposed."""

    def __init__(self, k: GroupKernel, turn: Turn, shape: Sequence[sympy.Expr], width: int) -> None:
        self.k, self.turn, self.shape, self.width = k, turn, shape, width
        self.row: V | None = None  # of the block, in `across`
        self.at = sympy.Integer(0)  # where scratch begins

    @property
    def value_bytes(self) -> int:
        """Scratch of a stored value."""
        return self.k.fn.lanes * self.width * 8

    def _place(self, number: int, row: V, column: V | int, elem: str) -> V:
        fn = self.k.fn
        base = fn.gep(fn.args[4], fn.i64(self.k.em.size(self.at + number * self.value_bytes)), "i8")
        return fn.gep(base, fn.add(fn.mul(row, self.width), column), elem)

    def keep(self, number: int, x: V, way: int) -> None:
        """Keeps a vector of positions of the stored value `number`, of the current row."""
        assert self.row is not None
        fn = self.k.fn
        x = x if x.lanes else fn.splat(x)
        fn.store(x, self._place(number, self.row, way * fn.lanes, x.elem))

    def write(self, values: Sequence[Value], at: dict[int, Index], first: V, vectors: int, start: V) -> None:
        """Stores what is kept of `values`: rows from `start` on of `vectors` vectors of positions from `first` on; `at`: the
        position in all other dims."""
        fn, em, turn = self.k.fn, self.k.em, self.turn
        sizes = [self.shape[d] for d in turn.run]
        n, depth = fn.i64(em.size(product(sizes))), fn.i64(em.size(self.shape[turn.across]))
        stride = em.size(product(self.shape[turn.run[-1] + 1 :]))
        positions, em.mask = em.mask, None  # vectors stand across from here on
        whole = is_static(self.shape[turn.across]) and int(self.shape[turn.across]) % fn.lanes == 0
        inside = None if whole else fn.tail_mask(fn.sub(depth, start))
        with fn.loop(0, vectors) as way, em.scope():
            column = fn.mul(way.iv, fn.lanes)
            position = fn.add(first, column)
            for number, v in enumerate(values):
                dtype = from_mlir(v).dtype
                block = [
                    fn.load(self._place(number, fn.i64(j), column, dtype.register), fn.vec(dtype.register)) for j in range(fn.lanes)
                ]
                here = dict(zip(turn.run, em.split(Index(position), sizes), strict=True))
                index = {**at, **here, turn.across: Index(start, 1, multiple=fn.lanes)}
                to = em.flatten([index.get(d, em.zero) for d in range(len(self.shape))], self.shape)
                p = self.k.result_pointer(self.k.yields.index(v))
                for r, x in enumerate(transpose_block(fn, block)):
                    mask = inside
                    if positions is not None:
                        mine = fn.splat(fn.cmp("lt", fn.add(position, r), n))
                        mask = mine if mask is None else fn.and_(mine, mask)
                    with em.scope(mask):
                        em.store(x, p, dtype, em.offset(to, fn.mul(fn.i64(stride), r)))
        em.mask = positions
