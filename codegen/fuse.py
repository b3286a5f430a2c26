"""The fusion pass: gathers ops into `dhlo.group`s, each of which becomes one kernel (or one family's launches).

Works on proven shape relations only. Anchors (reductions, products, attention, convolutions) collect the elementwise work after
them; everything whose elements can be computed on demand is pulled into its consumers, or becomes a loop nest of its own where
that would repeat too much work. What a group stores is what others read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dhlo.codegen.views import View, same, strided
from dhlo.dialect import Kind, attr, build
from dhlo.mlir import ir
from dhlo.ops.compute import Reduce
from dhlo.ops.control import Group, Yield
from dhlo.ops.movement import Broadcast, Full, Iota, Reshape, Slice, Take, Transpose
from dhlo.types import TensorType, from_mlir

__all__ = ["fuse", "reduction_axes"]

# How many simple operations an op costs a vector of elements; what isn't listed counts as one, movement and constants as none.
COST = {"exp": 8, "log": 8, "pow": 16, "tanh": 8, "erf": 8, "sin": 10, "cos": 10, "sigmoid": 8, "div": 3, "sqrt": 3, "rsqrt": 4,
        "remainder": 10, "floordiv": 10, "fmod": 8}
CHEAP = 4  # recomputing this much is better than storing and loading
BUFFER_KINDS = (Kind.MATMUL, Kind.ATTENTION, Kind.CONVOLUTION, Kind.WINDOW, Kind.OPAQUE, Kind.SYMBOL, Kind.CONTROL)


@dataclass
class Unit:
    """Ops that will form one group, in program order, and the op that shapes it."""

    anchor: Kind | None
    ops: list[int]
    outputs: list[Any] = field(default_factory=list)
    views: list[int] = field(default_factory=list)


class _Graph:
    """A block's ops by number, with what each depends on as bit sets; merged units depend on what any of their ops does."""

    def __init__(self, block: Any) -> None:
        self.ops = [op for op in block.operations]
        # Operations hash by content, which changes as operands do; values hash by identity.
        self._by_value = {v: n for n, op in enumerate(self.ops) for v in op.results}
        self._silent = [n for n, op in enumerate(self.ops) if not op.results]
        self.unit: dict[int, Unit] = {}
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
                    found += _captures(inner)
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


def _captures(op: Any) -> list[Any]:
    found = list(op.operands)
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                found += _captures(inner)
    return found


def _bits(ops: Iterable[int]) -> int:
    out = 0
    for n in ops:
        out |= 1 << n
    return out


def cost_of(op: Any) -> int:
    """Rough cost of one vector of results, operands not counted."""
    if op.kind is Kind.ELEMENTWISE:
        return COST.get(op.OPERATION_NAME.removeprefix("dhlo."), 1)
    return 6 if op.kind is Kind.GATHER else 0


def fuse(module: Any) -> None:
    """Rewrites every function (and the regions of control-flow ops) of the module into groups."""
    for f in module.body.operations:
        for block in f.operation.regions[0].blocks:
            _fuse_block(block)


def _fuse_block(block: Any) -> None:
    for op in list(block.operations):
        if op.kind is Kind.CONTROL if hasattr(op, "kind") else False:
            for region in op.regions:
                for inner in region.blocks:
                    _fuse_block(inner)
    g = _Graph(block)
    _anchor_epilogues(g)
    _reductions(g)
    _loops(g)
    _build(g, block)


# ---------------------------------------------------------------------------------------------------- anchors
def _anchor_epilogues(g: _Graph) -> None:
    """Matmul, convolution: the longest run of elementwise ops that ends in a single value of the same shape."""
    for n, op in enumerate(g.ops):
        kind = getattr(op, "kind", None)
        if kind not in (Kind.MATMUL, Kind.CONVOLUTION, Kind.ATTENTION, Kind.WINDOW, Kind.OPAQUE):
            continue
        if kind is Kind.MATMUL or kind is Kind.CONVOLUTION:
            taken, out = _grow_epilogue(g, n)
        else:
            taken, out = [n], list(op.results)
        unit = Unit(kind, taken, out)
        if kind is Kind.ATTENTION:
            _absorb_output_transpose(g, unit)
        for k in unit.ops:
            g.unit[k] = unit
        if len(unit.ops) > 1:
            g.refresh(n)


