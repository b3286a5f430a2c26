"""What rows of a group's results share: indices by which lanes look elements up, and what is the same in all rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.elementwise.lines import line
from dhlo.codegen.families.kernel import GroupKernel
from dhlo.ir.dialect import attr
from dhlo.ir.ops.movement import Broadcast, Take
from dhlo.ir.rising import rises
from dhlo.ir.types import from_mlir

__all__ = ["ROWS", "Shared"]

ROWS = 8
"""How many rows an item has, where they share something: what finding an index costs is little beside that many looked up by it."""


@dataclass
class Shared:
    """Values of a group that are found once for several rows of its results, a vector at a time.

    `takes` look up neighbours by an index for each place along the lanes: reading it, finding whether it is in range and whether a
    vector holds all that its lanes want takes longer than looking up does. (What is looked up far and wide is found soonest row
    after row, whose lines hardware fetches ahead.) `spread` are read from memory and are the same in all rows.
    """

    k: GroupKernel
    shape: tuple[sympy.Expr, ...]
    lane: int
    takes: list[Take]
    spread: list[Broadcast]

    @staticmethod
    def of(k: GroupKernel, shape: Sequence[sympy.Expr], lane: int) -> Shared | None:
        """Those of a group with results of this shape, whose vectors run along dim `lane`; None if it looks up nothing so."""

        def along(op: Any) -> bool:
            made = from_mlir(op.results[0]).shape
            if len(made) != len(shape) or made[lane] != shape[lane]:
                return False
            # Where it has no elements, as a part of a join may, no index is asked for.
            return all(a == b or a.is_Integer and a > 0 for a, b in zip(made, shape, strict=True))

        ops = [op for op in k.ops if along(op)]
        takes = [op for op in ops if isinstance(op, Take) and attr(op, "at") == lane and _neighbours(op)]
        if not takes:
            return None
        spread = [
            op
            for op in ops
            if isinstance(op, Broadcast)
            and lane in attr(op, "dims")
            and not k.em.computed(op.operands[0])
            and _row(op.operands[0], attr(op, "dims").index(lane), shape[lane])
        ]
        return Shared(k, tuple(shape), lane, takes, spread)

    def in_rows(self, at: dict[int, Index], dim: int, store: Callable[[dict[int, Index]], None]) -> Callable[[Index], None]:
        """What finds them at a vector of places along the lanes and then calls `store` with the places in each row of the item, of
        whose `dim` `at` has the number of a group of rows."""
        em, fn = self.k.em, self.k.fn
        here = {d: i for d, i in at.items() if d != dim}
        first = fn.mul(em.position(at[dim]), ROWS)
        last = fn.min(fn.add(first, ROWS), fn.i64(em.size(self.shape[dim])))

        def body(i: Index) -> None:
            self._compute({**here, self.lane: i})
            with fn.loop(first, last) as row, em.scope():
                store({**here, dim: Index(row.iv), self.lane: i})

        return body

    def _compute(self, at: dict[int, Index]) -> None:
        """Finds them in the emitter's scope."""
        em = self.k.em
        for op in self.takes:
            for v, d in zip(list(op.operands)[1:], attr(op, "dims"), strict=True):
                if attr(op, "wrap") or line(em, v, [at[self.lane]]) is None:
                    em.lookup(em.value(v, [at[self.lane]]), from_mlir(op.operands[0]).shape[d], op)
        for b in self.spread:
            em.value(b.operands[0], b.source(em, [at.get(d, em.zero) for d in range(len(self.shape))]))


def _neighbours(op: Take) -> bool:
    """Does it look up elements near each other, by one index for each place?"""
    index = list(op.operands)[1:]
    return from_mlir(index[0]).rank == 1 and any(map(rises, index))


def _row(v: Any, dim: int, size: sympy.Expr) -> bool:
    """Does a value have that dim of this size, and no other?"""
    sizes = from_mlir(v).shape
    return all(n == (size if d == dim else 1) for d, n in enumerate(sizes))
