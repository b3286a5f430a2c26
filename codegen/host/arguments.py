"""Arguments in the host program: those with gaps where none may be are copied to dense memory, and new content goes back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dhlo.codegen.families.box import grain_of
from dhlo.codegen.families.copy.flat import emit_copy
from dhlo.codegen.families.copy.strided import BLOCK_ROWS, emit_copy_strided
from dhlo.codegen.host.memory import Memory
from dhlo.codegen.host.program import HostProgram
from dhlo.codegen.kernel_ir import abi
from dhlo.codegen.kernel_ir.builder import I64, PTR, V
from dhlo.ir.dialect import attr
from dhlo.ir.handles import Value
from dhlo.ir.memory import base, is_written_over
from dhlo.ir.ops.host import Stage, Stride, UpdateArgument, UpdateState
from dhlo.ir.types import from_mlir
from dhlo.shape_infer.buffers import aligned
from dhlo.shape_infer.views import dense_strides

__all__ = ["Arguments"]

STAGING_SEGMENT = 1

# Simple operations of a copy with gaps: of each element, and of each dim to find where a row begins. Rows are long from here on.
_ELEMENT_WORK, _DIM_WORK, _LONGEST = 4, 64, 1 << 20


class Arguments:
    """Writes how arguments are read and written."""

    def __init__(self, host: HostProgram, memory: Memory) -> None:
        self.host, self.memory, self.fn = host, memory, host.fn
        self.homes: list[V] = []  # by argument: the caller's memory
        self.in_place: dict[int, V] = {}  # by staged argument: is it read where it is?
        self.strides: dict[int, dict[int, V]] = {}  # by staged argument: those of free dims

    def stage(self, ops: Sequence[Stage]) -> None:
        """Finds the arguments' memory; copies those with gaps that their readers don't take; others are read where they are."""
        host, fn = self.host, self.fn
        staged = {attr(op, "input"): (from_mlir(op.operands[0]), attr(op, "free")) for op in ops}
        total: V | None = None
        offsets: dict[int, V] = {}
        for k, (t, free) in staged.items():
            self.in_place[k], self.strides[k] = self._read_in_place(k, free)
            nbytes = self.memory.limited(host.size(aligned(t.bytes)))
            offsets[k] = total if total is not None else fn.const(0, I64)
            need = fn.select(self.in_place[k], fn.const(0, I64), nbytes)
            total = need if total is None else fn.add(total, need)
        self.homes = [host.tensor_field(k, "data", PTR) for k in range(len(host.arguments))]
        host.pointers.update(zip(host.arguments, self.homes, strict=True))
        if total is None:
            return
        host.check_sizes()
        plain, copy, join = host.label("dense"), host.label("stage"), host.label("staged")
        cells = {k: fn.alloca(1, PTR, 8) for k in staged}
        for k, cell in cells.items():
            fn.store(self.homes[k], cell, 8)
        fn.branch(fn.cmp("eq", total, 0), plain, copy)
        fn.label(copy)
        base = self.memory.ask(STAGING_SEGMENT, total)
        host.sizes.push()
        for k, cell in cells.items():
            with fn.when(fn.not_(self.in_place[k])):
                to = fn.gep(base, offsets[k], "i8")
                self._copy_gaps(k, self.homes[k], to, copies_out=False)
                fn.store(to, cell, 8)
        host.sizes.pop()
        host.check_status()
        fn.jump(join)
        fn.label(plain)
        fn.jump(join)
        fn.label(join)
        for k, cell in cells.items():
            host.pointers[host.arguments[k]] = fn.load(cell, PTR, 8)

    def _read_in_place(self, k: int, free: Sequence[int]) -> tuple[V, dict[int, V]]:
        """Do the strides that a call gives, if any, leave no gaps but in free dims? And the strides of these, where it is read."""
        host, fn, t = self.host, self.fn, from_mlir(self.host.arguments[k])
        given = host.tensor_field(k, "strides", PTR)
        n, strides = host.size(t.numel), dense_strides(t.shape)
        dense = {d: host.sizes.emit(strides[d]) for d in free}

        def inspect() -> list[V]:
            fits, ahead, read = fn.const(True, "i1"), fn.i64(1), dict[int, V]()
            for d in reversed(range(t.rank)):
                s, size = fn.load(fn.gep(given, d, I64), I64), host.sizes.emit(t.shape[d])
                if d in free:
                    near = fn.and_(fn.cmp("ge", s, 0), fn.cmp("le", s, abi.MAX_DIM))
                    same, read[d] = fn.or_(fn.cmp("le", size, 1), near), fn.select(fn.cmp("le", size, 1), ahead, s)
                else:
                    same = fn.or_(fn.cmp("eq", size, 1), fn.cmp("eq", s, ahead))
                fits = fn.and_(fits, same)
                with fn.wrapping():
                    ahead = fn.mul(read.get(d, ahead), size)
            empty = fn.cmp("eq", n, 0)
            usual = fn.or_(empty, fn.not_(fits))  # then the argument has no elements, or is copied
            return [fn.or_(empty, fits), *(fn.select(usual, dense[d], read[d]) for d in free)]

        def plain() -> list[V]:
            return [fn.const(True, "i1"), *dense.values()]

        host.sizes.push()
        is_null = fn.cmp("eq", fn.ptr_to_int(given), 0)
        flag, *found = fn.if_else(is_null, plain, inspect, ["i1", *[I64] * len(free)])
        host.sizes.pop()
        return flag, {d: fn.min(fn.max(s, 0), abi.MAX_DIM) for d, s in zip(free, found, strict=True)}

    def stride(self, op: Stride) -> None:
        """Gives the symbol of a free dim its value."""
        k = self.host.arguments.index(op.operands[0])
        self.host.sizes.symbols[attr(op, "symbol")] = self.strides[k][attr(op, "dim")]

    def _copy_gaps(self, k: int, source: V, to: V, *, copies_out: bool, count: Callable[[V], V] = lambda rows: rows) -> None:
        """Copies argument k, which has gaps between elements, to dense memory or back."""
        host, fn, t = self.host, self.fn, from_mlir(self.host.arguments[k])
        kernel = emit_copy_strided(host.module, t.dtype.bytes, copies_out)
        sizes, strides = (host.tensor_field(k, field, PTR) for field in ("sizes", "strides"))
        last = host.sizes.emit(t.shape[-1])
        there = fn.cmp("ne", fn.ptr_to_int(strides), 0)  # else it's dense, and nothing is copied
        dim, along = self._second_dim(k, fn.select(there, strides, sizes))
        others = fn.div(fn.div(host.sizes.emit(t.numel), fn.max(last, 1)), fn.max(along, 1))
        with fn.wrapping():  # no more than there are elements
            items = fn.mul(others, fn.ceildivu(along, BLOCK_ROWS))
        columns = fn.mul(fn.min(last, _LONGEST), fn.min(along, BLOCK_ROWS))
        work = fn.add(fn.mul(columns, _ELEMENT_WORK), t.rank * _DIM_WORK)
        host.launch(kernel, [source, to, sizes, strides, fn.i64(t.rank), dim], count(items), grain_of(host, work))

    def _second_dim(self, k: int, strides: V) -> tuple[V, V]:
        """The dim beside the last one along which elements are closest in memory, if closer than along that one, else the one
        before; and its size. The last one and 1 where it's the only one."""
        host, fn, t = self.host, self.fn, from_mlir(self.host.arguments[k])
        last = t.rank - 1
        if last == 0:
            return fn.i64(0), fn.i64(1)
        dim, along = fn.i64(last - 1), host.sizes.emit(t.shape[last - 1])
        closest = fn.load(fn.gep(strides, last, I64), I64)
        for d in range(last):
            size, stride = host.sizes.emit(t.shape[d]), fn.load(fn.gep(strides, d, I64), I64)
            closer = fn.and_(fn.cmp("gt", stride, 0), fn.and_(fn.cmp("gt", size, 1), fn.cmp("lt", stride, closest)))
            dim, along, closest = fn.select(closer, d, dim), fn.select(closer, size, along), fn.select(closer, stride, closest)
        return dim, along

    # ------------------------------------------------------------------ new content
    def update(self, op: UpdateArgument | UpdateState) -> None:
        """Stores new content of a state or an argument that wasn't written in place."""
        host, v = self.host, base(op.operands[0])
        if isinstance(op, UpdateArgument):
            self._update_argument(attr(op, "input"), v)
        elif not is_written_over(v):
            name = attr(op, "name_")
            emit_copy(host, host.pointer(v), host.state(name), self.fn.i64(host.low.states.bytes(name)))

    def _update_argument(self, k: int, v: Value) -> None:
        """An argument with gaps is written element by element, even if its dense copy was written in place."""
        host, fn, t = self.host, self.fn, from_mlir(self.host.arguments[k])
        source, size, zero = host.pointer(v), host.size(t.bytes), fn.i64(0)
        dense = self.in_place.get(k, fn.const(True, "i1"))
        if not is_written_over(v):
            emit_copy(host, source, self.homes[k], fn.select(dense, size, zero))
        if k in self.in_place:
            self._copy_gaps(k, source, self.homes[k], copies_out=True, count=lambda rows: fn.select(dense, zero, rows))
