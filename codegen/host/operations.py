"""The planned module's operations in the host program, in order: the function `dhlo_run`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import sympy

from dhlo.codegen.families.box import grain_of
from dhlo.codegen.families.family import Family
from dhlo.codegen.families.kernel import where
from dhlo.codegen.families.lowering import Lowering
from dhlo.codegen.families.scatter.nonzero import COUNTS, Counted, count_nonzero, fill_nonzero
from dhlo.codegen.families.sort.unique import emit_unique, unique_scratch
from dhlo.codegen.host.arguments import Arguments
from dhlo.codegen.host.contract import emit_contract
from dhlo.codegen.host.control import emit_cond, emit_while
from dhlo.codegen.host.memory import Memory
from dhlo.codegen.host.program import HOST_PROGRAM, HostProgram
from dhlo.codegen.kernel_ir.builder import F64, I8, I32, I64, PTR, V
from dhlo.errors import CompileError, InternalError
from dhlo.ir.collectives import collectives_of
from dhlo.ir.dialect import Kind, Op, attr, defining
from dhlo.ir.handles import Block, Module, Value
from dhlo.ir.memory import base
from dhlo.ir.ops.collective import AllGather, AllReduce, AllToAll, BroadcastFrom, Collective, ReduceScatter
from dhlo.ir.ops.control import Assert, AssertTensor, Cond, Group, Item, While
from dhlo.ir.ops.host import (
    CONTRACT,
    Address,
    Arena,
    CountNonzero,
    FillNonzero,
    FillUnique,
    FindUnique,
    Launch,
    Plan,
    Stage,
    Stride,
    UpdateArgument,
    UpdateState,
)
from dhlo.ir.ops.random import RandomKey
from dhlo.ir.symbols import parse
from dhlo.ir.types import TensorType, from_mlir

__all__ = ["emit_host_program"]


def emit_host_program(
    low: Lowering, module: Module, block: Block, families: Sequence[Family], symbol: str = HOST_PROGRAM
) -> HostProgram:
    """Writes the host program of a planned module's main function. `families` are its groups', by number; what the program is
    called begins with `symbol`."""
    host = HostProgram(low, module, block, families, symbol)
    _Operations(host).function()
    return host


class _Operations:
    """Writes one operation after the other."""

    def __init__(self, host: HostProgram) -> None:
        self.host, self.fn = host, host.fn
        self.memory = Memory(host)
        self.arguments = Arguments(host, self.memory)
        self.counts: V | None = None  # of the parts of what was counted last: an array for all, so that the stack stays small
        self.counted: tuple[str, Counted] | None = None  # with the symbol
        self.collectives = {op.results[0]: n for n, op in enumerate(collectives_of(host.block))}

    def function(self) -> None:
        """The whole function. Arguments and state are updated after all checks, so that a failed call changes nothing."""
        host, fn = self.host, self.fn
        self.block(host.block, {})
        for check, cell in host.cells.items():
            flag = fn.load(fn.gep(cell, 2, I64), I64)
            host.require(fn.cmp("eq", flag, 0), check, fn.load(fn.gep(cell, 1, I64), I64), fn.load(cell, I64))
        updates = [op for op in host.block.operations if isinstance(op, (UpdateArgument, UpdateState))]
        if updates:
            host.poll(last=True)  # stopped between two of them, a call would have changed one
        for op in updates:
            self.arguments.update(op)
        if updates:
            host.check_status()
        fn.ret(fn.const(0, I32))
        fn.done()

    def block(self, block: Block, bound: Mapping[Value, V]) -> None:
        """All operations of a block; `bound` gives memory to values that a surrounding op owns."""
        self.host.pointers.update(bound)
        for op, following in pairwise(list(block.operations)):
            self._operation(op)
            if isinstance(op, Launch) and not isinstance(following, (Address, Launch)):
                self.host.end_group()

    def _operation(self, op: Op) -> None:
        host = self.host
        rule = _RULES.get(type(op))
        if isinstance(op, CONTRACT):
            emit_contract(host, op)
        elif isinstance(op, Cond):
            emit_cond(host, self.memory, op, self.block)
        elif isinstance(op, While):
            emit_while(host, self.memory, op, self.block)
        elif rule is not None:
            rule(self, op)
        elif not (op.kind.pullable or op.kind in (Kind.WEIGHT, Kind.HOST)):
            raise CompileError(f"{op.OPERATION_NAME} has no kernel yet", where=where(op))

    # ------------------------------------------------------------------ groups, checks
    def _group(self, op: Group) -> None:
        inside = list(op.operation.regions[0].blocks[0].operations)[:-1]
        self.memory.check_dims([v for x in inside for v in (*x.operands, *x.results)], op)
        self.memory.place_results(list(op.results), op)
        self.host.begin_group(op)
        if "kernels" in op.operation.attributes:
            self.host.choose(op)
            self.host.end_group()

    def _launch(self, op: Launch) -> None:
        host, (count, work, scratch) = self.host, (parse(attr(op, name)) for name in ("count", "work", "scratch"))
        arguments = [self._argument(op, x) for x in attr(op, "arguments")]
        host.launch(attr(op, "kernel"), arguments, host.size(count), grain_of(host, host.size(work)), host.size(scratch))

    def _argument(self, op: Launch, argument: Mapping[str, Any]) -> V:
        """What a kernel's argument array holds at one place."""
        host, ((kind, what), *_) = self.host, argument.items()
        match kind:
            case "operand":
                address = defining(op.operands[what])
                return self._at(host.pointer(address.operands[0]), parse(attr(address, "offset")))
            case "buffer":
                return self._at(host.arena_pointer(what), parse(argument["offset"]))
            case "constant":
                return host.constant(what)
            case "errors":
                return host.cell(what)
            case "real":
                return host.sizes.real(parse(what))
            case "far":
                return host.far(parse(what))
            case _:
                return host.size(parse(what))

    def _at(self, p: V, offset: sympy.Expr) -> V:
        """The address so many bytes further on."""
        return p if offset == 0 else self.fn.gep(p, self.host.size(offset), I8)

    def _assert(self, op: Assert) -> None:
        host, zero = self.host, self.fn.i64(0)
        number = host.low.checks.add("ASSERT", attr(op, "message"))
        host.require(host.sizes.truth(parse(attr(op, "condition"))), number, zero, zero)

    def _assert_tensor(self, op: AssertTensor) -> None:
        host, fn, zero = self.host, self.fn, self.fn.i64(0)
        x = host.unless_planning(partial(fn.load, host.pointer(op.operands[0]), I8), fn.const(1, I8))
        host.require(fn.cmp("ne", x, 0), host.low.checks.add("ASSERT", attr(op, "message")), zero, zero)

    # ------------------------------------------------------------------ memory
    def _plan(self, op: Plan) -> None:
        """After the contract: what a planning call tells, and the arguments' memory."""
        self.memory.plan()
        self.arguments.stage([x for x in op.operation.block.operations if isinstance(x, Stage)])

    def _stride(self, op: Stride) -> None:
        self.arguments.stride(op)

    def _arena(self, op: Arena) -> None:
        self.memory.lay_out(attr(op, "segment"))

    # ------------------------------------------------------------------ what defines symbols
    def _item(self, op: Item) -> None:
        """Reads a number. A planning call knows those that were passed as arguments of rank 0, if their data was given."""
        host, fn, v = self.host, self.fn, op.operands[0]
        t, p = from_mlir(v), host.pointer(v)
        if base(v) not in host.arguments or from_mlir(base(v)).rank:
            host.end_plan(host.planning)
        else:
            host.end_plan(fn.cmp("eq", fn.ptr_to_int(p), 0))
        raw = fn.load(p, {"i1": I8, "ui8": I8}.get(t.dtype.name, t.dtype.name))
        x = fn.cast(raw, F64) if t.dtype.is_float else fn.cast(raw, I64, signed=t.dtype.name not in ("i1", "ui8"))
        host.sizes.symbols[attr(op, "symbol")] = x

    def _count_nonzero(self, op: CountNonzero) -> None:
        host, (x,) = self.host, op.operands
        n = host.size(from_mlir(x).numel)
        if self.counts is None:
            self.counts = self.fn.alloca(COUNTS, I64, 8)
        counted = count_nonzero(host, host.pointer(x), n, from_mlir(x).dtype, self.counts)
        self._define(op, lambda: counted.add_up(self.fn), n)
        self.counted = attr(op, "symbol"), counted

    def _fill_nonzero(self, op: FillNonzero) -> None:
        host, (x,), (y,) = self.host, op.operands, op.results
        t, (symbol, counted) = from_mlir(x), self.counted or ("", None)
        if symbol != attr(op, "number") or counted is None:
            raise InternalError(f"{op.OPERATION_NAME} at {where(op)} doesn't follow what counts {attr(op, 'number')}")
        self.memory.place_results([y], op)
        n, dims = host.size(t.numel), [host.size(s) for s in t.shape]
        fill_nonzero(host, counted, host.pointer(x), dims, n, host.pointer(y), t.dtype)
        host.check_status()

    def _find_unique(self, op: FindUnique) -> None:
        host, fn, t = self.host, self.fn, from_mlir(op.operands[0])
        find, _ = emit_unique(host.module, t.dtype)
        self.memory.place_results(list(op.results), op)
        cell, n = fn.alloca(1, I64, 8), host.size(t.numel)
        x, inverse = host.pointer(op.operands[0]), host.pointer(op.results[0])
        host.launch(find, [x, n, inverse, cell], 1, 1, host.size(unique_scratch(t.dtype, t.numel, fn.lanes)))
        self._define(op, lambda: fn.load(cell, I64), n)

    def _fill_unique(self, op: FillUnique) -> None:
        host, t = self.host, from_mlir(op.operands[0])
        _, fill = emit_unique(host.module, t.dtype)
        self.memory.place_results(list(op.results), op)
        x, inverse, values, counts = map(host.pointer, [*op.operands, *op.results])
        host.launch(fill, [x, host.size(t.numel), inverse, host.size(parse(attr(op, "number"))), values, counts], 1, 1)
        host.check_status()

    def _define(self, op: Op, number: Callable[[], V], most: V) -> None:
        """Gives the op's symbol its value, not above `most`, which is known once a launch has run."""
        host, fn = self.host, self.fn
        host.check_status()
        host.end_plan(host.planning)
        host.sizes.symbols[attr(op, "symbol")] = fn.define(number(), 0, fn.interval(most)[1])

    def _random_key(self, op: RandomKey) -> None:
        """Takes a draw from the session's generator."""
        host, fn, generator = self.host, self.fn, self.host.service("random", PTR)
        self.memory.place_results(list(op.results), op)
        key, draws = host.pointer(op.results[0]), fn.gep(generator, 1, I64)
        with fn.when(fn.not_(host.planning)), fn.wrapping():
            number = fn.load(draws, I64)
            fn.store(fn.load(generator, I64), key)
            fn.store(number, fn.gep(key, 1, I64))
            fn.store(fn.add(number, 1), draws)

    def _collective(self, op: Collective) -> None:
        """Does an operation with other processes, on the thread that runs the model."""
        host, fn, (x,), (y,) = self.host, self.fn, op.operands, op.results
        self.memory.place_results([y], op)
        rows = _row_size(from_mlir(x))
        splits: list[V] = []
        if isinstance(op, AllToAll):
            splits = [host.size((n * rows).expand()) for n in (*op.sends, *op.receives)]
        counts = [host.size(from_mlir(v).numel) for v in (x, y)]
        host.check_sizes()
        array = host.array(splits) if splits else fn.int_to_ptr(fn.i64(0))
        status = fn.call_ptr(
            host.service("collective", PTR),
            [host.call, fn.i64(self.collectives[y]), host.pointer(x), counts[0], host.pointer(y), counts[1], array],
            I32,
        )
        assert status is not None
        fn.store(fn.or_(fn.load(host.status, I32), status), host.status)
        host.check_status()


def _row_size(t: TensorType) -> sympy.Expr:
    """Elements of a row: of dim 0."""
    return math.prod(t.shape[1:], start=sympy.Integer(1))


_RULES: dict[type[Op], Callable[[_Operations, Any], None]] = {
    Group: _Operations._group,
    Launch: _Operations._launch,
    Item: _Operations._item,
    CountNonzero: _Operations._count_nonzero,
    FillNonzero: _Operations._fill_nonzero,
    FindUnique: _Operations._find_unique,
    FillUnique: _Operations._fill_unique,
    RandomKey: _Operations._random_key,
    AllReduce: _Operations._collective,
    AllGather: _Operations._collective,
    ReduceScatter: _Operations._collective,
    AllToAll: _Operations._collective,
    BroadcastFrom: _Operations._collective,
    Assert: _Operations._assert,
    AssertTensor: _Operations._assert_tensor,
    Plan: _Operations._plan,
    Arena: _Operations._arena,
    Stride: _Operations._stride,
}