def _grow_epilogue(g: _Graph, n: int) -> tuple[list[int], list[Any]]:
    root = g.ops[n].results[0]
    shape = from_mlir(root).shape
    taken, best, best_out = {n}, [n], [root]
    frontier = g.users(root)
    while frontier:
        k = frontier.pop(0)
        op = g.ops[k]
        if k in taken or k in g.unit or getattr(op, "kind", None) is not Kind.ELEMENTWISE or from_mlir(op.results[0]).shape != shape:
            continue
        inside = _bits(taken)
        if any(g.producer(v) not in taken and g.producer(v) is not None and (
                g.above[g.producer(v)] | 1 << g.producer(v)) & inside for v in op.operands):  # type: ignore[index,operator]
            continue
        taken.add(k)
        frontier = sorted({*frontier, *g.users(op.results[0])} - taken)
        open_values = [v for t in taken for v in g.ops[t].results if any(u not in taken for u in g.users(v)) or not g.users(v)]
        if len(open_values) == 1:
            best, best_out = sorted(taken), open_values
    return best, best_out


def _absorb_output_transpose(g: _Graph, unit: Unit) -> None:
    """Attention may store its result in another order of dims, so a lone transpose after it is free."""
    users = g.users(unit.outputs[0])
    if len(users) == 1 and isinstance(g.ops[users[0]], Transpose) and attr(g.ops[users[0]], "perm")[-1] == 3:
        unit.ops.append(users[0])
        unit.outputs = list(g.ops[users[0]].results)


# ---------------------------------------------------------------------------------------------------- reductions
def reduction_axes(op: Any, axes: dict[Any, tuple[int | None, ...]], domain: Sequence[Any]) -> tuple[int | None, ...] | None:
    """Which dim of the reduction's domain each dim of `op`'s result follows (None: a unit dim), given those of its operands;
    None if the op rearranges elements in another way."""
    known = [axes[v] for v in op.operands if v in axes]
    shape = from_mlir(op.results[0]).shape
    if op.kind is Kind.ELEMENTWISE:
        return known[0] if all(a == known[0] for a in known) else None
    if isinstance(op, Broadcast):
        dims, out = attr(op, "dims"), []
        src = from_mlir(op.operands[0]).shape
        if len(shape) != len(domain) or any(a != b for a, b in zip(shape, domain, strict=True)):
            return None
        for j in range(len(shape)):
            i = dims.index(j) if j in dims else None
            a = known[0][i] if i is not None else None
            if a is not None and a != j or (a is None and i is not None and src[i] != 1):
                return None
            out.append(j)
        return tuple(out)
    if isinstance(op, Reshape):
        src = from_mlir(op.operands[0]).shape
        if known[0] == tuple(range(len(domain))):  # the whole domain is stored as it is
            return known[0] if shape == src else None
        rest = [a for a, s in zip(known[0], src, strict=True) if s != 1]
        if [s for s in src if s != 1] != [s for s in shape if s != 1]:
            return None
        return tuple(None if s == 1 else rest.pop(0) for s in shape)
    return None


def _reductions(g: _Graph) -> None:
    for n, op in enumerate(g.ops):
        if isinstance(op, Reduce) and n not in g.unit:
            unit = _grow_reduction(g, n)
            for k in unit.ops:
                g.unit[k] = unit
            if len(unit.ops) > 1:
                g.refresh(unit.ops[0])


