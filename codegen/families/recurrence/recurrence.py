"""A kernel that takes the state of packed sequences on: tokens of a sequence in order, elements of its state side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sympy

from dhlo.codegen.elementwise.emit import Emitter, Leaf
from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.elementwise.rules import splat
from dhlo.codegen.families.combine import combine, identity_of
from dhlo.codegen.families.kernel import Launch, finish
from dhlo.codegen.families.lines import OpKernel
from dhlo.codegen.families.lowering import Lowering
from dhlo.codegen.kernel_ir.builder import I8, I64, V
from dhlo.ir.dialect import attr, defining
from dhlo.ir.handles import Value
from dhlo.ir.ops.compute import Reduce
from dhlo.ir.ops.control import Group, yielded
from dhlo.ir.ops.recurrence import LEAST
from dhlo.ir.symbols import product
from dhlo.ir.types import DTYPES, TensorType, from_mlir
from dhlo.shape_infer.cost import element_work
from dhlo.shape_infer.recurrence import independent_dims
from dhlo.shape_infer.views import View

__all__ = ["lower_recurrence"]

_UNROLLED = 8  # places up to which loops are written out
_SUMS = 4  # beside each other, so that one needn't wait for the other
_TOKENS = 16  # that a launch is taken to have for each sequence


class _Recurrence(OpKernel):
    """Items are (sequence, place along all independent dims but one, vector along that one). An item goes through its sequence's
    tokens. Of each it computes what is reduced before the next state, that state, and what is left."""

    def __init__(self, low: Lowering, group: Group, op: Any) -> None:
        super().__init__(low, group, op)
        region = op.regions[0]
        self.body = list(region.blocks[0].operations)[:-1]
        self.em.members = {x.operation for x in self.body}
        self.state, *self.taken = region.blocks[0].arguments
        self.after, *self.known = yielded(region)
        self.type = from_mlir(op.operands[0])
        self.shape = [int(s) for s in self.type.shape[1:]]
        found = independent_dims(region)
        self.follows, self.in_place = found.follows, found.in_place
        self.outer, self.along = [d - 1 for d in found.dims[:-1]], (found.dims[-1] - 1 if found.dims else None)
        self.inner = [d for d in range(len(self.shape)) if d + 1 not in found.dims]
        self.scratch_bytes = self.scratch_used = 0
        self.at: dict[int, Index] = {}  # by independent dim, for the item at hand

    # ------------------------------------------------------------------ items
    def lower(self) -> Launch:
        fn, em, op = self.fn, self.em, self.op
        sequences, width = from_mlir(op.operands[1]).shape[0], 1 if self.along is None else self.shape[self.along]
        blocks = -(-width // fn.lanes)
        self.states, self.cells, self.starts, self.lengths = self.result(0), *(self.operand(i) for i in range(1, LEAST))
        self.pointers = [self._operand(LEAST + i) for i in range(len(self.taken))]
        self.results = [self.result(1 + i) for i in range(len(self.known))]
        outer = [sympy.Integer(self.shape[d]) for d in self.outer]
        with fn.loop(self.begin, self.end) as item, em.scope():
            b, *places, block = em.split(Index(item.iv), [sequences, *outer, sympy.Integer(blocks)])
            self.at = dict(zip(self.outer, places, strict=True))
            first = fn.mul(em.position(block), fn.lanes)
            if self.along is not None:
                self.at[self.along] = Index(first, 1, multiple=fn.lanes)
            left = fn.sub(fn.i64(width), first)

            def run(mask: V | None) -> list[V]:
                with em.scope(mask):
                    self._sequence(em.position(b))
                return []

            if width % fn.lanes == 0:
                run(None)
            else:
                fn.if_else(fn.cmp("ge", left, fn.lanes), lambda: run(None), lambda: run(fn.tail_mask(left)), [])
        count = sequences * product(outer) * blocks
        inner = product([sympy.Integer(self.shape[d]) for d in self.inner])
        work = _TOKENS * inner * element_work([x for x in self.body if hasattr(x, "work")])
        scratch = sympy.Integer(self.scratch_bytes)
        return Launch(finish(self, "recurrence"), self.args.slots, count, work, scratch, lookups=self.lookups)

    def _operand(self, i: int) -> tuple[V, View]:
        view = self.low.view(self.group, self.op.operands[i])
        return self.args.get(("pointer", view.base)), view

    def _number(self, p: V, i: V | Index) -> V:
        return self.em.load_memory(p, DTYPES["i32"], i if isinstance(i, Index) else Index(i))

    def _sequence(self, b: V) -> None:
        """All tokens of a sequence. What is out of range fails the call, and is left alone."""
        fn, em, op = self.fn, self.em, self.op
        tokens = from_mlir(op.results[1]).shape[0] if self.known else self._tokens()
        cell = em.lookup(self._number(self.cells, b), self.type.shape[0], op)
        reach = (em.lookup(self._number(self.starts, i), tokens + 1, op) for i in (b, fn.add(b, 1)))
        first, end = map(em.position, reach)
        em.lookup(fn.cast(fn.sub(end, first), I64), tokens + 1, op)  # starts ascend
        last = fn.cmp("eq", fn.add(b, 1), self.size(from_mlir(op.operands[1]).shape[0]))
        for here, value in ((fn.cmp("eq", b, 0), first), (last, fn.sub(self.size(tokens), end))):  # and reach from 0 to the tokens
            em.lookup(fn.select(here, value, fn.i64(0)), sympy.Integer(1), op)
        length = fn.cast(self._number(self.lengths, b), I64)
        bad = fn.load(fn.gep(self.args.get(("errors", em.check_of(op))), 2, I64), I64)
        numel = em.size(product(self.type.shape[1:]))
        self.base = em.times(cell, numel)
        with fn.when(fn.cmp("eq", bad, 0)):
            fresh = fn.and_(fn.cmp("le", length, fn.sub(end, first)), fn.cmp("lt", first, end))
            with fn.when(fresh), em.scope():
                zero = fn.const(0, fn.vec(self.type.dtype.register))
                for at in self._places(self.inner):
                    em.store(zero, self.states, self.type.dtype, self._of_state(at))
            with fn.loop(first, end) as token, em.scope():
                self._token(Index(token.iv))

    def _tokens(self) -> sympy.Expr:
        rows = attr(self.op, "tokens")
        return from_mlir(self.op.operands[LEAST]).shape[0] if rows else sympy.Integer(0)

    # ------------------------------------------------------------------ a token
    def _token(self, t: Index) -> None:
        em = self.em
        self.scratch_used = 0
        em.leaves.clear()
        for k, (v, place) in enumerate(zip(self.taken, self.pointers, strict=True)):
            em.leaves[v] = _leaf(*place, t if k < attr(self.op, "tokens") else None)
        em.leaves[self.state] = self._state_leaf()
        early, late = self._order()
        for r in early:
            self._reduce(r)
        for k, v in self._outs(early=True):
            self._give(k, v, t)
        self._advance()
        for r in late:
            self._reduce(r)
        for k, v in self._outs(early=False):
            self._give(k, v, t)

    def _order(self) -> tuple[list[Any], list[Any]]:
        """Reductions in order: those that the next state depends on, or that read the state beside it; and those that read the next
        state alone."""
        reductions = [op for op in self.body if isinstance(op, Reduce) and op.results[0] in self.follows]
        needed = self._behind(self.after, stop=False)
        early = [r for r in reductions if r.results[0] in needed or self._reads_old(r.operands[0])]
        for r in reductions:
            if r not in early and any(e for e in early if r.results[0] in self._behind(e.operands[0], stop=False)):
                early.append(r)
        return [r for r in reductions if r in early], [r for r in reductions if r not in early]

    def _reads_old(self, v: Value) -> bool:
        """Whether a value depends on the state otherwise than by the next one, and what reductions give."""
        return self.state in self._behind(v, stop=True)

    def _behind(self, v: Value, stop: bool) -> set[Any]:
        """What a value is made of; `stop`: not looking behind the next state and reductions."""
        seen, todo = {v}, [v]
        while todo:
            x = todo.pop()
            op = defining(x)
            if op is None or stop and (x == self.after or isinstance(op, Reduce)):
                continue
            new = [u for u in op.operands if u not in seen]
            seen.update(new)
            todo += new
        return seen

    def _outs(self, early: bool) -> list[tuple[int, Any]]:
        return [(k, v) for k, v in enumerate(self.known) if self._reads_old(v) == early]

    def _reduce(self, op: Any) -> None:
        """Computes what a reduction gives at the item's place, read from registers then or, of more places, from scratch."""
        fn, em = self.fn, self.em
        x, y, how = from_mlir(op.operands[0]), op.results[0], attr(op, "how")
        follow, dims = self.follows[op.operands[0]], attr(op, "dims")
        kept = [d for d in range(x.rank) if d not in dims]
        free = [d for d in kept if follow[d] is None]
        ty = fn.vec(x.dtype.register)

        def value(at: dict[int, Index]) -> V:
            here = [self.at[f - 1] if (f := follow[d]) is not None else at[d] for d in range(x.rank)]
            v = em.value(op.operands[0], here)
            return v if v.lanes else splat(fn, v)

        def combined(at: dict[int, Index]) -> V:
            sizes = [(d, int(x.shape[d])) for d in dims]
            return self._sum(sizes, at, value, lambda a, b: combine(fn, how, a, b), fn.const(identity_of(how, x.dtype), ty))

        places = int(product([x.shape[d] for d in free]))
        if places == 1:
            with em.scope():
                only = combined({d: em.zero for d in free})
            em.leaves[y] = lambda _, idx: only
            return
        p = self._room(places, x)
        shape = [x.shape[d] for d in free]
        for at in self._nest([(d, int(x.shape[d])) for d in free]):
            with em.scope():
                em.store(combined(at), p, x.dtype, _lane(em, em.flatten([at[d] for d in free], shape), fn.lanes))
        wanted = [kept.index(d) for d in free]
        em.leaves[y] = lambda e, idx: e.load_memory(p, x.dtype, _lane(e, e.flatten([idx[k] for k in wanted], shape), fn.lanes))

    def _sum(self, dims: list[tuple[int, int]], at: dict[int, Index], value: Callable[..., V], join: Any, none: V) -> V:
        """Combines values over some dims."""
        fn, em = self.fn, self.em
        if not dims:
            with em.scope():
                return value(at)
        (d, n), *rest = dims
        if n <= _UNROLLED:
            out = none
            for i in range(n):
                out = join(out, self._sum(rest, {**at, d: Index(i)}, value, join, none))
            return out
        beside = _SUMS if n % _SUMS == 0 else 1
        with fn.loop(0, n, beside, [none] * beside) as lp:
            each = [Index(fn.add(lp.iv, j) if j else lp.iv) for j in range(beside)]
            lp.yield_(*(join(c, self._sum(rest, {**at, d: i}, value, join, none)) for c, i in zip(lp.carried, each, strict=True)))
        out = lp.results[0]
        for v in lp.results[1:]:
            out = join(out, v)
        return out

    def _advance(self) -> None:
        """Stores the next state, which is read from memory from there on."""
        em, dtype = self.em, self.type.dtype
        if self.after == self.state:
            return
        sizes = [sympy.Integer(self.shape[d]) for d in self.inner]
        places = int(product(sizes))
        aside = not self.in_place and places > 1
        p = self._room(places, self.type) if aside else self.states
        for at in self._places(self.inner):
            with em.scope():
                x = em.value(self.after, [em.zero, *self._whole(at)])
                em.store(x, p, dtype, self._aside(at, sizes) if aside else self._of_state(at))
        if aside:
            for at in self._places(self.inner):
                em.store(em.load_memory(p, dtype, self._aside(at, sizes)), self.states, dtype, self._of_state(at))
        em.leaves[self.after] = self._state_leaf()

    def _room(self, places: int, t: TensorType) -> V:
        """Scratch memory of a vector for each of some places."""
        start = self.scratch_used
        self.scratch_used += places * self.fn.lanes * t.dtype.bytes
        self.scratch_bytes = max(self.scratch_bytes, self.scratch_used)
        return self.fn.gep(self.scratch, start, I8)

    def _aside(self, at: dict[int, Index], sizes: Sequence[sympy.Expr]) -> Index:
        return _lane(self.em, self.em.flatten([at[d] for d in self.inner], sizes), self.fn.lanes)

    def _give(self, k: int, v: Value, t: Index) -> None:
        """Stores what is known after a token."""
        em, out = self.em, from_mlir(v)
        follow = self.follows.get(v, (None,) * out.rank)
        free = [d for d in range(1, out.rank) if follow[d] is None]
        row = em.times(t, em.size(product(out.shape[1:])))
        for at in self._nest([(d, int(out.shape[d])) for d in free]):
            with em.scope():
                here = [em.zero, *(self.at[f - 1] if (f := follow[d]) is not None else at[d] for d in range(1, out.rank))]
                em.store(em.value(v, here), self.results[k], out.dtype, em.plus(row, em.flatten(here[1:], out.shape[1:])))

    # ------------------------------------------------------------------ places
    def _whole(self, at: dict[int, Index]) -> list[Index]:
        return [at[d] if d in at else self.at[d] for d in range(len(self.shape))]

    def _of_state(self, at: dict[int, Index]) -> Index:
        return self.em.plus(self.base, self.em.flatten(self._whole(at), self.type.shape[1:]))

    def _state_leaf(self) -> Leaf:
        base, shape, dtype, p = self.base, self.type.shape[1:], self.type.dtype, self.states
        return lambda em, idx: em.load_memory(p, dtype, em.plus(base, em.flatten(idx[1:], shape)))

    def _places(self, dims: Sequence[int]) -> Iterator[dict[int, Index]]:
        return self._nest([(d, self.shape[d]) for d in dims])

    def _nest(self, dims: list[tuple[int, int]]) -> Iterator[dict[int, Index]]:
        """Every place along some dims of static sizes, few of them written out."""
        if not dims:
            yield {}
            return
        (d, n), *rest = dims
        if n <= _UNROLLED:
            for i in range(n):
                yield from ({d: Index(i), **more} for more in self._nest(rest))
            return
        with self.fn.loop(0, n) as lp:
            yield from ({d: Index(lp.iv), **more} for more in self._nest(rest))


def _lane(em: Emitter, i: Index, lanes: int) -> Index:
    """Where the vector of a place begins."""
    return em.plus(em.times(i, lanes), Index(0, 1))


def _leaf(p: V, view: View, t: Index | None) -> Leaf:
    """Elements of an operand, or of a token's row of it."""

    def load(em: Emitter, idx: Sequence[Index]) -> V:
        at = Index(em.fn.i64(em.size(view.offset))) if view.offset != 0 else em.zero
        for i, stride in zip(idx if t is None else [t, *idx[1:]], view.strides, strict=True):
            at = em.plus(at, em.times(i, em.size(stride)))
        return em.load_memory(p, from_mlir(view.base).dtype, at)

    return load


def lower_recurrence(low: Lowering, group: Group, op: Any) -> Launch:
    """Onto states that the result already holds."""
    return _Recurrence(low, group, op).lower()
