"""The block being fused: ops by number, dependencies as bit sets, and the units that become groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any

from dhlo.ir.collectives import has_collectives
from dhlo.ir.dialect import Kind, defining
from dhlo.ir.function import updates_of
from dhlo.ir.handles import Block, Value
from dhlo.ir.ops.control import new_symbols
from dhlo.ir.ops.lookup import Scatter, UpdateSlice
from dhlo.ir.ops.movement import Reshape
from dhlo.ir.ops.recurrence import Recurrence
from dhlo.ir.types import from_mlir

__all__ = ["Graph", "InOrder", "Members", "Unit", "kind_of"]


@dataclass
class Unit:
    """Ops that will form one group, in program order, and the op that shapes it."""

    anchor: Kind | None
    ops: list[int]
    outputs: list[Any] = field(default_factory=list)


class Graph:
    """A block's ops by number, with what each depends on as bit sets; merged units depend on what any of their ops does."""

    def __init__(self, block: Block, known: set[str]) -> None:
        """`known` are the symbols that have a value where the block begins."""
        self.ops = [op for op in block.operations]
        self.operands = [list(op.operands) for op in self.ops]  # before groups get copies of what they read
        # Operations hash by content, which changes as operands do; values hash by identity.
        self._by_value = {v: n for n, op in enumerate(self.ops) for v in op.results}
        self._silent = [n for n, op in enumerate(self.ops) if not op.results]
        self.unit: dict[int, Unit] = {}
        self.stored: dict[Any, Any] = {}  # value -> the group result that holds it, once the group is made
        self._users: dict[Any, tuple[int, ...]] = {}
        self._definers = _definers(self.ops, known)
        self.sources = [self._sources(n) for n in range(len(self.ops))]
        for n, readers in _overwritten(self, block):
            self.sources[n] = sorted({*self.sources[n], *readers})
        for before, n in pairwise(n for n, op in enumerate(self.ops) if has_collectives(op)):
            self.sources[n] = sorted({*self.sources[n], before})
        self._readers: list[list[int]] = [[] for _ in self.ops]
        for n, sources in enumerate(self.sources):
            for p in sources:
                self._readers[p].append(n)
        self._shared = list(range(len(self.ops)))  # of each op the first of its unit: what they depend on is kept there
        self._above = [0] * len(self.ops)
        for n, sources in enumerate(self.sources):
            for p in sources:
                self._above[n] |= self._above[p] | (1 << p)

    def above(self, n: int) -> int:
        """What op n and its unit depend on, as a bit set."""
        return self._above[self._shared[n]]

    def producer(self, v: Value) -> int | None:
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

    def _sources(self, n: int) -> list[int]:
        """Ops that have to run before op n: those that make its operands, and those that define the symbols it mentions."""
        found = {p for v in self.inputs(n) if (p := self.producer(v)) is not None}
        if self._definers:
            found |= {d for s in _mentioned(self.ops[n]) if (d := self._definers.get(s, n)) != n}
        return sorted(found)

    def users(self, v: Value) -> tuple[int, ...]:
        """Ops that read a value of the block, themselves or in a region, in order; as long as no group is made."""
        if v not in self._users:
            self._users[v] = self._find_users(v)
        return self._users[v]

    def _find_users(self, v: Value) -> tuple[int, ...]:
        out = set()
        for use in v.uses:
            op = use.owner.operation
            while op is not None and self.number(op) is None:  # inside a region; outside of the block, if the value is too
                op = op.operation.parent
            n = None if op is None else self.number(op)
            if n is not None:
                out.add(n)
        return tuple(sorted(out))

    def merge(self, unit: Unit) -> None:
        """Makes a unit of its ops: its members share what they depend on, and pass it on."""
        for n in unit.ops:
            self.unit[n] = unit
        if len(unit.ops) == 1:
            return
        first = unit.ops[0]
        for n in unit.ops[1:]:
            self._above[first] |= self._above[n]
            self._shared[n] = first
        changed = [first]
        while changed:  # in order, so that most ops change once
            n = heappop(changed)
            for m in self.unit[n].ops if n in self.unit else (n,):
                more = self._above[n] | 1 << m
                for r in map(self._shared.__getitem__, self._readers[m]):
                    if self._above[r] | more != self._above[r]:
                        self._above[r] |= more
                        if r not in changed:
                            heappush(changed, r)


