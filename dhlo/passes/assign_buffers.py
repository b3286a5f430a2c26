"""Gives each value of a planned module its memory, and arena segments their layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import sympy

from dhlo.errors import CompileError
from dhlo.ir.dialect import Kind, attr, build, defining, is_size
from dhlo.ir.function import Bounds, bodies, hints_of, ranges_of, updates_of, walk
from dhlo.ir.memory import set_memory
from dhlo.ir.mlir import ir
from dhlo.ir.ops.control import Cond, Group, While, new_symbols, yielded
from dhlo.ir.ops.host import CONTRACT, PLACED, Alloc, Arena, Arrange, Plan
from dhlo.ir.symbols import parse, show, symbols_of
from dhlo.ir.types import from_mlir
from dhlo.shape_infer.buffers import Buffer, aligned, plan_arena
from dhlo.shape_infer.in_place import in_place
from dhlo.shape_infer.views import strided

__all__ = ["assign_buffers", "steps"]

FIRST_DYNAMIC_SEGMENT = 2  # segment 1 holds dense copies of arguments


def assign_buffers(module: Any) -> None:
    """Writes `memory` beside every op that makes a value, and how arena segments are laid out: one segment for what the arguments
    tell the size of, and one after each op that defines a symbol that sizes depend on."""
    ranges, hints = ranges_of(module), hints_of(module)
    for block in bodies(module)[:1]:
        if not any(isinstance(op, Plan) for op in block.operations):
            _Assignment(block, ranges, hints).write()


def steps(block: Any) -> list[Any]:
    """The ops of a function by the number of their step, in which lifetimes of buffers are given."""
    return [op for op in walk(block) if op.kind is not Kind.HOST and not isinstance(op, (*CONTRACT, *PLACED))]


class _Assignment:
    """The memory of one function's values."""

    def __init__(self, block: Any, ranges: Mapping[str, Bounds], hints: Mapping[str, int]) -> None:
        self.block, self.ranges, self.hints = block, ranges, hints
        self.ops = steps(block)
        self.numbers = {op.operation: n for n, op in enumerate(self.ops)}
        self.alias, self.offsets = _aliases(self.ops)
        self.updates = updates_of(block)
        self.written = in_place(block, self.updates)
        self.control = _Control(block, self.ops, self.numbers, self.base)
        self.outputs: dict[Any, list[int]] = {}
        returned = list(list(block.operations)[-1].operands)
        for i, v in enumerate(returned):
            if i not in self.updates:
                self.outputs.setdefault(self.base(v), []).append(i - sum(k < i for k in self.updates))
        self.last = _last_uses(self.ops, self.numbers, self.base) | {self.base(returned[i]): len(self.ops) for i in self.updates}
        self.control.extend(self.last)
        self.epochs: dict[int, list[Buffer]] = {-1: []}  # by the op after which their sizes are known
        self.conditional: set[Buffer] = set()
        self.in_place_of = {new: target for new, target in self._targets()}

    def base(self, v: Any) -> Any:
        return self.alias.get(v, v)

    def _targets(self) -> Iterator[tuple[Any, Mapping[str, Any]]]:
        """For values that are written over what they replace part of: what that is, a state or an argument."""
        for v in self.written:
            old = v
            while old in self.written:
                old = self.written[old]
                while (made := defining(old)) is not None and made.kind is Kind.MOVEMENT:
                    old = made.operands[0]
            made = defining(old)
            arguments = list(self.block.arguments)
            yield v, {"argument": arguments.index(old)} if made is None else {"state": attr(made, "name_")}

    # ------------------------------------------------------------------ buffers
    def _buffer(self, name: str, size: sympy.Expr, first: int, last: int) -> Buffer:
        b = Buffer(name, aligned(size), first, last)
        if any(n < first <= end for n, end in self.control.ends.items()):
            self.conditional.add(b)
        self.epochs.setdefault(max((self.control.defined.get(s, -1) for s in symbols_of(b.bytes)), default=-1), []).append(b)
        return b

    def write(self) -> None:
        places: list[tuple[Any, str, list[Any]]] = []  # op, attribute, a dictionary or buffer for each entry
        for op in self.ops:
            n, name = self.numbers[op.operation], op.OPERATION_NAME
            end = (
                self.control.ends.get(n, n) if isinstance(op, While) else n
            )  # a loop's buffers are in use from its start to its end
            rows: list[Any] = []
            spare: list[Any] = []
            for k, v in enumerate(op.results):
                rows.append(self._place(op, v, f"{name}{n}.{k}", n, end))
                if isinstance(op, While):
                    spare.append(self._buffer(f"{name}{n}.{k}.spare", from_mlir(v).bytes, n, end))
            if any(row != {} for row in rows):
                places.append((op, "memory", rows))
            if spare:
                places.append((op, "spare", spare))
            if isinstance(op, Group) and "workspace" in op.operation.attributes:
                if not is_size(op.operation.attributes["workspace"]):
                    raise CompileError("the workspace of a group is a size as text")
                size = parse(attr(op, "workspace"))
                places.append((op, "workspace_memory", [self._buffer(f"workspace{n}", size, n, n)]))
        number: dict[Buffer, int] = {b: n for n, b in enumerate(b for e in sorted(self.epochs) for b in self.epochs[e])}
        for op, what, given in places:
            set_memory(op, [{"buffer": number[x]} if isinstance(x, Buffer) else x for x in given], what)
        self._segments(number)

    def _place(self, op: Any, v: Any, name: str, n: int, end: int) -> Any:
        """Where a result lives: a buffer of its own, or what `dhlo.ir.memory` says of the others."""
        if v in self.in_place_of:
            return self.in_place_of[v]
        if v in self.outputs:
            return {"outputs": self.outputs[v]}
        if v in self.control.given:
            return {"given": self.control.given[v]}
        if v in self.offsets:
            return {"offset": show(self.offsets[v])}
        if op.kind in (Kind.GROUP, Kind.SYMBOL, Kind.CONTROL) and v not in self.control.late:
            return self._buffer(name, from_mlir(v).bytes, n, max(end, self.last.get(v, n)))
        return {}

    # ------------------------------------------------------------------ segments
    def _segments(self, number: Mapping[Buffer, int]) -> None:
        """The layout of each segment, where its sizes are known."""
        start = next(op for op in self.block.operations if not isinstance(op, CONTRACT))
        staged = next(op for op in self.block.operations if not isinstance(op, (*CONTRACT, *PLACED)))
        samples: list[Callable[[str], int]]
        samples = [partial(_sample, typical=t, proportion=p, ranges=self.ranges) for t in _TYPICAL for p in _PROPORTIONS]
        if self.hints:  # what the user says is usual comes first
            samples.insert(0, lambda name: self.hints.get(name, _sample(name, _TYPICAL[0], _PROPORTIONS[0], self.ranges)))
        with ir.InsertionPoint(start), ir.Location.unknown():
            build(Plan, [], {})
        for k, epoch in enumerate(sorted(self.epochs)):
            segment, buffers = 0 if epoch == -1 else FIRST_DYNAMIC_SEGMENT + k, self.epochs[epoch]
            before = staged if epoch == -1 else _behind(self.ops[epoch])
            with ir.InsertionPoint(before), ir.Location.unknown():
                self._segment(segment, buffers, number, samples)

    def _segment(
        self, segment: int, buffers: Sequence[Buffer], number: Mapping[Buffer, int], samples: Sequence[Callable[[str], int]]
    ) -> None:
        if not buffers:
            return
        for b in buffers:
            attrs = {"name_": b.name, "bytes": show(b.bytes), "first": b.first, "last": b.last}
            build(Alloc, [], {"buffer": number[b], "segment": segment, "conditional": b in self.conditional, **attrs})
        for a in plan_arena(buffers, samples, certain=bool(self.hints)).arrangements:
            below = [[number[x] for x in a.below[b]] for b in a.order]
            build(Arrange, [], {"segment": segment, "order": [number[b] for b in a.order], "below": below})
        build(Arena, [], {"segment": segment})


