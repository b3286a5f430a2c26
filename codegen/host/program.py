"""The host function under construction: sizes, checks, addresses and launches, as families and the operations of the planned module
write them. A run and a plan are the same code: a planning call's services count and give addresses of nothing, and it learns
where sizes depend on data."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sympy

from dhlo.codegen.elementwise.emit import Slot
from dhlo.codegen.families.box import comes_from_afar
from dhlo.codegen.families.family import ChoiceFamily, Family
from dhlo.codegen.families.lowering import Lowering
from dhlo.codegen.host.checked import CheckedFn
from dhlo.codegen.host.sizes import SizeEmitter
from dhlo.codegen.kernel_ir import abi
from dhlo.codegen.kernel_ir.builder import I8, I32, I64, PTR, KernelModule, V
from dhlo.errors import InternalError
from dhlo.ir.dialect import attr, defining
from dhlo.ir.function import user_names
from dhlo.ir.handles import Block, Module, Value
from dhlo.ir.memory import base, buffers_of, memory_of, offset_of
from dhlo.ir.ops.control import Group
from dhlo.ir.ops.host import Packed
from dhlo.ir.ops.movement import State, Weight
from dhlo.ir.types import from_mlir

__all__ = ["HOST_PROGRAM", "HostProgram"]

HOST_PROGRAM = "dhlo_run"
"""What host programs' symbols begin with; a dot and the entry's number follow, but for the first one, then another and the
target's tag."""

_SHARED_ARGS = 48  # arguments of nearly every launch
_MOST_THREADS = 1024  # that the runtime gives
_TOO_LARGE = "the program has a tensor that is too large at these input sizes"


