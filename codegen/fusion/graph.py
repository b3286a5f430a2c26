"""The block being fused: ops by number, dependencies as bit sets, and the units that become groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dhlo.dialect import Kind

__all__ = ["Graph", "Unit", "bits", "kind_of"]


@dataclass
class Unit:
    """Ops that will form one group, in program order, and the op that shapes it."""

    anchor: Kind | None
    ops: list[int]
    outputs: list[Any] = field(default_factory=list)


class Graph:
    """A block's ops by number, with what each depends on as bit sets; merged units depend on what any of their ops does."""

    def __init__(self, block: Any) -> None:
        self.ops = [op for op in block.operations]
        # Operations hash by content, which changes as operands do; values hash by identity.
        self._by_value = {v: n for n, op in enumerate(self.ops) for v in op.results}
        self._silent = [n for n, op in enumerate(self.ops) if not op.results]
        self.unit: dict[int, Unit] = {}
        self.stored: dict[Any, Any] = {}  # value -> the group result that holds it, once the group is made
        self.above = [0] * len(self.ops)
        self.refresh(0)

    def producer(self, v: Any) -> int | None:
        return self._by_value.get(v)

    def number(self, op: Any) -> int | None:
        """The number of an op of the block."""
        if op.results:
            return self._by_value.get(op.results[0])
        return next((n for n in self._silent if self.ops[n].operation == op.operation), None)

    def inputs(self, n: int) -> list[Any]:
        """Operands, including what regions capture from this block."""
        op = self.ops[n]
        found = list(op.operands)
        for region in op.regions:
            for block in region.blocks:
                for inner in block.operations:
                    found += captures(inner)
        return found

    def users(self, v: Any) -> list[int]:
        out = []
        for use in v.uses:
            op = use.owner.operation
            n = self.number(op)
            while n is None:  # inside a region
                op = op.operation.parent
                n = self.number(op)
            if n not in out:
                out.append(n)
        return sorted(out)

    def refresh(self, start: int) -> None:
        """Recomputes dependencies of ops from `start` on."""
        for n in range(start, len(self.ops)):
            bits = 0
            for v in self.inputs(n):
                p = self.producer(v)
                if p is not None:
                    bits |= self.above[p] | (1 << p)
            self.above[n] = bits
        for _ in range(2):  # a unit's members share their dependencies; twice settles chains of units
            changed = False
            for u in {id(u): u for u in self.unit.values()}.values():
                bits = 0
                for n in u.ops:
                    bits |= self.above[n]
                for n in u.ops:
                    if self.above[n] != bits:
                        self.above[n], changed = bits, True
            if not changed:
                break
            for n in range(start, len(self.ops)):
                bits = self.above[n]
                for v in self.inputs(n):
                    p = self.producer(v)
                    if p is not None:
                        bits |= self.above[p] | (1 << p)
                self.above[n] = bits


def captures(op: Any) -> list[Any]:
    found = list(op.operands)
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                found += captures(inner)
    return found


def bits(ops: Iterable[int]) -> int:
    out = 0
    for n in ops:
        out |= 1 << n
    return out


def kind_of(op: Any) -> Kind:
    """The op's kind; terminators of other dialects act like control."""
    return getattr(op, "kind", Kind.CONTROL)