def _behind(op: Any) -> Any:
    """What comes after an op that defines a symbol, and after the checks of the symbol."""
    ops = list(op.operation.block.operations)
    at = next(k for k, x in enumerate(ops) if x.operation == op.operation)
    return next(x for x in ops[at + 1 :] if not isinstance(x, CONTRACT))


# Sizes that arrangements of the arena are made for, the usual ones first, and by how much symbols differ from each other there.
_TYPICAL, _PROPORTIONS = (48, 512, 8, 128, 24), (1, 8)


def _sample(name: str, typical: int, proportion: int, ranges: Mapping[str, Bounds]) -> int:
    """A size of about `typical`, different for each symbol; of some symbols smaller by `proportion`."""
    lo, hi = ranges.get(name, (0, None))
    mark = sum(map(ord, name))
    value = typical + typical * (mark % 37) // 64
    if mark % 2:
        value = max(1, value // proportion)
    return max(lo or 0, min(value, hi if hi is not None else value))


def _aliases(ops: list[Any]) -> tuple[dict[Any, Any], dict[Any, sympy.Expr]]:
    """Views outside groups stand for the memory that they show, from an offset on."""
    bases: dict[Any, Any] = {}
    offsets: dict[Any, sympy.Expr] = {}
    for op in ops:
        if op.kind.pullable:
            v = op.results[0]
            view = strided(v, lambda x: defining(x) is None or not defining(x).kind.pullable)
            if view is None or not view.is_dense:
                users = [getattr(u.owner.operation.opview, "kind", Kind.CONTROL) for u in v.uses]
                if users and all(kind.pullable for kind in users):
                    continue  # only a step on the way to another view
                raise CompileError(
                    f"{op.OPERATION_NAME} outside a group is not a plain view, and has no memory", hint="run `fuse` first"
                )
            bases[v], offsets[v] = view.base, view.offset
    return bases, offsets


def _last_uses(ops: list[Any], numbers: Mapping[Any, int], base: Any) -> dict[Any, int]:
    """The last operation that reads each value; a use after or inside a branch counts where it stands."""
    last: dict[Any, int] = {}
    for op in ops:
        for v in _read(op):
            last[base(v)] = max(last.get(base(v), 0), numbers[op.operation])
    return last


def _read(op: Any) -> list[Any]:
    """Values that an operation reads itself; what its regions read is theirs, unless it is a group."""
    inside = op.operation.regions[0].blocks[0].operations if isinstance(op, Group) else []
    return [*op.operands, *(v for inner in inside for v in inner.operands)]


class _Control:
    """What branches and loops mean for memory.

    ends     number of the last operation in each of them, by its own number
    defined  number of the operation that gives a symbol its value; those of the inputs' sizes are left out
    given    values that are written where the surrounding operation wants them, and which of its results they are
    late     results of branches whose sizes only the branch knows: they stay where it computed them
    """

    def __init__(self, block: Any, ops: list[Any], numbers: Mapping[Any, int], base: Callable[[Any], Any]) -> None:
        self.base, self.numbers = base, numbers
        self.ops = [op for op in ops if isinstance(op, (Cond, While))]
        self.ends = {
            numbers[op.operation]: max(
                [numbers[op.operation], *(numbers[x.operation] for r in op.regions for x in self._inside(r))]
            )
            for op in self.ops
        }
        self.defined: dict[str, int] = {}
        self.late: set[Any] = set()
        self.given: dict[Any, int] = {}
        self._define(block, {s for v in block.arguments for e in from_mlir(v).shape for s in symbols_of(e)})
        for op in self.ops:
            for region in op.regions[1:] if isinstance(op, While) else op.regions:
                pairs = enumerate(zip(op.results, yielded(region), strict=True))
                self.given |= {base(x): k for k, (v, x) in pairs if v not in self.late}

    def _inside(self, region: Any) -> list[Any]:
        """The numbered operations of a region."""
        return [op for op in walk(region.blocks[0]) if op.operation in self.numbers]

    def _define(self, block: Any, known: set[str]) -> None:
        known = set(known)
        for op in list(block.operations)[:-1]:
            if isinstance(op, (Cond, While)):
                for region in op.regions:
                    self._define(region.blocks[0], known)
            if op.operation not in self.numbers:
                continue
            names = new_symbols(op, known)
            known |= set(names)
            self.defined |= dict.fromkeys(names, self.numbers[op.operation])
            if isinstance(op, Cond):
                self.late |= {v for v in op.results if any(not symbols_of(e).isdisjoint(names) for e in from_mlir(v).shape)}

    def extend(self, last: dict[Any, int]) -> None:
        """Lengthens lifetimes: what regions give is read at their ends, what a loop reads from outside in each of its turns."""
        for op in self.ops:
            n, end = self.numbers[op.operation], self.ends[self.numbers[op.operation]]
            if isinstance(op, While):
                test = self._inside(op.regions[0])
                given = self.base(yielded(op.regions[0])[0])
                last[given] = max(last.get(given, 0), *(self.numbers[x.operation] for x in test), n)
                inside = [x for r in op.regions for x in self._inside(r)]
                for v in {self.base(v) for x in inside for v in _read(x)}:
                    made = defining(v)
                    if made is not None and self.numbers.get(made.operation, -1) < n:
                        last[v] = max(last.get(v, 0), end)
            for v, region in ((v, r) for v in op.results if v in self.late for r in op.regions):
                given = self.base(yielded(region)[list(op.results).index(v)])
                last[given] = max(last.get(given, 0), last.get(v, 0), end)