class HostProgram:
    """Writes a function into the lowering's module, of a planned module; what it is called begins with `symbol`. `families` are
    those of its groups, by number; only groups that choose between kernels at each call need theirs."""

    def __init__(self, low: Lowering, module: Module, block: Block, families: Sequence[Family], symbol: str = HOST_PROGRAM) -> None:
        self.symbol = symbol
        self.low, self.block, self.families = low, block, families
        self.arguments = list(block.arguments)
        self.names = user_names(module)
        self.launches: list[str] = []
        self.launches_of: list[list[int]] = []  # by group: the first of its launches, and the one after the last
        self.module: KernelModule = low.module
        self._labels = 0
        name = f"{symbol}.{low.module.target.tag}"
        self.fn = CheckedFn(self.module, name, [("call", PTR), ("inputs", PTR)], I32, internal=False)
        self.sizes = SizeEmitter(self.fn)
        self.pointers: dict[Value, V] = {}
        self.call, self.inputs = self.fn.args
        self.status = self.fn.alloca(1, I32, 8)
        self.fn.entry_store(self.fn.const(0, I32), self.status, 0)
        self.size_arrays: dict[int, V] = {}  # by argument: where the call gives its sizes
        self.arena: dict[int, tuple[V, V]] = {}  # by buffer: the segment's memory, and the offset in it
        self.cells: dict[int, V] = {}  # by check: where kernels report an index out of range
        self._service: dict[str, V] = {}
        self._facts: dict[str, V] = {}
        self._args: V | None = None
        self._kept: V | None = None
        self._group: Group | None = None  # whose launches are being written

    def begin_group(self, op: Group) -> None:
        """The launches that follow are the group's."""
        self._group = op
        self.launches_of.append([len(self.launches)] * 2)

    def end_group(self) -> None:
        """Ends the call if a launch of the group failed."""
        self.launches_of[-1][1] = len(self.launches)
        self.check_status()

    def choose(self, op: Group) -> None:
        """Writes the choice of a group between its kernels, and their launches."""
        family = self.families[attr(op, "number")]
        assert isinstance(family, ChoiceFamily)
        family.emit_launch(self)
        strange = set(self.launches[self.launches_of[-1][0] :]) - set(attr(op, "kernels"))
        if strange:
            raise InternalError(f"{op.OPERATION_NAME} at {op.location} launches {min(strange)}, which isn't one of its kernels")

    # ------------------------------------------------------------------ what the call brings
    @property
    def num_threads(self) -> V:
        return self.fn.define(self.service("num_threads", I64), 1, _MOST_THREADS)

    @property
    def l2_bytes(self) -> V:
        return self.machine("l2_bytes")

    def machine(self, fact: str) -> V:
        """A fact of the machine that the program runs on, by its name in `abi.MACHINE`."""
        if fact not in self._facts:
            value = self.fn.entry_load(self.service("machine", PTR), abi.MACHINE[fact], I64)
            self._facts[fact] = self.fn.define(value, *abi.MACHINE_RANGES[fact])
        return self._facts[fact]

    def service(self, name: str, ty: str) -> V:
        """A field of the call's structure, loaded once."""
        if name not in self._service:
            self._service[name] = self.fn.entry_load(self.call, abi.CALL[name] // 8, ty)
        return self._service[name]

    def tensor_field(self, k: int, name: str, ty: str) -> V:
        """A field of argument k as the call gives it."""
        return self.fn.load(self.fn.gep(self.inputs, k * abi.TENSOR_BYTES + abi.TENSOR[name], I8), ty)

    def size(self, e: sympy.Expr | int) -> V:
        return self.sizes.whole(e)

    # ------------------------------------------------------------------ launches
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
        number = len(self.launches)
        self.launches.append(kernel)
        r = fn.call_ptr(
            self.service("launch", PTR),
            [
                self.call,
                fn.address_of(kernel),
                self.shared_array(args),
                fn.i64(count),
                fn.i64(grain),
                fn.i64(scratch),
                fn.i64(number),
            ],
            I32,
        )
        assert r is not None
        fn.store(fn.or_(fn.load(self.status, I32), r), self.status)

    def shared_array(self, values: Sequence[V]) -> V:
        """An array that lives until the next launch or output: one for all, so that the stack stays small."""
        if len(values) > _SHARED_ARGS:
            return self.array(list(values))
        if self._args is None:
            self._args = self.fn.alloca(_SHARED_ARGS, I64, 8)
        for i, v in enumerate(values):
            self.fn.store(v, self.fn.gep(self._args, i, I64), 8)
        return self._args

    def kept(self) -> V:
        """An array with a number for each worker, 0 as the next launch begins: one for all launches."""
        fn = self.fn
        if self._kept is None:
            self._kept = fn.alloca(self.service("num_threads", I64), I64, 8)
        with fn.loop(0, self.num_threads) as worker:
            fn.store(fn.i64(0), fn.gep(self._kept, worker.iv, I64), 8)
        return self._kept

    def array(self, values: list[V]) -> V:
        """An argument array of its own on the stack."""
        p = self.fn.alloca(max(1, len(values)), I64, 8)
        for i, v in enumerate(values):
            self.fn.store(v, self.fn.gep(p, i, I64), 8)
        return p

    # ------------------------------------------------------------------ memory
    def constant(self, offset: int) -> V:
        return self.fn.gep(self.service("constants", PTR), offset, I8)

    def state(self, name: str) -> V:
        """Address of a state's content."""
        return self.fn.gep(self.service("state", PTR), self.low.states.offset(name), I8)

    def pointer(self, v: Value) -> V:
        """Address of a value's memory."""
        if v in self.pointers:
            return self.pointers[v]
        memory, op = memory_of(v), defining(v)
        if "buffer" in memory:
            return self.arena_pointer(memory["buffer"])
        if "argument" in memory:
            return self.pointers[self.arguments[memory["argument"]]]
        if "state" in memory:
            return self.state(memory["state"])
        if "offset" in memory:
            p, offset = self.pointer(base(v)), offset_of(v)
            return p if offset == 0 else self.fn.gep(p, self.size(offset * from_mlir(v).dtype.bytes), I8)
        if isinstance(op, State):
            return self.state(attr(op, "name_"))
        if isinstance(op, Weight):
            name = attr(op, "name_")
            return self.constant(self.low.constants.add_tensor(name, self.low.weights[name]))
        if isinstance(op, Packed):
            return self.constant(attr(op, "offset"))
        raise InternalError(f"no memory for {v}")

    def arena_pointer(self, buffer: int) -> V:
        segment, offset = self.arena[buffer]
        return self.fn.gep(segment, offset, I8)

    def workspace(self) -> V:
        """Address of the memory that the group asked for."""
        found = buffers_of(self._group, "workspace_memory")
        return self.arena_pointer(found[0]) if found else self.fn.int_to_ptr(self.fn.i64(64))  # no bytes were asked for

    def slot(self, s: Slot) -> V:
        kind, what = s
        if kind == "pointer":
            return self.pointer(what)
        if kind == "errors":
            return self.cell(what)
        if kind == "far":
            return self.far(what)
        return self.size(what) if kind == "size" else self.sizes.real(what)

    def far(self, nbytes: sympy.Expr) -> V:
        """1 where so many bytes are worth asking for ahead, else 0."""
        return self.fn.cast(comes_from_afar(self, self.size(nbytes)), I64, signed=False)

    def cell(self, check: int) -> V:
        """Where kernels report an index out of range: [index, size, flag], cleared in the entry block."""
        if check not in self.cells:
            self.cells[check] = self.fn.alloca(3, I64, 8)
            self.fn.entry_store(self.fn.const(0, I64), self.cells[check], 2)
        return self.cells[check]

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
        r = fn.call_ptr(self.service("fail", PTR), [self.call, fn.i64(check), expected, got], I32)
        fn.ret(r)
        fn.label(good)

    def check_sizes(self) -> None:
        """Ends the call if a size that was computed so far doesn't fit. Stands before all that asks for memory."""
        fn, zero = self.fn, self.fn.i64(0)
        if not fn.is_tested:
            self.require(fn.not_(fn.overflow()), self.low.checks.add("SIZE", _TOO_LARGE), zero, zero)
            fn.is_tested = True

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

    def non_null(self, p: V) -> None:
        """Ends the call unless the runtime gave memory; it knows why."""
        fn = self.fn
        good, bad = self.label("ok"), self.label("bad")
        fn.branch(fn.cmp("ne", fn.ptr_to_int(p), 0), good, bad)
        fn.label(bad)
        fn.ret(fn.const(1, I32))
        fn.label(good)

    def poll(self, last: bool = False) -> None:
        """Ends the call if it was told to stop. With `last` it isn't stopped any more afterwards."""
        fn = self.fn
        good, bad = self.label("ok"), self.label("bad")
        r = fn.call_ptr(self.service("poll", PTR), [self.call, fn.const(int(last), I32)], I32)
        assert r is not None
        fn.branch(fn.cmp("eq", r, 0), good, bad)
        fn.label(bad)
        fn.ret(r)
        fn.label(good)

    # ------------------------------------------------------------------ planning calls
    @property
    def planning(self) -> V:
        """Is this a call that plans? Then no memory but that of constants, and of arguments of rank 0, may be read or written."""
        return self.fn.cmp("ne", self.fn.ptr_to_int(self.service("plan", PTR)), 0)

    def mark_data_dependent(self) -> None:
        """Tells a planning call that what follows depends on data: it counts one of the ways that a run may take."""
        with self.fn.when(self.planning):
            self.plan_field("data_dependent", self.fn.i64(1))

    def plan_field(self, name: str, value: V) -> None:
        """Tells a planning call something."""
        self.fn.store(value, self.fn.gep(self.service("plan", PTR), abi.PLAN[name], I64), 8)

    def unless_planning(self, value: Callable[[], V], planned: V) -> V:
        """What a run reads from memory, and what a planning call takes instead."""
        return self.fn.if_else(self.planning, lambda: [planned], lambda: [value()], [planned.type])[0]

    def end_plan(self, cond: V) -> None:
        """Where `cond`, ends a planning call: without data, sizes aren't known from here on."""
        stop, go = self.label("stop"), self.label("go")
        self.fn.branch(cond, stop, go)
        self.fn.label(stop)
        self.plan_field("data_dependent", self.fn.i64(1))
        self.fn.ret(self.fn.const(0, I32))
        self.fn.label(go)
