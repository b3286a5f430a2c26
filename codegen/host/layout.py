"""Assigns memory to the values of a planned module: outputs, arena buffers with lifetimes, and mere aliases."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import sympy

from dhlo.codegen.host.control import Spare
from dhlo.codegen.host.program import Layout
from dhlo.errors import InternalError
from dhlo.ir.dialect import Kind, defining
from dhlo.ir.ops.control import Cond, Group, While, new_symbols, yielded
from dhlo.ir.symbols import symbols_of
from dhlo.ir.types import from_mlir
from dhlo.shape_infer.buffers import Buffer, aligned, plan_arena
from dhlo.shape_infer.in_place import in_place
from dhlo.shape_infer.views import strided

__all__ = ["lay_out", "walk"]

FIRST_DYNAMIC_SEGMENT = 2


def walk(block: Any) -> Iterator[Any]:
    """Operations of a block and of the regions of its control-flow ops, in execution order; terminators left out."""
    for op in list(block.operations)[:-1]:
        yield op
        if op.kind is Kind.CONTROL:
            for region in op.regions:
                yield from walk(region.blocks[0])


def lay_out(
    block: Any, steps: Mapping[Any, Any], ranges: Mapping[str, tuple[int | None, int | None]], updates: Mapping[int, str | int]
) -> Layout:
    """The layout of a function's body. `steps` gives the workspace that groups need while they run; `updates` are the results
    that aren't outputs, but the new content of a state (by name) or an argument (by number)."""
    ops = list(walk(block))
    numbers = {op.operation: n for n, op in enumerate(ops)}
    alias, offsets = _aliases(ops)
    written = in_place(block, updates)

    def base(v: Any) -> Any:
        return alias.get(v, v)

    outputs: dict[Any, list[int]] = {}
    news: list[tuple[str | int, Any]] = []
    returned = list(list(block.operations)[-1].operands)
    for i, v in enumerate(returned):
        if i in updates:
            news.append((updates[i], base(v)))
        else:
            outputs.setdefault(base(v), []).append(i - sum(k < i for k in updates))
    control = _Control(block, ops, numbers, base)
    bound = set(outputs) | control.bound | set(written)
    last = _last_uses(ops, numbers, base) | {v: len(ops) for _, v in news}
    control.extend(last)
    arena: dict[Any, Buffer] = {}
    defined = control.defined
    epochs: dict[int, list[Buffer]] = {-1: []}
    conditional: set[Buffer] = set()

    def add(key: Any, b: Buffer) -> None:
        arena[key] = b
        if any(n < b.first <= end for n, end in control.ends.items()):
            conditional.add(b)
        epochs.setdefault(max((defined.get(s, -1) for s in symbols_of(b.bytes)), default=-1), []).append(b)

    for op in ops:
        n = numbers[op.operation]
        end = control.ends.get(n, n) if isinstance(op, While) else n  # a loop's buffers are in use from its start to its end
        for k, v in enumerate(op.results):
            if op.kind in (Kind.GROUP, Kind.SYMBOL, Kind.CONTROL) and v not in bound and v not in control.late:
                add(v, Buffer(f"{op.OPERATION_NAME}{n}.{k}", aligned(from_mlir(v).bytes), n, max(end, last.get(v, n))))
            if isinstance(op, While):
                add(Spare(v), Buffer(f"{op.OPERATION_NAME}{n}.{k}.spare", aligned(from_mlir(v).bytes), n, end))
        if isinstance(op, Group) and steps[op.operation].workspace != 0:
            add(op.operation, Buffer(f"workspace{n}", aligned(steps[op.operation].workspace), n, n))
    order = sorted(epochs)
    samples = [lambda name, t=t, p=p: _sample(name, t, p, ranges) for t in _TYPICAL for p in _PROPORTIONS]
    plans = [(0 if e == -1 else FIRST_DYNAMIC_SEGMENT + k, plan_arena(epochs[e], samples)) for k, e in enumerate(order)]
    ready: dict[int, list[int]] = {}
    for k, e in enumerate(order):
        ready.setdefault(e, []).append(k)
    return Layout(
        outputs, arena, alias, offsets, plans, ready, numbers=numbers, updates=news, written=written, conditional=conditional
    )


# Sizes that arrangements of the arena are made for, the usual ones first, and by how much symbols differ from each other there.
_TYPICAL, _PROPORTIONS = (48, 512, 8, 128, 24), (1, 8)


def _sample(name: str, typical: int, proportion: int, ranges: Mapping[str, tuple[int | None, int | None]]) -> int:
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
                raise InternalError(f"{op.OPERATION_NAME} outside a group is not a plain view")
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
    bound    values that are written where the surrounding operation wants them
    late     results of branches whose sizes only the branch knows: they stay where it computed them
    """

    def __init__(self, block: Any, ops: list[Any], numbers: Mapping[Any, int], base: Callable[[Any], Any]) -> None:
        self.base, self.numbers = base, numbers
        self.ops = [op for op in ops if isinstance(op, (Cond, While))]
        self.ends = {
            numbers[op.operation]: max(
                [numbers[op.operation], *(numbers[x.operation] for r in op.regions for x in walk(r.blocks[0]))]
            )
            for op in self.ops
        }
        self.defined: dict[str, int] = {}
        self.late: set[Any] = set()
        self.bound: set[Any] = set()
        self._define(block, {s for v in block.arguments for e in from_mlir(v).shape for s in symbols_of(e)})
        for op in self.ops:
            for region in op.regions[1:] if isinstance(op, While) else op.regions:
                self.bound |= {base(x) for v, x in zip(op.results, yielded(region), strict=True) if v not in self.late}

    def _define(self, block: Any, known: set[str]) -> None:
        known = set(known)
        for op in list(block.operations)[:-1]:
            if isinstance(op, (Cond, While)):
                for region in op.regions:
                    self._define(region.blocks[0], known)
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
                test = list(walk(op.regions[0].blocks[0]))
                given = self.base(yielded(op.regions[0])[0])
                last[given] = max(last.get(given, 0), *(self.numbers[x.operation] for x in test), n)
                inside = [x for r in op.regions for x in walk(r.blocks[0])]
                for v in {self.base(v) for x in inside for v in _read(x)}:
                    made = defining(v)
                    if made is not None and self.numbers.get(made.operation, -1) < n:
                        last[v] = max(last.get(v, 0), end)
            for v, region in ((v, r) for v in op.results if v in self.late for r in op.regions):
                given = self.base(yielded(region)[list(op.results).index(v)])
                last[given] = max(last.get(given, 0), last.get(v, 0), end)