class InOrder:
    """Numbers of ops, each once, in the program's order; more may be added on the way, and those before the last are left out."""

    def __init__(self, ops: Iterable[int] = (), after: int = -1) -> None:
        self._at = after
        self._todo: list[int] = []
        self.add(ops)

    def add(self, ops: Iterable[int]) -> None:
        for n in ops:
            if n > self._at:
                heappush(self._todo, n)

    def next(self) -> int | None:
        while self._todo:
            n = heappop(self._todo)
            if n > self._at:
                self._at = n
                return n
        return None


class Members:
    """Ops that are to share a unit: which of their values others read, and what they depend on, kept up to date. As long as no
    unit is made meanwhile."""

    def __init__(self, g: Graph, first: int) -> None:
        self.g = g
        self.ops: set[int] = set()
        self.bits = 0  # the ops, as a bit set
        self.above = 0  # what any of them depends on
        self.open: dict[Any, None] = {}  # values that others read, or nobody
        self.read: set[Any] = set()  # those of them that others read
        self._outside: dict[Any, int] = {}  # of each value, how many others read it
        self.add(first)

    def add(self, n: int) -> None:
        g = self.g
        self.ops.add(n)
        self.bits |= 1 << n
        self.above |= g.above(n)
        for v in g.ops[n].results:
            self._count(v, sum(u not in self.ops for u in g.users(v)))
        for v in set(g.operands[n]):
            if v in self._outside:
                self._count(v, self._outside[v] - 1)

    def drop_last(self, n: int) -> None:
        """Takes out the last of the ops, in the program's order, which none of the others reads."""
        self.ops.remove(n)
        for v in self.g.ops[n].results:
            self._outside.pop(v)
            self.open.pop(v, None)
            self.read.discard(v)
        for v in set(self.g.operands[n]):
            if v in self._outside:
                self._count(v, self._outside[v] + 1)

    def _count(self, v: Value, outside: int) -> None:
        self._outside[v] = outside
        if outside or not self.g.users(v):
            self.open[v] = None
        else:
            self.open.pop(v, None)
        (self.read.add if outside else self.read.discard)(v)

    def closes_cycle(self, n: int) -> bool:
        """Whether op n reads what depends on these ops and isn't one of them."""
        return any(p not in self.ops and self.g.above(p) & self.bits for p in self.g.sources[n])


def _overwritten(g: Graph, block: Block) -> list[tuple[int, set[int]]]:
    """Writes of parts of state and arguments, and who reads the content before: it comes first, so that the write can be in place.
    Those who read it beside what was written can't."""
    out = []
    for i in updates_of(block):
        v = g.ops[-1].operands[i]
        while isinstance(op := defining(v), (Scatter, UpdateSlice, Recurrence, Reshape)):
            n = g.producer(v)
            if n is not None and not isinstance(op, Reshape):
                out.append((n, _readers(g, op.operands[0], n)))
            v = op.operands[0]
    return out


def _readers(g: Graph, v: Value, before: int) -> set[int]:
    """Ops before a number that read v, directly or through what is computed on demand."""
    found: set[int] = set()
    todo = [v]
    while todo:
        for n in g.users(todo.pop()):
            if n < before and n not in found:
                found.add(n)
                if kind_of(g.ops[n]).pullable:
                    todo += g.ops[n].results
    return found


def _definers(ops: list[Any], known: set[str]) -> dict[str, int]:
    """The number of the op that gives each symbol its value."""
    out: dict[str, int] = {}
    for n, op in enumerate(ops):
        out |= dict.fromkeys(new_symbols(op, known | set(out)), n)
    return out


def _mentioned(op: Any) -> set[str]:
    """Symbols in the attributes and result types of an op and of what is in its regions."""
    names: set[str] = op.mentions() if hasattr(op, "mentions") else set()
    names |= {s for v in op.results for s in from_mlir(v).symbols}
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                names |= _mentioned(inner)
    return names


def captures(op: Any) -> list[Any]:
    found = list(op.operands)
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                found += captures(inner)
    return found


def kind_of(op: Any) -> Kind:
    """The op's kind; terminators of other dialects act like control."""
    return getattr(op, "kind", Kind.CONTROL)
