"""Assigns memory to the values of a planned module: outputs, arena buffers with lifetimes, and mere aliases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dhlo.codegen.host import Layout
from dhlo.codegen.views import strided
from dhlo.dialect import Kind, attr, defining
from dhlo.errors import InternalError
from dhlo.mlir import ir
from dhlo.ops.control import Cond, Group, Item, Nonzero, yielded
from dhlo.shape_infer.buffers import Buffer, aligned, plan_arena
from dhlo.shape_infer.symbols import symbols_of
from dhlo.types import from_mlir

__all__ = ["lay_out", "walk"]

FIRST_DYNAMIC_SEGMENT = 2


def walk(block: Any) -> Iterator[Any]:
    """Operations of a block and of the regions of its control-flow ops, in execution order; terminators left out."""
    for op in list(block.operations)[:-1]:
        yield op
        if op.kind is Kind.CONTROL:
            for region in op.regions:
                yield from walk(region.blocks[0])


def lay_out(block: Any, steps: Mapping[Any, Any], ranges: Mapping[str, tuple[int | None, int | None]],
            states: Mapping[int, str]) -> Layout:
    """The layout of a function's body. `steps` gives the workspace that groups need while they run; `states` names the results
    that are the new content of state, and not outputs."""
    ops = list(walk(block))
    numbers = {op.operation: n for n, op in enumerate(ops)}
    alias = _aliases(ops)
    base = lambda v: alias.get(v, v)  # noqa: E731
    outputs: dict[Any, list[int]] = {}
    updates: list[tuple[str, Any]] = []
    returned = list(list(block.operations)[-1].operands)
    for i, v in enumerate(returned):
        if i in states:
            updates.append((states[i], base(v)))
        else:
            outputs.setdefault(base(v), []).append(i - sum(k < i for k in states))
    bound = set(outputs) | {base(v) for op in ops if isinstance(op, Cond) for r in op.regions for v in yielded(r)}
    last = _last_uses(ops, numbers, base) | {v: len(ops) for _, v in updates}
    arena: dict[Any, Buffer] = {}
    defined = {attr(op, "symbol"): numbers[op.operation] for op in ops if isinstance(op, (Item, Nonzero))}
    epochs: dict[int, list[Buffer]] = {-1: []}

    def add(key: Any, b: Buffer) -> None:
        arena[key] = b
        epochs.setdefault(max((defined.get(s, -1) for s in symbols_of(b.bytes)), default=-1), []).append(b)

    for op in ops:
        n = numbers[op.operation]
        if isinstance(op, (Group, Nonzero, Cond)):
            for k, v in enumerate(op.results):
                if v not in bound:
                    add(v, Buffer(f"{op.OPERATION_NAME}{n}.{k}", aligned(from_mlir(v).bytes), n, max(n, last.get(v, n))))
        if isinstance(op, Group) and steps[op.operation].workspace != 0:
            add(op.operation, Buffer(f"workspace{n}", aligned(steps[op.operation].workspace), n, n))
    order = sorted(epochs)
    samples = [lambda name, typical=t: _sample(name, typical, ranges) for t in (8, 48, 512)]  # type: ignore[misc]
    plans = [(0 if e == -1 else FIRST_DYNAMIC_SEGMENT + k, plan_arena(epochs[e], samples)) for k, e in enumerate(order)]
    ready: dict[int, list[int]] = {}
    for k, e in enumerate(order):
        ready.setdefault(e, []).append(k)
    return Layout(outputs, arena, alias, plans, ready, numbers=numbers, updates=updates)


def _sample(name: str, typical: int, ranges: Mapping[str, tuple[int | None, int | None]]) -> int:
    """A size near a typical one, different for each symbol: what an arrangement of the arena is made for."""
    lo, hi = ranges.get(name, (0, None))
    value = typical + typical * (sum(map(ord, name)) % 37) // 64
    return max(lo or 0, min(value, hi if hi is not None else value))


def _aliases(ops: list[Any]) -> dict[Any, Any]:
    """Views outside groups stand for the memory that they show."""
    out: dict[Any, Any] = {}
    for op in ops:
        if op.kind.pullable:
            v = op.results[0]
            view = strided(v, lambda x: defining(x) is None or not defining(x).kind.pullable)
            if view is None or not view.is_dense or view.offset != 0:
                raise InternalError(f"{op.OPERATION_NAME} outside a group is not a plain view")
            out[v] = view.base
    return out


def _last_uses(ops: list[Any], numbers: Mapping[Any, int], base: Any) -> dict[Any, int]:
    """The last operation that reads each value; a use after or inside a branch counts where it stands."""
    last: dict[Any, int] = {}
    for op in ops:
        n = numbers[op.operation]
        used = list(op.operands)
        if isinstance(op, Group):
            for inner in op.operation.regions[0].blocks[0].operations:
                used += list(inner.operands)
        if isinstance(op, Cond):
            used += [v for r in op.regions for v in yielded(r)]
        for v in used:
            last[base(v)] = max(last.get(base(v), 0), n)
    return last
