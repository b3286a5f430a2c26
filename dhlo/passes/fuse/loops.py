"""Which of the remaining values get a buffer: those become loop nests, the others are computed where they are read."""

from __future__ import annotations

from typing import Any

from dhlo.ir.coded import coded, is_stored, only_attended, only_multiplies, stored_image, stored_rows, takes_narrow
from dhlo.ir.dialect import Kind, attr, defining
from dhlo.ir.handles import Value
from dhlo.ir.ops.compute import extra
from dhlo.ir.ops.lookup import Scatter
from dhlo.ir.ops.movement import Broadcast, Full, Reshape, Slice, State, Transpose
from dhlo.ir.types import from_mlir
from dhlo.passes.fuse.cost import CHEAP, Costs, subtree_cost, worth_storing
from dhlo.passes.fuse.graph import Graph, Unit, kind_of
from dhlo.passes.fuse.sites import Sites
from dhlo.shape_infer.operand_views import acceptable_view, irregular_steps
from dhlo.shape_infer.views import same, strided

__all__ = ["BUFFER_KINDS", "make_loops"]

BUFFER_KINDS = (Kind.MATMUL, Kind.ATTENTION, Kind.CONVOLUTION, Kind.WINDOW, Kind.OPAQUE, Kind.SYMBOL, Kind.CONTROL)


def make_loops(g: Graph) -> None:
    """Decides which of the remaining on-demand values get a buffer, and makes loop nests of those."""
    stored: set[Any] = set()
    readers_of: dict[Any, set[int]] = {}
    sites = Sites(g)
    costs: Costs = {}  # operands come later here: what they read is in the units that it will be in
    for n in range(len(g.ops) - 1, -1, -1):
        op = g.ops[n]
        free = n not in g.unit and kind_of(op).pullable
        if free:
            v = op.results[0]
            decoded = coded(v) is not None and only_multiplies(v) or only_attended(v)  # by each of its readers
            decoded = decoded or bool(op.operands) and op.operands[0] in stored and any(_widens(g, n, u) for u in g.users(v))
            worth = g.users(v) and worth_storing(g, op, readers_of.get(v, set()), costs)
            if v in stored or not decoded and (worth or sites.too_many(n)):
                stored.add(v)
                g.unit[n] = Unit(None, [n], [v])
                free = False
        # Who reads the operands: this op's unit, or whoever pulls this op.
        readers = readers_of.get(op.results[0], set()) if free else {id(g.unit[n])} if n in g.unit else {-n - 1}
        sites.add(n, free)
        for v in g.inputs(n):
            readers_of.setdefault(v, set()).update(readers)
        if not free:
            _demand_buffers(g, n, stored, costs)
    while any([_demand_buffers(g, n, stored, costs) for n in range(len(g.ops))]):  # what was stored may stand in the way of a view
        for n in [n for n, op in enumerate(g.ops) if n not in g.unit and op.results and op.results[0] in stored]:
            g.unit[n] = Unit(None, [n], [g.ops[n].results[0]])


def _demand_buffers(g: Graph, n: int, stored: set[Any], costs: Costs) -> bool:
    """Marks what has to be in memory for op n to read it: the operand, or what it is an acceptable view of. Says whether any of
    it wasn't marked yet."""
    op = g.ops[n]
    kind = kind_of(op)
    if kind not in BUFFER_KINDS:
        return False
    before = len(stored)
    operands = _attended(op) if kind is Kind.ATTENTION else g.inputs(n)
    bases: set[Any] = set(operands)  # what the terminator gives must each have memory of its own

    def in_memory(x: Value) -> bool:
        p = g.producer(x)
        return (
            p is None
            or x in stored
            or not kind_of(g.ops[p]).pullable
            or p in g.unit
            or not isinstance(g.ops[p], (Reshape, Transpose, Slice, Broadcast))
        )

    irregular: set[int] = set()
    for k, v in enumerate(operands):
        p = g.producer(v)
        if p is not None and _widens(g, p, n):
            v = g.operands[p][0]
            p = g.producer(v)
        if p is None or p in g.unit or not kind_of(g.ops[p]).pullable:
            continue
        if takes_narrow(op, k) and coded(v) is not None:
            continue
        if kind is Kind.OPAQUE and (op.computes(k) or isinstance(op, Scatter) and _computed_in_write(g, op, k, costs)):
            continue
        view = strided(v, in_memory)
        if view is not None and kind is Kind.MATMUL and len(view.shape) > 4:
            steps = irregular | irregular_steps(view)
            if len(steps) > 1:  # kernels take two batch dims; what is in memory joins with anything
                view = None
            else:
                irregular = steps
        if view is not None and acceptable_view(op, k, view) and n == len(g.ops) - 1:
            owned = view.base not in bases and g.producer(view.base) is not None
            bases.add(view.base)
            if not owned or not same(from_mlir(view.base).numel, from_mlir(v).numel):
                view = None
        if view is None or not acceptable_view(op, k, view):
            stored.add(v)
            continue
        q = g.producer(view.base)
        if q is not None and q not in g.unit and kind_of(g.ops[q]).pullable:
            stored.add(view.base)
    return len(stored) > before


def _computed_in_write(g: Graph, op: Any, k: int, costs: Costs) -> bool:
    """Whether a write by index computes operand k, which isn't in memory, by itself: a constant that it writes onto; what it
    writes, each element of which it needs once, unless that is made of the content that it writes onto, which may be written over;
    indices, if they needn't be computed again for many rows."""
    x, made = op.operands[0], g.ops[g.producer(op.operands[k]) or 0]
    if k == 0:
        return isinstance(made, Full)
    if k < len(op.operands) - 1:
        return len(attr(op, "dims")) == from_mlir(x).rank or subtree_cost(g, made, costs) <= CHEAP
    return not _memory_read(g, op.operands[k]) & _memory_read(g, x)


def _memory_read(g: Graph, v: Value) -> set[Any]:
    """The values in memory that v is computed from, states by name."""
    found: set[Any] = set()
    todo = [v]
    while todo:
        v = todo.pop()
        p = g.producer(v)
        if p is not None and p not in g.unit and kind_of(g.ops[p]).pullable:
            todo += g.operands[p]
        else:
            made = defining(v)
            found.add(attr(made, "name_") if isinstance(made, State) else v)
    return found


def _widens(g: Graph, p: int, n: int) -> bool:
    """Whether op p converts an image that op n, a convolution, widens itself."""
    made = stored_image(g.ops[n])
    return made is not None and p not in g.unit and g.producer(g.operands[n][0]) == p


def _attended(op: Any) -> list[Any]:
    """What attention reads from memory: masks are computed in place, keys and values that a state holds in another form decoded."""
    sinks = [v for v in (extra(op, 1),) if v is not None]
    rows = [stored_rows(op, i) if is_stored(op, i) else None for i in range(3)]
    operands = [v if r is None else r.values for v, r in zip(list(op.operands)[:3], rows, strict=True)]
    return operands + list(op.operands)[3 : op.least] + [r.scale for r in rows if r is not None and r.scale is not None] + sinks