def _grow_reduction(g: _Graph, seed: int) -> Unit:
    op = g.ops[seed]
    domain, dims = from_mlir(op.operands[0]).shape, attr(op, "dims")
    kept = tuple(d for d in range(len(domain)) if d not in dims)
    full = tuple(range(len(domain)))
    axes: dict[Any, tuple[int | None, ...]] = {op.results[0]: kept}
    taken = {seed}
    _absorb_producers(g, op, taken, axes, domain, full)
    for k in range(seed + 1, len(g.ops)):
        u = g.ops[k]
        sibling = isinstance(u, Reduce) and u.operands[0] == op.operands[0] and attr(u, "dims") == dims  # reads the same rows
        if k in g.unit or k in taken or not (sibling or any(v in axes for v in u.operands)) or kind_of(u) not in (
                Kind.ELEMENTWISE, Kind.MOVEMENT, Kind.REDUCTION):
            continue
        inside = _bits(taken)
        outside = [g.producer(v) for v in u.operands if v not in axes]
        if any(p is not None and (g.above[p] | 1 << p) & inside for p in outside):
            continue
        if isinstance(u, Reduce):
            new = kept if sibling or (attr(u, "dims") == dims and axes[u.operands[0]] == full) else None
        else:
            new = reduction_axes(u, axes, domain)
        if new is None:
            continue
        taken.add(k)
        axes[u.results[0]] = new
        if new == full or isinstance(u, Reduce):
            _absorb_producers(g, u, taken, axes, domain, full)
    ops = sorted(taken)
    return Unit(Kind.REDUCTION, ops, _open(g, ops))


def _absorb_producers(g: _Graph, op: Any, taken: set[int], axes: dict[Any, tuple[int | None, ...]], domain: Sequence[Any],
                      full: tuple[int, ...]) -> None:
    """Elementwise producers of the whole domain that others read too are computed (and stored) here."""
    for v in op.operands:
        p = g.producer(v)
        if p is None or p in taken or p in g.unit or getattr(g.ops[p], "kind", None) is not Kind.ELEMENTWISE:
            continue
        if from_mlir(v).shape != tuple(domain):
            continue
        # nothing taken so far may reach it, and it may reach what is taken only directly
        if g.above[p] & _bits(taken) or any(u not in taken and any(
                g.above[t] >> u & 1 for t in taken) for u in g.users(v) if g.ops[u] != op):
            continue
        taken.add(p)
        axes[v] = full
        _absorb_producers(g, g.ops[p], taken, axes, domain, full)


def _open(g: _Graph, ops: Sequence[int]) -> list[Any]:
    inside = set(ops)
    return [v for n in ops for v in g.ops[n].results if any(u not in inside for u in g.users(v))]


# ---------------------------------------------------------------------------------------------------- loops
def _loops(g: _Graph) -> None:
    """Decides which of the remaining on-demand values get a buffer, and makes loop nests of those."""
    stored: set[Any] = set()
    readers_of: dict[Any, set[int]] = {}
    for n in range(len(g.ops) - 1, -1, -1):
        op = g.ops[n]
        free = n not in g.unit and kind_of(op).pullable
        if free:
            v = op.results[0]
            if v in stored or (g.users(v) and _worth_storing(g, op, readers_of.get(v, set()))):
                stored.add(v)
                g.unit[n] = Unit(None, [n], [v])
                free = False
        # Who reads the operands: this op's unit, or whoever pulls this op.
        readers = readers_of.get(op.results[0], set()) if free else {id(g.unit[n])} if n in g.unit else {-n - 1}
        for v in g.inputs(n):
            readers_of.setdefault(v, set()).update(readers)
        if not free:
            _demand_buffers(g, n, stored)


def kind_of(op: Any) -> Kind:
    """The op's kind; terminators of other dialects act like control."""
    return getattr(op, "kind", Kind.CONTROL)


def _demand_buffers(g: _Graph, n: int, stored: set[Any]) -> None:
    """Marks what has to be in memory for op n to read it: the operand, or what it is an acceptable view of."""
    op = g.ops[n]
    kind = kind_of(op)
    if kind not in BUFFER_KINDS:
        return
    operands = list(op.operands)[:3] if kind is Kind.ATTENTION else g.inputs(n)  # masks are computed in place
    bases: set[Any] = set(operands)  # what the terminator gives must each have memory of its own

    def in_memory(x: Any) -> bool:
        p = g.producer(x)
        return p is None or x in stored or not kind_of(g.ops[p]).pullable or p in g.unit or not isinstance(
            g.ops[p], (Reshape, Transpose, Slice, Broadcast))

    for k, v in enumerate(operands):
        p = g.producer(v)
        if p is None or p in g.unit or not kind_of(g.ops[p]).pullable:
            continue
        view = strided(v, in_memory)
        ok = view is not None and acceptable_view(op, k, view)
        if ok and n == len(g.ops) - 1:
            ok = view.base not in bases and g.producer(view.base) is not None and same(from_mlir(view.base).numel, from_mlir(v).numel)
            bases.add(view.base)
        if not ok:
            stored.add(v)
            continue
        q = g.producer(view.base)
        if q is not None and q not in g.unit and kind_of(g.ops[q]).pullable:
            stored.add(view.base)


