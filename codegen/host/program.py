"""The host program, one generated function: contract, sizes, arena offsets, outputs, branches and launches. Run and plan are
the same code: a planning call's services count and give addresses of nothing, and it learns where sizes depend on data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import sympy

from dhlo.codegen.elementwise.emit import Slot
from dhlo.codegen.families.copy.flat import BLOCK_BYTES, emit_copy_flat
from dhlo.codegen.families.copy.strided import emit_copy_strided
from dhlo.codegen.families.kernel import where
from dhlo.codegen.families.lowering import Lowering
from dhlo.codegen.families.scatter.nonzero import emit_nonzero
from dhlo.codegen.families.sort.unique import emit_unique, unique_scratch
from dhlo.codegen.host.checked import CheckedFn
from dhlo.codegen.host.contract import Argument, Contract
from dhlo.codegen.host.control import emit_cond, emit_while
from dhlo.codegen.host.sizes import SizeEmitter
from dhlo.codegen.kernel_ir import abi
from dhlo.codegen.kernel_ir.builder import F64, I8, I32, I64, PTR, KernelModule, V
from dhlo.errors import CompileError, InternalError
from dhlo.ir.dialect import Kind, attr, defining
from dhlo.ir.ops.control import Assert, AssertTensor, Cond, Group, Item, Nonzero, While
from dhlo.ir.ops.lookup import Unique
from dhlo.ir.ops.movement import State, Weight
from dhlo.ir.ops.random import RandomKey
from dhlo.ir.symbols import parse, spell, symbols_of
from dhlo.ir.types import from_mlir
from dhlo.shape_infer.buffers import Arrangement, Buffer, Plan, aligned
from dhlo.shape_infer.views import dense_strides

__all__ = ["HOST_PROGRAM", "HostProgram", "Layout"]

HOST_PROGRAM = "dhlo_run"
"""What the host program's symbol begins with; a dot and the target's tag follow."""

_SHARED_ARGS = 48  # arguments of nearly every launch
STAGING_SEGMENT = 1  # dense copies of arguments that came with gaps
_MOST_BYTES = 1 << 52  # more than any machine has; sums of buffers below it need no check
_MOST_THREADS = 1024  # that the runtime gives
_TOO_LARGE = "the program has a tensor that is too large at these input sizes"


@dataclass
class Layout:
    """Where values live: outputs by number, arena buffers by (segment, buffer), and values that are others seen differently."""

    outputs: dict[Any, list[int]]
    arena: dict[Any, Any]  # value or group (its workspace) -> Buffer
    alias: dict[Any, Any]  # value -> value whose memory it shows
    offsets: dict[Any, sympy.Expr]  # value -> where in that memory it begins, in elements
    plans: list[tuple[int, Plan]]  # (segment, plan); segment 0 is known at the start
    ready: dict[int, list[int]]  # operation number -> plans that can be laid out after it
    launches: list[str] = field(default_factory=list)
    numbers: dict[Any, int] = field(default_factory=dict)
    updates: list[tuple[str | int, Any]] = field(default_factory=list)  # state or argument, the value that becomes its content
    written: dict[Any, Any] = field(default_factory=dict)  # value -> value in whose memory it is written over
    conditional: set[Buffer] = field(default_factory=set)  # what a branch or loop needs, which may not run


class HostProgram:
    """Writes the host program into the lowering's module."""

    def __init__(
        self,
        low: Lowering,
        args: Sequence[Argument],
        arguments: Sequence[Any],
        contract: Contract,
        layout: Layout,
        steps: dict[Any, Any],
        returns: Sequence[Any],
    ) -> None:
        self.low, self.args, self.arguments, self.contract, self.layout, self.steps = low, args, arguments, contract, layout, steps
        self.returns = returns
        self.module: KernelModule = low.module
        self._labels = 0
        name = f"{HOST_PROGRAM}.{low.module.target.tag}"
        self.fn = CheckedFn(self.module, name, [("call", PTR), ("inputs", PTR)], I32, internal=False)
        self.sizes = SizeEmitter(self.fn)
        self.pointers: dict[Any, V] = {}
        self.call = self.fn.args[0]
        self._cells: dict[int, V] = {}
        self._offsets: dict[Any, tuple[V, V]] = {}
        self._service: dict[str, V] = {}
        self._facts: dict[str, V] = {}
        self._args: V | None = None

    # ------------------------------------------------------------------ HostContext
    @property
    def num_threads(self) -> V:
        return self.fn.define(self._field("num_threads", I64), 1, _MOST_THREADS)

    @property
    def l2_bytes(self) -> V:
        return self.machine("l2_bytes")

    def machine(self, fact: str) -> V:
        """A fact of the machine that the program runs on, by its name in `abi.MACHINE`."""
        if fact not in self._facts:
            value = self.fn.entry_load(self._field("machine", PTR), abi.MACHINE[fact], I64)
            self._facts[fact] = self.fn.define(value, *abi.MACHINE_RANGES[fact])
        return self._facts[fact]

    def _field(self, name: str, ty: str) -> V:
        if name not in self._service:
            self._service[name] = self.fn.entry_load(self.call, abi.CALL[name] // 8, ty)
        return self._service[name]

    def size(self, e: sympy.Expr | int) -> V:
        return self.sizes.whole(e)

    def launch(self, kernel: str, args: Sequence[V], count: V | int, grain: V | int, scratch: V | int = 0) -> None:
        fn = self.fn
        if not fn.is_nested:
            self.check_sizes()
        elif not fn.is_tested:  # the test that ends the call comes after the branch
            with fn.when(fn.not_(fn.overflow())):
                self._launch(kernel, args, count, grain, scratch)
            return
        self._launch(kernel, args, count, grain, scratch)

    def _launch(self, kernel: str, args: Sequence[V], count: V | int, grain: V | int, scratch: V | int) -> None:
        fn = self.fn
        number = len(self.layout.launches)
        self.layout.launches.append(kernel)
        r = fn.call_ptr(
            self._field("launch", PTR),
            [
                self.call,
                fn.address_of(kernel),
                self._shared_array(args),
                fn.i64(count),
                fn.i64(grain),
                fn.i64(scratch),
                fn.i64(number),
            ],
            I32,
        )
        assert r is not None
        fn.store(fn.or_(fn.load(self.status, I32), r), self.status)

    def _shared_array(self, values: Sequence[V]) -> V:
        """An array that lives until the next launch or output: one for all, so that the stack stays small."""
        if len(values) > _SHARED_ARGS:
            return self.array(list(values))
        if self._args is None:
            self._args = self.fn.alloca(_SHARED_ARGS, I64, 8)
        for i, v in enumerate(values):
            self.fn.store(v, self.fn.gep(self._args, i, I64), 8)
        return self._args

    def array(self, values: list[V]) -> V:
        """An argument array of its own on the stack."""
        p = self.fn.alloca(max(1, len(values)), I64, 8)
        for i, v in enumerate(values):
            self.fn.store(v, self.fn.gep(p, i, I64), 8)
        return p

    def constant(self, offset: int) -> V:
        return self.fn.gep(self._field("constants", PTR), offset, I8)

    def pointer(self, v: Any) -> V:
        """Address of a value's memory."""
        if v in self.pointers:
            return self.pointers[v]
        if v in self.layout.written:
            return self.pointer(self.layout.written[v])
        if v in self.layout.alias:
            p, offset = self.pointer(self.layout.alias[v]), self.layout.offsets[v]
            return p if offset == 0 else self.fn.gep(p, self.size(offset * from_mlir(v).dtype.bytes), I8)
        if isinstance(defining(v), State):
            return self.fn.gep(self._field("state", PTR), self.low.states.offset(attr(defining(v), "name_")), I8)
        if isinstance(defining(v), Weight):
            name = attr(defining(v), "name_")
            return self.constant(self.low.constants.add_tensor(name, self.low.weights[name]))
        if v in self.layout.arena:
            return self.arena_pointer(v)
        raise InternalError(f"no memory for {v}")

    def arena_pointer(self, key: Any) -> V:
        base, offset = self._offsets[self.layout.arena[key]]
        return self.fn.gep(base, offset, I8)

    def workspace(self) -> V:
        if self._current not in self.layout.arena:  # no bytes were asked for
            return self.fn.int_to_ptr(self.fn.i64(64))
        return self.arena_pointer(self._current)

    def slot(self, s: Slot) -> V:
        kind, what = s
        if kind == "pointer":
            return self.pointer(what)
        if kind == "errors":
            return self._cell(what)
        return self.size(what) if kind == "size" else self.sizes.real(what)

    def _cell(self, check: int) -> V:
        """Where kernels report an index out of range: [index, size, flag], cleared in the entry block."""
        if check not in self._cells:
            self._cells[check] = self.fn.alloca(3, I64, 8)
            self.fn.entry_store(self.fn.const(0, I64), self._cells[check], 2)
        return self._cells[check]

    # ------------------------------------------------------------------ control flow
    def label(self, what: str) -> str:
        self._labels += 1
        return f"{what}{self._labels}"

    def require(self, ok: V, check: int, expected: V, got: V) -> None:
        """Ends the call with an error unless `ok`."""
        fn = self.fn
        good, bad = self.label("ok"), self.label("bad")
        fn.branch(ok, good, bad)
        fn.label(bad)
        r = fn.call_ptr(self._field("fail", PTR), [self.call, fn.i64(check), expected, got], I32)
        fn.ret(r)
        fn.label(good)

    def check_sizes(self) -> None:
        """Ends the call if a size that was computed so far doesn't fit. Stands before all that asks for memory."""
        fn, zero = self.fn, self.fn.i64(0)
        if not fn.is_tested:
            self.require(fn.not_(fn.overflow()), self.low.checks.add("SIZE", _TOO_LARGE), zero, zero)
            fn.is_tested = True

    def check_dims(self, values: Sequence[Any], op: Any) -> None:
        """Ends the call where a dim of a value is negative, unless that can't be."""
        fn = self.fn
        for e in dict.fromkeys(e for v in values for e in from_mlir(v).shape if not e.is_Integer):
            n = self.size(e)
            if fn.interval(n)[0] < 0:
                text = f"a tensor's size {spell(e, self.contract.names)} at {where(op)} must be at least 0"
                self.require(fn.cmp("ge", n, 0), self.low.checks.add("MIN", text), fn.i64(0), n)
                fn.assume(n, 0)

    def check_status(self) -> None:
        """Ends the call if a launch failed, or wasn't made since a size of it doesn't fit."""
        self.check_sizes()
        fn = self.fn
        good, bad = self.label("ok"), self.label("bad")
        s = fn.load(self.status, I32)
        fn.branch(fn.cmp("eq", s, 0), good, bad)
        fn.label(bad)
        fn.ret(s)
        fn.label(good)

    def _non_null(self, p: V) -> None:
        fn = self.fn
        good, bad = self.label("ok"), self.label("bad")
        fn.branch(fn.cmp("ne", fn.ptr_to_int(p), 0), good, bad)
        fn.label(bad)
        fn.ret(fn.const(1, I32))
        fn.label(good)

    # ------------------------------------------------------------------ planning calls
    @property
    def planning(self) -> V:
        """Is this a call that plans? Then no memory but that of constants, and of arguments of rank 0, may be read or written."""
        return self.fn.cmp("ne", self.fn.ptr_to_int(self._field("plan", PTR)), 0)

    def mark_data_dependent(self) -> None:
        """Tells a planning call that what follows depends on data: it counts one of the ways that a run may take."""
        with self.fn.when(self.planning):
            self._plan_field("data_dependent", self.fn.i64(1))

    def _plan_field(self, name: str, value: V) -> None:
        self.fn.store(value, self.fn.gep(self._field("plan", PTR), abi.PLAN[name], I64), 8)

    def unless_planning(self, value: Callable[[], V], planned: V) -> V:
        """What a run reads from memory, and what a planning call takes instead."""
        return self.fn.if_else(self.planning, lambda: [planned], lambda: [value()], [planned.type])[0]

    def _end_plan(self, cond: V) -> None:
        """Where `cond`, ends a planning call: without data, sizes aren't known from here on."""
        stop, go = self.label("stop"), self.label("go")
        self.fn.branch(cond, stop, go)
        self.fn.label(stop)
        self._plan_field("data_dependent", self.fn.i64(1))
        self.fn.ret(self.fn.const(0, I32))
        self.fn.label(go)

    def _begin_plan(self) -> None:
        """What a planning call alone computes: outputs whose sizes the arguments tell, and how much of the arena lives at once."""
        fn = self.fn
        self.check_sizes()
        plan, go = self.label("plan"), self.label("go")
        fn.branch(self.planning, plan, go)
        fn.label(plan)
        self.sizes.push()
        known = set(self.sizes.symbols)
        for index, v in enumerate(self.returns):
            shape = from_mlir(v).shape
            if all(symbols_of(s) <= known for s in shape):
                array = self._shared_array([self.size(s) for s in shape])
                self.check_sizes()
                fn.call_ptr(self._field("output", PTR), [self.call, fn.i64(index), fn.i64(len(shape)), array], PTR)
        peak = fn.const(0, I64)
        for _, p in self.layout.plans:
            if all(symbols_of(b.bytes) <= known for b in p.buffers):
                peak = fn.add(peak, self._peak_live(p))
        self.check_sizes()
        self._plan_field("peak_live_bytes", peak)
        self.sizes.pop()
        fn.jump(go)
        fn.label(go)

    def _peak_live(self, plan: Plan) -> V:
        fn = self.fn
        sizes = {b: self._bytes(b) for b in plan.buffers}
        most = now = fn.const(0, I64)
        with fn.wrapping():  # no sum is larger than that of all buffers, which the arena's layout checks
            for came, went in plan.peaks:
                for b in came:
                    now = fn.add(now, sizes[b])
                for b in went:
                    now = fn.sub(now, sizes[b])
                most = fn.max(most, now)
        return most

    # ------------------------------------------------------------------ run
    def emit_run(self, block: Any) -> None:
        """Writes the function."""
        fn = self.fn
        self.status = fn.alloca(1, I32, 8)
        fn.entry_store(fn.const(0, I32), self.status, 0)
        self.contract.emit(fn, fn.args[1], self.sizes, self.require)
        self._begin_plan()
        self._stage_inputs()
        self._lay_out(self.layout.ready.get(-1, []))
        self.block(block, {})
        for check, cell in self._cells.items():
            flag = fn.load(fn.gep(cell, 2, I64), I64)
            self.require(fn.cmp("eq", flag, 0), check, fn.load(fn.gep(cell, 1, I64), I64), fn.load(cell, I64))
        self._update()
        fn.ret(fn.const(0, I32))
        fn.done()

    def _update(self) -> None:
        """Stores new content of state and arguments that wasn't written in place; after all checks, so that a failed call changes
        nothing of it."""
        for target, v in self.layout.updates:
            if isinstance(target, int):
                self._update_argument(target, v)
            elif v not in self.layout.written:
                to = self.fn.gep(self._field("state", PTR), self.low.states.offset(target), I8)
                self._copy_flat(self.pointer(v), to, self.fn.i64(self.low.states.bytes(target)))
        if self.layout.updates:
            self.check_status()

    def _copy_flat(self, source: V, to: V, size: V) -> None:
        self.launch(emit_copy_flat(self.module), [source, to, size], self.fn.ceildivu(size, BLOCK_BYTES), 8)

    def _update_argument(self, number: int, v: Any) -> None:
        """An argument with gaps is written element by element, even if its dense copy was written in place."""
        fn, a = self.fn, self.args[number]
        home, source = self._homes[number], self.pointer(v)
        size, zero = self.size(a.memory.bytes), fn.i64(0)
        is_dense = self._dense[number]
        if v not in self.layout.written:
            self._copy_flat(source, home, fn.select(is_dense, size, zero))
        if a.type.rank and a.grows is None:
            self._copy_gaps(number, source, home, copies_out=True, count=lambda rows: fn.select(is_dense, zero, rows))

    def _stage_inputs(self) -> None:
        """Arguments with gaps between elements are copied; dense ones are used where they are."""
        fn = self.fn
        dense: list[V] = []
        total: V | None = None
        offsets: list[V] = []
        for i, a in enumerate(self.args):
            strides = fn.load(fn.gep(fn.args[1], i * abi.TENSOR_BYTES + abi.TENSOR["strides"], I8), PTR)
            n = self.size(a.type.numel)

            def inspect(a: Argument = a, strides: V = strides, n: V = n) -> list[V]:
                ok = fn.cmp("eq", n, 0)
                same = fn.const(True, "i1")
                for d, (size, want) in enumerate(zip(a.type.shape, dense_strides(a.type.shape), strict=True)):
                    s = fn.load(fn.gep(strides, d, I64), I64)
                    same = fn.and_(same, fn.or_(fn.cmp("eq", self.sizes.emit(size), 1), fn.cmp("eq", s, self.sizes.emit(want))))
                return [fn.or_(ok, same)]

            if a.grows is not None:  # the contract has checked its buffer
                dense.append(fn.const(True, "i1"))
                offsets.append(total if total is not None else fn.const(0, I64))
                continue
            self.sizes.push()
            is_null = fn.cmp("eq", fn.ptr_to_int(strides), 0)
            flag = fn.if_else(is_null, lambda: [fn.const(True, "i1")], inspect, ["i1"])[0]
            self.sizes.pop()
            dense.append(flag)
            bytes_ = self._limited(self.size(aligned(a.type.bytes)))
            offsets.append(total if total is not None else fn.const(0, I64))
            need = fn.select(flag, fn.const(0, I64), bytes_)
            total = need if total is None else fn.add(total, need)
        self._homes = [
            fn.load(fn.gep(fn.args[1], i * abi.TENSOR_BYTES + abi.TENSOR["data"], I8), PTR) for i in range(len(self.arguments))
        ]
        self._dense = dense
        self.pointers.update(zip(self.arguments, self._homes, strict=True))
        if total is None:
            return
        self.check_sizes()
        plain, copy, join = self.label("dense"), self.label("stage"), self.label("staged")
        cells = [fn.alloca(1, PTR, 8) for _ in self.arguments]
        for cell, v in zip(cells, self.arguments, strict=True):
            fn.store(self.pointers[v], cell, 8)
        fn.branch(fn.cmp("eq", total, 0), plain, copy)
        fn.label(copy)
        base = self._arena(STAGING_SEGMENT, total)
        self.sizes.push()
        for i, (a, v) in enumerate(zip(self.args, self.arguments, strict=True)):
            if not a.type.rank or a.grows is not None:
                continue
            with fn.when(fn.not_(dense[i])):
                to = fn.gep(base, offsets[i], I8)
                self._copy_gaps(i, self.pointers[v], to, copies_out=False)
                fn.store(to, cells[i], 8)
        self.sizes.pop()
        self.check_status()
        fn.jump(join)
        fn.label(plain)
        fn.jump(join)
        fn.label(join)
        for cell, v in zip(cells, self.arguments, strict=True):
            self.pointers[v] = fn.load(cell, PTR, 8)

    def _copy_gaps(self, i: int, source: V, to: V, *, copies_out: bool, count: Callable[[V], V] = lambda rows: rows) -> None:
        """Copies argument i, which has gaps between elements, to dense memory or back."""
        fn, a = self.fn, self.args[i]
        kernel = emit_copy_strided(self.module, a.type.dtype.bytes, copies_out)
        tensor = fn.gep(fn.args[1], i * abi.TENSOR_BYTES, I8)
        sizes, strides = (fn.load(fn.gep(tensor, abi.TENSOR[field], I8), PTR) for field in ("sizes", "strides"))
        last = self.sizes.emit(a.type.shape[-1])
        rows = fn.div(self.sizes.emit(a.type.numel), fn.max(last, 1))
        self.launch(kernel, [source, to, sizes, strides, fn.i64(a.type.rank)], count(rows), 1 << 12)

    def _limited(self, nbytes: V) -> V:
        """The size of a buffer; what no machine has counts as overflow."""
        fn = self.fn
        if fn.interval(nbytes)[1] > _MOST_BYTES:
            fn.record(fn.cmp("gt", nbytes, _MOST_BYTES))
            fn.assume(nbytes, hi=_MOST_BYTES)
        return nbytes if fn.interval(nbytes)[0] >= 0 else fn.max(nbytes, 0)

    def _bytes(self, b: Buffer) -> V:
        """Bytes of a buffer; none where a dim is negative or, of what a branch needs that may not run, where they don't fit. That
        is an error when the operation runs."""
        if b not in self.layout.conditional:
            return self._limited(self.size(b.bytes))
        self.sizes.push()
        with self.fn.capture() as flags:
            nbytes = self._limited(self.size(b.bytes))
        self.sizes.pop()
        out = nbytes if not flags else self.fn.select(self.fn.any_of(flags), 0, nbytes)
        return self.fn.assume(out, 0, _MOST_BYTES)

    def _arena(self, segment: int, nbytes: V) -> V:
        self.check_sizes()
        p = self.fn.call_ptr(self._field("arena", PTR), [self.call, self.fn.i64(segment), nbytes], PTR)
        assert p is not None
        self._non_null(p)
        return p

    def _lay_out(self, plans: Sequence[int]) -> None:
        """Offsets and memory of arena segments whose sizes are known now."""
        for k in plans:
            segment, plan = self.layout.plans[k]
            if not plan.buffers:
                continue
            offsets, total = self._plan_offsets(plan)
            base = self._arena(segment, total)
            for b, o in offsets.items():
                self._offsets[b] = (base, o)

    def _plan_offsets(self, plan: Plan) -> tuple[dict[Any, V], V]:
        """Offsets and total of the arrangement that needs least at these sizes."""
        fn = self.fn
        best: tuple[dict[Any, V], V] | None = None
        for a in plan.arrangements:
            offsets, total = self._arrange(a)
            if best is not None:
                better = fn.cmp("lt", total, best[1])
                offsets = {b: fn.select(better, o, best[0][b]) for b, o in offsets.items()}
                total = fn.min(total, best[1])
            best = offsets, total
        return best or ({}, fn.i64(0))

    def _arrange(self, a: Arrangement) -> tuple[dict[Any, V], V]:
        fn, zero = self.fn, self.fn.i64(0)
        offsets: dict[Any, V] = {}
        ends: dict[Any, V] = {}
        total = zero
        for b in a.order:
            o = zero
            for x in a.below[b]:
                o = ends[x] if o is zero else fn.max(o, ends[x])
            offsets[b] = o
            ends[b] = fn.add(o, self._bytes(b))
            total = fn.max(total, ends[b])
        return offsets, total

    # ------------------------------------------------------------------ operations
    def block(self, block: Any, bound: dict[Any, V]) -> None:
        """All operations of a block; `bound` gives memory to values that a surrounding op owns."""
        self.pointers.update(bound)
        for op in list(block.operations)[:-1]:
            if isinstance(op, Group):
                self._group(op)
            elif isinstance(op, Item):
                self._item(op)
            elif isinstance(op, Nonzero):
                self._nonzero(op)
            elif isinstance(op, Unique):
                self._unique(op)
            elif isinstance(op, RandomKey):
                self._random_key(op)
            elif isinstance(op, Assert):
                cond = parse(attr(op, "condition"))
                number = self.low.checks.add("ASSERT", attr(op, "message"))
                zero = self.fn.i64(0)
                self.require(self.sizes.truth(cond), number, zero, zero)
            elif isinstance(op, AssertTensor):
                p, zero = self.pointer(op.operands[0]), self.fn.i64(0)
                x = self.unless_planning(partial(self.fn.load, p, I8), self.fn.const(1, I8))
                self.require(self.fn.cmp("ne", x, 0), self.low.checks.add("ASSERT", attr(op, "message")), zero, zero)
            elif isinstance(op, Cond):
                emit_cond(self, op)
            elif isinstance(op, While):
                emit_while(self, op)
            elif not (op.kind.pullable or op.kind is Kind.WEIGHT):
                raise CompileError(f"{op.OPERATION_NAME} has no kernel yet", where=where(op))
            self._lay_out(self.layout.ready.get(self.layout.numbers[op.operation], []))

    def place_results(self, values: Sequence[Any], op: Any) -> None:
        """Checks the sizes of an operation's results, and gets memory for those that are outputs of the model."""
        fn = self.fn
        self.check_dims(values, op)
        for key in (*values, op.operation):
            b = self.layout.arena.get(key)
            if b in self.layout.conditional:  # its memory was counted as none if it doesn't fit
                self._limited(self.size(b.bytes))
        self.check_sizes()
        for v in values:
            for index in self.layout.outputs.get(v, []):
                shape = self._output_shape(index)
                sizes = [self.size(s) for s in shape]
                self.check_sizes()
                array = self._shared_array(sizes)
                p = fn.call_ptr(self._field("output", PTR), [self.call, fn.i64(index), fn.i64(len(shape)), array], PTR)
                assert p is not None
                self._non_null(p)
                self.pointers[v] = p

    def _output_shape(self, index: int) -> tuple[sympy.Expr, ...]:
        return from_mlir(self.returns[index]).shape

    def _group(self, op: Any) -> None:
        inside = list(op.operation.regions[0].blocks[0].operations)[:-1]
        self.check_dims([v for x in inside for v in (*x.operands, *x.results)], op)
        self.place_results(op.results, op)
        self._current = op.operation
        self.steps[op.operation].emit(self)
        self.check_status()

    def _item(self, op: Item) -> None:
        """Reads a number. A planning call knows those that were passed as arguments of rank 0, if their data was given."""
        fn, v, name = self.fn, op.operands[0], attr(op, "symbol")
        t, p = from_mlir(v), self.pointer(v)
        if self.base(v) not in self.arguments or from_mlir(self.base(v)).rank:
            self._end_plan(self.planning)
        else:
            self._end_plan(fn.cmp("eq", fn.ptr_to_int(p), 0))
        raw = fn.load(p, {"i1": I8, "ui8": I8}.get(t.dtype.name, t.dtype.name))
        if t.dtype.is_float:
            x = fn.cast(raw, F64)
        else:
            x = fn.cast(raw, I64, signed=t.dtype.name not in ("i1", "ui8"))
            if not name.startswith("u"):  # bounds of run-time symbols are assertions, and hold from there on
                number = self.arguments.index(self.base(v)) if self.base(v) in self.arguments else -1
                self.contract.check_number(fn, name, number, x, self.require)
        self.sizes.symbols[name] = x

    def _nonzero(self, op: Nonzero) -> None:
        fn, t = self.fn, from_mlir(op.operands[0])
        count, fill = emit_nonzero(self.module, t.dtype, t.rank)
        cell = fn.alloca(1, I64, 8)
        x, dims = self.pointer(op.operands[0]), [self.size(s) for s in t.shape]
        n = self.size(t.numel)
        self.launch(count, [x, n, cell], 1, 1)
        self._define_size(op, cell, n)
        self.place_results(op.results, op)
        self.launch(fill, [x, n, self.pointer(op.results[0]), *dims], 1, 1)
        self.check_status()

    def _unique(self, op: Unique) -> None:
        fn, t = self.fn, from_mlir(op.operands[0])
        find, fill = emit_unique(self.module, t.dtype)
        values, inverse, counts = op.results
        self.place_results([inverse], op)
        cell = fn.alloca(1, I64, 8)
        x, n, number = self.pointer(op.operands[0]), self.size(t.numel), self.pointer(inverse)
        self.launch(find, [x, n, number, cell], 1, 1, self.size(unique_scratch(t.dtype, t.numel, fn.lanes)))
        self._define_size(op, cell, n)
        self.place_results([values, counts], op)
        self.launch(fill, [x, n, number, fn.load(cell, I64), self.pointer(values), self.pointer(counts)], 1, 1)
        self.check_status()

    def _random_key(self, op: RandomKey) -> None:
        """Takes a draw from the session's generator."""
        fn, generator = self.fn, self._field("random", PTR)
        self.place_results(op.results, op)
        key, draws = self.pointer(op.results[0]), fn.gep(generator, 1, I64)
        with fn.when(fn.not_(self.planning)), fn.wrapping():
            number = fn.load(draws, I64)
            fn.store(fn.load(generator, I64), key)
            fn.store(number, fn.gep(key, 1, I64))
            fn.store(fn.add(number, 1), draws)

    def _define_size(self, op: Any, cell: V, most: V) -> None:
        """The op's symbol has its value in `cell` now, not above `most`: what depends on it gets memory."""
        self.check_status()
        self._end_plan(self.planning)
        self.sizes.symbols[attr(op, "symbol")] = self.fn.define(self.fn.load(cell, I64), 0, self.fn.interval(most)[1])
        self._lay_out(self.layout.ready.pop(self.layout.numbers[op.operation], []))

    def base(self, v: Any) -> Any:
        """The value whose memory `v` shows."""
        return self.layout.alias.get(v, v)

    def is_written_over(self, v: Any) -> bool:
        """Is `v` written over the content that it replaces part of?"""
        return v in self.layout.written
