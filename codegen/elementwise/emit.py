"""Computes elements of a fused group on demand: from a result's index back through views and arithmetic to memory.

Every op with a `pull` or `emit` hook can stand anywhere in a group; what isn't computed in the group is loaded from its buffer.
Values are one register wide: a scalar where all lanes agree, else as many lanes as the target has,
of which only those under `mask` matter.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import sympy

from dhlo.codegen.elementwise.float8 import FLOAT8, from_float8, to_float8
from dhlo.codegen.elementwise.index import Index, IndexMath
from dhlo.codegen.elementwise.lines import line
from dhlo.codegen.elementwise.philox import emit_word
from dhlo.codegen.elementwise.rules import emit_op, narrow, round_to, splat, with_plain_nans, wrap
from dhlo.codegen.kernel_ir.builder import BITS, F64, I1, I8, I32, I64, PTR, Fn, V
from dhlo.codegen.kernel_ir.interleave import load_spaced
from dhlo.errors import InternalError
from dhlo.ir.dialect import Kind, attr, defining
from dhlo.ir.ops.movement import Reshape, number
from dhlo.ir.pull import Elements
from dhlo.ir.rising import rises
from dhlo.ir.symbols import as_expr, is_static, parse, product
from dhlo.ir.types import DTYPES, DType, from_mlir
from dhlo.shape_infer.views import reshape_groups

__all__ = ["MOST_APART", "Emitter", "KernelArgs", "Slot", "Touch", "memory_type"]

MOST_APART = 4  # from one element to the next, where loads and shuffles are faster than gathering
_CLOSE = 4  # vectors of narrow elements that lanes which rise are looked for in, one after the other

Leaf = Callable[["Emitter", Sequence[Index]], V]
Slot = tuple[str, Any]
"""("pointer", value), ("size", expr), ("float", expr), ("errors", check), or ("far", expr): whether so many bytes, gone through
once, come from so far away that they are worth asking for ahead."""


@dataclass(frozen=True)
class Touch:
    """How memory is prefetched instead of being read and written: to which caches (see `Fn.prefetch`), results perhaps to be
    written."""

    locality: int = 3
    write: bool = True


class KernelArgs:
    """The arguments of a kernel, found while its body is written; each is loaded once, in the entry block."""

    def __init__(self, fn: Fn, array: V, first: int = 0, slots: Sequence[Slot] = ()) -> None:
        """`slots`: what the array is known to hold, by another function that takes the same one."""
        self.fn, self.array, self.first = fn, array, first
        self.slots: list[Slot] = list(slots)
        self._values: dict[Slot, V] = {}

    def get(self, slot: Slot) -> V:
        if slot not in self._values:
            if slot not in self.slots:
                self.slots.append(slot)
            ty = {"size": I64, "far": I64, "float": F64}.get(slot[0], PTR)
            self._values[slot] = self.fn.entry_load(self.array, self.first + self.slots.index(slot), ty)
        return self._values[slot]


class Emitter(IndexMath):
    """Emits values of one group into one function. `members` are the ops computed here, `leaves` override values by hand."""

    def __init__(self, fn: Fn, args: KernelArgs, members: set[Any], check_of: Callable[[Any], int]) -> None:
        super().__init__(fn)
        self.args, self.members, self.check_of = args, members, check_of
        self.leaves: dict[Any, Leaf] = {}
        self.made_plain: set[Any] = set()  # buffers of f32 whose NaNs become plain ones as they are loaded
        self.mask: V | None = None
        self.partial = False  # no lane may be active
        self.piece: tuple[object, list[sympy.Expr], int] | None = None  # see `of_piece`
        self.touching: Touch | None = None  # memory is only prefetched so; loads give zeros
        self._memo: list[dict[Any, V]] = [{}]
        self._checked: list[dict[Any, Index]] = [{}]  # of each scope, the positions that indices were found to stand for

    # ------------------------------------------------------------------ scopes
    @contextmanager
    def scope(self, mask: V | None = None, *, partial: bool = False) -> Iterator[None]:
        """Values found inside are forgotten after it; `mask` narrows the active lanes, perhaps (`partial`) to none."""
        old, was_partial = self.mask, self.partial
        self.partial = partial or was_partial
        if mask is not None:
            self.mask = mask if old is None else self.fn.and_(mask, old)
        self._memo.append({})
        self._checked.append({})
        yield
        self._memo.pop()
        self._checked.pop()
        self.mask, self.partial = old, was_partial

    @contextmanager
    def of_piece(self, i: Index, bounds: list[sympy.Expr], number: int) -> Iterator[None]:
        """Inside, `i` is in that piece of what is joined along its dim from pieces that end at `bounds`."""
        self.piece = (i.key, bounds, number)
        yield
        self.piece = None

    def size(self, expr: sympy.Expr | int) -> V | int:
        """A size: an int, or an argument of the kernel that the host computes."""
        e = as_expr(expr)
        return int(e) if is_static(e) else self.args.get(("size", e))

    # ------------------------------------------------------------------ values
    def value(self, v: Any, idx: Sequence[Index]) -> V:
        """The elements of `v` at `idx`, in register form.

        Chains of elementwise ops may be of any length, so they are walked with a stack of their own: ops whose operands are being
        computed, each with the operands so far. Views recurse; the fusion pass bounds how many follow each other.
        """
        at = tuple(i.key for i in idx)
        pending: list[tuple[Any, Any, list[V]]] = []
        while True:
            x = self._known(v, at)
            op = self._elementwise(v) if x is None else None
            if op is not None:
                pending.append((v, op, []))
            else:
                if x is None:
                    x = self._memo[-1][v, at] = self._compute(v, idx)
                while pending and len(pending[-1][2]) == len(pending[-1][1].operands) - 1:
                    v, op, args = pending.pop()
                    x = self._memo[-1][v, at] = self._apply(op, [*args, x])
                if not pending:
                    return x
                pending[-1][2].append(x)
            v = pending[-1][1].operands[len(pending[-1][2])]

    def _known(self, v: Any, at: tuple[object, ...]) -> V | None:
        """What was computed before in this scope or one around it."""
        for memo in self._memo:
            if (v, at) in memo:
                return memo[v, at]
        return None

    def _elementwise(self, v: Any) -> Any:
        """The elementwise op that makes v here; None if v comes about in another way."""
        op = None if v in self.leaves else defining(v)
        return op if op is not None and op.kind is Kind.ELEMENTWISE and op.operation in self.members else None

    def _apply(self, op: Any, args: list[V]) -> V:
        if any(a.lanes for a in args):
            args = [a if a.lanes else splat(self.fn, a) for a in args]
        return emit_op(self.fn, op, args)

    def _compute(self, v: Any, idx: Sequence[Index]) -> V:
        if v in self.leaves:
            return self.leaves[v](self, idx)
        op = defining(v)
        if op is None or op.operation not in self.members:
            x = self.load(v, idx)
            return with_plain_nans(self.fn, x) if v in self.made_plain else x
        if isinstance(op, Reshape):
            src = op.operands[0]
            if self._is_buffer(src):
                return self.load_flat(src, self.flatten(idx, from_mlir(v).shape))
        elements: Elements = self  # as ops see it
        return op.pull(elements, list(idx))  # type: ignore[no-any-return]

    def computed(self, v: Any) -> bool:
        op = None if v in self.leaves else defining(v)
        return op is not None and op.operation in self.members

    def _is_buffer(self, v: Any) -> bool:
        return v not in self.leaves and not self.computed(v)

    # ------------------------------------------------------------------ memory
    def flatten(self, idx: Sequence[Index], shape: Sequence[sympy.Expr]) -> Index:
        """Row-major position in a dense tensor; dims that came from splitting one position are joined for free."""
        merged: list[tuple[Index, sympy.Expr]] = []
        k = 0
        while k < len(idx):
            part = idx[k].part
            n = len(part[2]) if part else 0
            if (
                part
                and part[1] == 0
                and tuple(shape[k : k + n]) == part[2]
                and all(p is not None and p[0] is part[0] and p[1] == j for j, p in enumerate(i.part for i in idx[k : k + n]))
            ):
                merged.append((part[0], product(part[2])))
                k += n
            else:
                merged.append((idx[k], shape[k]))
                k += 1
        flat = self.zero
        for i, n_k in merged:
            flat = self.plus(self.times(flat, self.size(n_k)), i)
        return flat

    def load(self, v: Any, idx: Sequence[Index]) -> V:
        return self.load_flat(v, self.flatten(idx, from_mlir(v).shape))

    def load_flat(self, v: Any, at: Index) -> V:
        """Loads from the buffer of `v`."""
        t = from_mlir(v)
        return self.load_memory(self.args.get(("pointer", v)), t.dtype, at, t.numel)

    def load_memory(self, p: V, dtype: DType, at: Index, elements: sympy.Expr | None = None) -> V:
        """Loads what is at `p`, which has so many elements if that is known."""
        fn, mem = self.fn, memory_type(dtype)
        if self.touching:
            if not at.uniform and at.vec is None and at.step == 1:
                self._touch(self.touching, p, at, mem)
            return self._to_register(fn.const(0, mem if at.uniform else fn.vec(mem)), dtype)
        if at.uniform:
            q = fn.gep(p, at.base, mem)
            if self.partial and self.mask is not None:  # any address that can be read, where no lane wants the value
                q = fn.select(fn.reduce("or", self.mask), q, self.args.array)
            return self._to_register(fn.load(q, mem), dtype)
        zero = fn.const(0, fn.vec(mem))
        if at.vec is None and at.step == 1:
            q = fn.gep(p, at.base, mem)
            raw = fn.load(q, fn.vec(mem)) if self.mask is None else fn.masked_load(q, self.mask, zero)
        elif at.vec is None and at.step == -1:
            q, back = fn.gep(p, fn.sub(fn.i64(at.base), fn.lanes - 1), mem), list(reversed(range(fn.lanes)))
            if self.mask is None:
                raw = fn.load(q, fn.vec(mem))
            else:
                raw = fn.masked_load(q, fn.shuffle(self.mask, self.mask, back), zero)
            raw = fn.shuffle(raw, raw, back)
        elif at.vec is None and self.mask is None and 2 <= at.step <= MOST_APART:
            raw = load_spaced(fn, fn.gep(p, at.base, mem), at.step, mem)
        else:
            raw = self._gather(p, at, zero, elements)
        return self._to_register(raw, dtype)

    def _gather(self, p: V, at: Index, zero: V, elements: sympy.Expr | None) -> V:
        """Elements from anywhere; where all lie within a vector, as in an enlarged image, out of that."""
        fn, mem = self.fn, zero.elem
        base, x = (fn.i64(at.base), at.vec) if at.vec is not None else (fn.i64(0), self.lanes(at))
        p = fn.gep(p, base, mem)

        def scattered() -> list[V]:
            mask = self.mask if self.mask is not None else fn.const(1, fn.vec(I1))
            return [fn.gather(fn.gep(p, x, mem), mask, zero)]

        if not (at.rising and fn.permutes(mem)):
            return scattered()[0]
        steps = 1 if BITS[mem] == 32 else _CLOSE  # no instruction gathers what is narrower
        if self.mask is not None and steps == 1 and elements is not None:
            inside = fn.cmp("ult", fn.add(base, fn.extract(x, 0)), fn.max(fn.sub(fn.i64(self.size(elements)), fn.lanes - 1), 0))
            return self._out_of_window(p, x, inside, self.mask, zero, scattered)
        first, ahead, last, rise = self._spread(x)
        close = fn.and_(rise, fn.cmp("ult", last, steps * fn.lanes))

        def together() -> list[V]:
            lane, end = fn.cast(ahead, I32), fn.cast(last, I32)

            def found(start: V) -> V:
                there = fn.cmp("le", fn.iota(I32), fn.splat(fn.sub(end, fn.cast(start, I32))))
                return fn.permute(fn.masked_load(fn.gep(p, fn.add(first, start), mem), there, zero), lane)

            if steps == 1:
                return [found(fn.const(0, I64))]
            with fn.loop(0, fn.add(last, 1), fn.lanes, [zero]) as lp:
                lp.yield_(fn.select(fn.cmp("lt", lane, fn.splat(fn.cast(lp.iv, I32))), lp.carried[0], found(lp.iv)))
            return lp.results

        return fn.if_else(close, together, scattered, [zero.type])[0]

    def _out_of_window(self, p: V, x: V, inside: V, mask: V, zero: V, scattered: Callable[[], list[V]]) -> V:
        """Elements at positions x, where `mask` wants them; where the vector from the first one on is `inside` memory and they lie
        in it, out of that."""
        fn, mem = self.fn, zero.elem
        first = fn.extract(x, 0)
        ahead = fn.sub(x, fn.splat(first))
        fits = fn.reduce("and", fn.or_(fn.cmp("ult", ahead, fn.lanes), fn.not_(mask)))

        def window() -> list[V]:
            whole = fn.load(fn.gep(p, first, mem), zero.type, BITS[mem] // 8)
            return [fn.select(mask, fn.permute(whole, fn.cast(ahead, I32)), zero)]

        return fn.if_else(fn.and_(inside, fits), window, scattered, [zero.type])[0]

    def _spread(self, x: V) -> tuple[V, V, V, V]:
        """The first of the active lanes' positions, how far all are ahead of it, the most of that, and whether there is such a lane
        and none is behind."""
        fn = self.fn
        if self.mask is None:
            first = fn.extract(x, 0)
            ahead = fn.sub(x, fn.splat(first))
            last = fn.extract(ahead, fn.lanes - 1)
            return first, ahead, last, fn.reduce("and", fn.cmp("ule", ahead, fn.splat(last)))
        first = fn.reduce("minui", fn.select(self.mask, x, fn.const(-1, x.type)))
        ahead = fn.select(self.mask, fn.sub(x, fn.splat(first)), fn.const(0, x.type))
        return first, ahead, fn.reduce("maxui", ahead), fn.cmp("ne", first, -1)

    def _to_register(self, raw: V, dtype: DType) -> V:
        if dtype.is_bool:
            return self.fn.cmp("ne", raw, 0)
        if dtype.name in FLOAT8:
            return from_float8(self.fn, raw, dtype.name)
        x = self.fn.cast(raw, dtype.register, signed=dtype.name != "ui8")
        if dtype.name == "bf16":
            self.fn.halves.add(x.name)
        return x

    def in_memory(self, x: V, dtype: DType) -> V:
        """A register value in the form that memory has."""
        return to_float8(self.fn, x, dtype.name) if dtype.name in FLOAT8 else narrow(self.fn, x, memory_type(dtype))

    def component(self, v: Any, idx: Sequence[Index], part: int) -> V:
        """The real (0) or imaginary (1) parts of complex elements in memory."""
        if not self._is_buffer(v):
            raise InternalError("parts are taken of complex tensors in memory alone")
        at = self.offset(self.times(self.flatten(idx, from_mlir(v).shape), 2), part)
        return self.load_memory(self.args.get(("pointer", v)), DTYPES[from_mlir(v).dtype.register], at)

    @contextmanager
    def touches(self, how: Touch) -> Iterator[None]:
        """Inside, memory is prefetched."""
        self.touching = how
        with self.scope():
            yield
        self.touching = None

    def _touch(self, how: Touch, p: V, at: Index, mem: str, *, write: bool = False) -> None:
        """Prefetches the line of a vector's last byte: that of the first one is the last of the vector before, which tiles side by
        side have touched."""
        fn = self.fn
        last = fn.gep(fn.gep(p, at.base, mem), fn.lanes * BITS[mem] // 8 - 1, I8)
        fn.prefetch(last, how.locality, write=write and how.write)

    def store(self, x: V, p: V, dtype: DType, at: Index) -> None:
        """Stores a register value; lanes outside the mask leave memory alone."""
        fn, mem = self.fn, memory_type(dtype)
        if self.touching:
            if at.vec is None and at.step == 1:
                self._touch(self.touching, p, at, mem, write=True)
            return
        raw = self.in_memory(x, dtype)
        if at.uniform:  # all lanes agree
            fn.store(fn.extract(raw, 0) if raw.lanes else raw, fn.gep(p, at.base, mem))
            return
        raw = raw if raw.lanes else fn.splat(raw)
        if at.vec is None and at.step == 1:
            q = fn.gep(p, at.base, mem)
            if self.mask is None:
                fn.store(raw, q)
            else:
                fn.masked_store(raw, q, self.mask)
        else:
            fn.scatter(raw, fn.gep(p, self.lanes(at), mem), self.mask or fn.const(1, fn.vec(I1)))

    # ------------------------------------------------------------------ what `pull` hooks use
    def shift(self, i: Index, by: sympy.Expr | int) -> Index:
        return self.offset(i, self.size(by))

    def scale(self, i: Index, k: int) -> Index:
        return self.times(i, k)

    def split(self, flat: Index, shape: Sequence[sympy.Expr]) -> list[Index]:
        """The index in `shape` of a row-major position."""
        out: list[Index] = []
        rest = flat
        for n in reversed(list(shape)[1:]):
            rest, r = self.divmod(rest, self.size(n))
            out.append(r)
        out = [rest, *reversed(out)] if shape else []
        whole = tuple(shape)
        return [replace(i, part=(flat, k, whole)) for k, i in enumerate(out)] if len(out) > 1 else out

    def reindex(self, idx: Sequence[Index], src: Sequence[sympy.Expr], dst: Sequence[sympy.Expr]) -> list[Index]:
        """The index in `dst` of the element at `idx` in `src`: two shapes of the same elements in row-major order. Runs of dims
        with equal products are converted on their own, so that dims that stay as they are cost nothing."""
        out: list[Index] = []
        for a, b in reshape_groups(src, dst):
            if len(a) == 1 and len(b) == 1:
                out.append(idx[a[0]])
            elif not a:
                out += [self.zero] * len(b)
            else:
                out += self.split(self.flatten([idx[k] for k in a], [src[k] for k in a]), [dst[k] for k in b])
        return out

    def both(self, a: V, b: V) -> V:
        return self.fn.and_(a, b)

    def in_range(self, i: Index, n: Any) -> V:
        return super().in_range(i, self.size(n))

    def nonempty(self, sizes: Sequence[sympy.Expr]) -> V | None:
        """Are all sizes above 0, so that there is an element to read? None where that is certain."""
        tests = [self.fn.cmp("ne", self.fn.i64(self.size(n)), 0) for n in sizes if not is_static(n) or n == 0]
        return functools.reduce(self.fn.and_, tests) if tests else None

    def guarded(self, cond: V, inside: Callable[[], V], other: V) -> V:
        """`inside()` where `cond` holds (nothing is loaded elsewhere), else `other`."""
        fn = self.fn
        if cond.lanes:
            with self.scope(cond, partial=True):
                x = inside()
            return fn.select(cond, x if x.lanes else fn.splat(x), other if other.lanes else fn.splat(other))
        ty = fn.vec(other.elem) if not other.lanes else other.type

        def then() -> list[V]:
            with self.scope():
                x = inside()
                return [x if x.lanes else fn.splat(x)]

        return fn.if_else(cond, then, lambda: [other if other.lanes else fn.splat(other)], [ty])[0]

    def piecewise(self, i: Index, pieces: list[tuple[sympy.Expr, Any, list[Index]]]) -> V:
        """The value of the first piece whose upper bound is above `i`, found by halving."""
        if self.piece is not None and self.piece[:2] == (i.key, [bound for bound, *_ in pieces]):
            pieces = [pieces[self.piece[2]]]
        elif i.uniform and isinstance(i.base, int) and all(is_static(bound) for bound, *_ in pieces):
            pieces = next(([p] for p in pieces if i.base < p[0]), pieces[-1:])
        _, v, idx = pieces[0]
        if len(pieces) == 1:
            return self.value(v, idx)
        left, right = pieces[: len(pieces) // 2], pieces[len(pieces) // 2 :]
        bound = left[-1][0]
        x = self.fn.i64(i.base) if i.uniform else self.lanes(i)
        cond = self.fn.cmp("lt", x, self.size(bound))
        if cond.lanes:
            with self.scope(cond, partial=True):
                a = self.piecewise(i, left)
            with self.scope(self.fn.not_(cond), partial=True):
                b = self.piecewise(i, right)
            return self.fn.select(cond, a if a.lanes else self.fn.splat(a), b if b.lanes else self.fn.splat(b))

        def side(get: Callable[[], V]) -> Callable[[], list[V]]:
            def run() -> list[V]:
                with self.scope():
                    x = get()
                    return [x if x.lanes else self.fn.splat(x)]

            return run

        dtype = from_mlir(v).dtype
        return self.fn.if_else(
            cond, side(lambda: self.piecewise(i, left)), side(lambda: self.piecewise(i, right)), [self.fn.vec(dtype.register)]
        )[0]

    def constant(self, value: float | int, dtype: DType) -> V:
        if dtype.is_bool:
            return self.fn.const(bool(value), I1)
        return self.fn.const(value if dtype.is_float else int(value), dtype.register)

    def scalar(self, text: str, dtype: DType) -> V:
        """A number or size expression (as text) in a dtype's register form."""
        value = number(text)
        if value is not None:
            return self.constant(value, dtype)
        e = parse(text)
        if e in (sympy.true, sympy.false):
            return self.constant(e == sympy.true, dtype)
        if e.is_integer or e.is_Boolean or e.is_Relational:
            return wrap(self.fn, self.fn.cast(self.args.get(("size", e)), dtype.register), dtype.name)
        return self.fn.cast(self.args.get(("float", e)), dtype.register)

    def iota(self, i: Index, start: str, step: str, dtype: DType) -> V:
        """start + i * step; floats are computed in f64 and rounded once, as aten.arange does."""
        fn = self.fn
        pos = fn.i64(i.base) if i.uniform else self.lanes(i)
        wide = DTYPES["f64" if dtype.is_float else "i64"]
        a, k = self.scalar(start, wide), self.scalar(step, wide)
        y = fn.add(fn.mul(fn.cast(pos, wide.register), k), a)
        return round_to(fn, fn.cast(y, dtype.register), dtype.name)

    def lookup(self, i: V, size: sympy.Expr, op: Any) -> Index:
        """An index tensor's value as a position: wraps negatives if `op` says so; out of range is recorded and reads element 0."""
        known = (op.results[0], i.name, size, None if self.mask is None else self.mask.name)
        for checked in self._checked:
            if known in checked:
                return checked[known]
        x = self._checked[-1][known] = self._checked_index(i, size, op)
        return x

    def line(self, v: Any, idx: Sequence[Index], size: sympy.Expr, op: Any) -> tuple[Index, V] | None:
        i = line(self, v, idx)
        if i is None:
            return None
        fn, n = self.fn, self.fn.i64(self.size(size))
        if self.mask is None:
            first = fn.i64(i.base)
            ok = fn.and_(fn.cmp("ult", first, n), fn.cmp("ult", fn.add(first, (fn.lanes - 1) * i.step), n))
        else:
            ok = fn.not_(fn.reduce("or", self._outside(fn.cmp("ult", self.lanes(i), n))))
        with fn.when(fn.not_(ok)):
            x = self.lanes(i)
            self._record(x, self._outside(fn.cmp("ult", x, n)), n, op)
        return i, ok

    def _outside(self, ok: V) -> V:
        """The active lanes for which a condition doesn't hold."""
        return self.fn.not_(ok) if self.mask is None else self.fn.and_(self.fn.not_(ok), self.mask)

    def _record(self, i: V, bad: V | None, n: V, op: Any) -> None:
        """Notes an index that is out of range, of a vector the least where `bad` says so."""
        fn, cell = self.fn, self.args.get(("errors", self.check_of(op)))
        worst = i if bad is None else fn.reduce("minsi", fn.select(bad, i, fn.const((1 << 63) - 1, i.type)))
        fn.store(worst, cell)
        fn.store(n, fn.gep(cell, 1, I64))
        fn.store(fn.const(1, I64), fn.gep(cell, 2, I64))

    def _checked_index(self, i: V, size: sympy.Expr, op: Any) -> Index:
        fn, n = self.fn, self.size(size)
        i = fn.cast(i, I64)
        n_v = fn.i64(n)
        j = fn.select(fn.cmp("lt", i, 0), fn.add(i, n_v), i) if "wrap" in op.attributes and attr(op, "wrap") else i
        ok = fn.cmp("ult", j, n_v)
        bad = self._outside(ok) if j.lanes else None
        anybad = fn.not_(ok) if bad is None else fn.reduce("or", bad)
        if bad is None and self.partial and self.mask is not None:
            anybad = fn.and_(anybad, fn.reduce("or", self.mask))
        with fn.when(anybad):
            self._record(i, bad, n_v, op)
        safe = fn.select(ok, j, fn.const(0, j.type))
        return Index(0, vec=safe, rising=any(map(rises, op.operands[1:]))) if safe.lanes else Index(safe)

    def random_word(self, position: Index, seed: V, draw: V, number: int) -> V:
        """A word of a block of random bits, as i32 (see philox.py)."""
        return emit_word(self.fn, self.fn.i64(position.base) if position.uniform else self.lanes(position), seed, draw, number)


def memory_type(dtype: DType) -> str:
    """The MLIR type of an element in memory."""
    return {"i1": "i8", "ui8": "i8", "ui64": "i64", **dict.fromkeys(FLOAT8, "i8")}.get(dtype.name, dtype.name)