def acceptable_view(op: Any, k: int, view: View) -> bool:
    """Whether operand k of an op that reads memory may be this view."""
    kind = kind_of(op)
    if kind is Kind.ATTENTION:
        return view.strides[3] == 1 or view.shape[3] == 1
    if kind is Kind.MATMUL:
        if k == 1 or len(view.shape) == 2 or len(from_mlir(op.operands[1]).shape) > 2:
            return True
        rows = [r for r in zip(view.shape[:-1], view.strides[:-1], strict=True) if r[0] != 1]
        return all(same(a[1], b[1] * b[0]) for a, b in zip(rows, rows[1:], strict=False))
    return view.is_dense


def _worth_storing(g: _Graph, op: Any, readers: set[int]) -> bool:
    """More than one group would repeat real work, or a broadcast would repeat it for every copy. Views are never stored for that:
    what they show is."""
    if isinstance(op, (Full, Iota, Reshape, Transpose, Slice, Broadcast)):
        return False
    cost = _subtree_cost(g, op)
    return cost > CHEAP and (len(readers) > 1 or _is_repeated(g, op.results[0]))


def _is_repeated(g: _Graph, v: Any) -> bool:
    """Views lead from v to a broadcast that makes more elements of it, or to a lookup that may read an element many times."""
    for u in g.users(v):
        user = g.ops[u]
        if isinstance(user, Broadcast) and from_mlir(user.results[0]).numel != from_mlir(v).numel:
            return True
        if isinstance(user, Take) and user.operands[0] == v:
            return True
        if isinstance(user, (Reshape, Transpose, Slice, Broadcast)) and u not in g.unit and _is_repeated(g, user.results[0]):
            return True
    return False


def _subtree_cost(g: _Graph, op: Any, depth: int = 12) -> int:
    """Cost of computing a value from memory, counting what would be pulled in."""
    total = cost_of(op)
    if depth == 0 or total > 64:
        return total
    for v in op.operands:
        p = g.producer(v)
        if p is not None and p not in g.unit and kind_of(g.ops[p]).pullable:
            total += _subtree_cost(g, g.ops[p], depth - 1)
    return total


# ---------------------------------------------------------------------------------------------------- building
def _build(g: _Graph, block: Any) -> None:
    """Replaces units by `dhlo.group` ops: each gets its members and copies of what it pulls in; then orders everything."""
    units = list({id(u): u for u in g.unit.values()}.values())
    order = _schedule(g, units)
    terminator = g.ops[-1] if not hasattr(g.ops[-1], "kind") or g.ops[-1].OPERATION_NAME == "dhlo.yield" else None
    made: list[Any] = []
    for item in order:
        if isinstance(item, Unit):
            made.append(_build_group(g, item, terminator))
        elif g.ops[item] != terminator:
            op = g.ops[item].operation
            op.move_before(terminator.operation)
            made.append(op)
    for n in range(len(g.ops) - 1, -1, -1):  # what was pulled everywhere is used no more
        op = g.ops[n]
        if n not in g.unit and kind_of(op).pullable and not any(True for _ in op.results[0].uses):
            op.operation.erase()


def _schedule(g: _Graph, units: list[Unit]) -> list[Any]:
    """Units and lone ops in an order in which everything is computed before it is used; otherwise as in the program."""
    item_of: dict[int, Any] = {}
    for u in units:
        for n in u.ops:
            item_of[n] = u
    lone = [n for n, op in enumerate(g.ops) if n not in item_of and not kind_of(op).pullable]
    for n in lone:  # views that they read stand beside them
        for v in g.inputs(n):
            p = g.producer(v)
            if p is not None and p not in item_of and p not in lone and kind_of(g.ops[p]).pullable:
                lone.append(p)
    for n in lone:
        item_of[n] = n
    position = lambda item: item.ops[-1] if isinstance(item, Unit) else item  # noqa: E731
    done: list[Any] = []
    state: dict[int, int] = {}
    needs_cache: dict[int, list[Any]] = {}

    def needs(n: int) -> list[Any]:
        """Items that must come before op n, looking through pulled ops."""
        if n in needs_cache:
            return needs_cache[n]
        out: list[Any] = []
        for v in g.inputs(n):
            p = g.producer(v)
            if p is not None:
                out += [item_of[p]] if p in item_of else needs(p)
        needs_cache[n] = out
        return out

    def visit(item: Any) -> None:
        stack = [(item, iter(_dedupe([x for n in (item.ops if isinstance(item, Unit) else [item]) for x in needs(n)])))]
        state[id(item) if isinstance(item, Unit) else item] = 1
        while stack:
            current, rest = stack[-1]
            for x in rest:
                key = id(x) if isinstance(x, Unit) else x
                if x is current or state.get(key) == 2:
                    continue
                if state.get(key) == 1:
                    raise AssertionError("fusion made a cycle")
                state[key] = 1
                stack.append((x, iter(_dedupe([y for n in (x.ops if isinstance(x, Unit) else [x]) for y in needs(n)]))))
                break
            else:
                stack.pop()
                state[id(current) if isinstance(current, Unit) else current] = 2
                done.append(current)

    items = sorted([*units, *lone], key=position)
    for item in items:
        if state.get(id(item) if isinstance(item, Unit) else item) != 2:
            visit(item)
    return done


def _dedupe(items: list[Any]) -> list[Any]:
    seen: set[int] = set()
    out = []
    for x in items:
        key = id(x) if isinstance(x, Unit) else x
        if key not in seen:
            seen.add(key)
            out.append(x)
    return out


def _build_group(g: _Graph, unit: Unit, before: Any) -> Any:
    anchor = unit.anchor.value if unit.anchor else "loops"
    types: list[TensorType] = [from_mlir(v) for v in unit.outputs]
    first = g.ops[unit.ops[0]]
    with ir.InsertionPoint(before), first.location:
        group = build(Group, [], {"anchor": anchor}, results=types, regions=1, loc=g.ops[unit.ops[-1]].location)
    body = ir.Block.create_at_start(group.operation.regions[0], [])
    inside = set(unit.ops)
    copies: dict[int, Any] = {}
    with ir.InsertionPoint(body), first.location:
        end = build(Yield, unit.outputs)
    for n in sorted(unit.ops):
        _pull(g, n, inside, end, copies)
        g.ops[n].operation.move_before(end.operation)
    for out, result in zip(unit.outputs, group.results, strict=True):
        members = {g.ops[n].operation for n in inside}
        for use in list(out.uses):
            user = use.owner.operation.opview
            if user.operation not in members and user.operation != end.operation and not _within(user, body):
                user.operation.operands[use.operand_number] = result
    return group


def _within(op: Any, body: Any) -> bool:
    return op.operation.block == body


def _pull(g: _Graph, n: int, inside: set[int], end: Any, copies: dict[int, Any]) -> None:
    """Copies the on-demand ops that op n reads into the group, before it."""
    op = g.ops[n]
    for k, v in enumerate(op.operands):
        p = g.producer(v)
        if p is None or p in inside or p in g.unit or not kind_of(g.ops[p]).pullable:
            continue
        op.operation.operands[k] = _copy(g, p, end, copies)


def _copy(g: _Graph, p: int, end: Any, copies: dict[int, Any]) -> Any:
    if p not in copies:
        src = g.ops[p]
        new = [(_copy(g, q, end, copies) if q is not None and q not in g.unit and kind_of(g.ops[q]).pullable
                else v) for v, q in ((v, g.producer(v)) for v in src.operands)]
        with ir.InsertionPoint(end.operation):
            c = src.operation.clone()
        for k, v in enumerate(new):
            c.operation.operands[k] = v
        copies[p] = c.operation.results[0]
    return copies[p]

