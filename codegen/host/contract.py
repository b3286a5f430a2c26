"""The contract in the host program: the planned module's checks of arguments, and the symbols that their sizes define."""

from __future__ import annotations

import sympy

from dhlo.codegen.host.program import HostProgram
from dhlo.codegen.kernel_ir import abi
from dhlo.codegen.kernel_ir.builder import I32, I64, PTR, V
from dhlo.ir.dialect import Op, attr
from dhlo.ir.function import argument_type
from dhlo.ir.ops.host import Assume, Capacity, Check, CheckBuffer, CheckType, Size, Solve
from dhlo.ir.symbols import parse, product
from dhlo.ir.types import from_mlir
from dhlo.shape_infer.views import dense_strides

__all__ = ["emit_contract"]


def emit_contract(host: HostProgram, op: Op) -> None:
    """Writes one op of the contract."""
    if isinstance(op, CheckType):
        _check_type(host, op)
    elif isinstance(op, Size):
        k, d = _argument(host, op), attr(op, "dim")
        given = host.fn.load(host.fn.gep(host.size_arrays[k], d, I64), I64)
        host.sizes.symbols[attr(op, "symbol")] = host.fn.define(given, 0, abi.MAX_DIM)
    elif isinstance(op, Capacity):
        _capacity(host, op)
    elif isinstance(op, Solve):
        host.sizes.symbols[attr(op, "unknown")] = host.sizes.emit(parse(attr(op, "value")))
    elif isinstance(op, Check):
        _check(host, op)
    elif isinstance(op, CheckBuffer):
        _check_buffer(host, op)
    elif isinstance(op, Assume):
        low, high = (parse(attr(op, name)) for name in ("low", "high"))
        lo, hi = (int(x) if x.is_Integer else None for x in (low, high))
        host.fn.assume(host.sizes.symbols[attr(op, "of")], lo, hi)


def _argument(host: HostProgram, op: Op) -> int:
    """The number of the argument that an op is about."""
    return host.arguments.index(op.operands[0])


def _check_type(host: HostProgram, op: CheckType) -> None:
    k, name, fn = attr(op, "input"), attr(op, "name_"), host.fn
    t = argument_type(host.block, k)
    code, dtype = t.dtype.code, str(t.dtype.torch).removeprefix("torch.")
    for kind, want, text in (("rank", t.rank, f"'{name}' must have rank {t.rank}"), ("dtype", code, f"'{name}' must be {dtype}")):
        got = fn.cast(host.tensor_field(k, kind, I32), I64)
        host.require(fn.cmp("eq", got, want), host.low.checks.add(kind.upper(), text, k), fn.i64(want), got)
    host.size_arrays[k] = host.tensor_field(k, "sizes", PTR)


def _check(host: HostProgram, op: Check) -> None:
    """A comparison; left out where the intervals of its sides prove it. What it proves is known from here on."""
    fn, how = host.fn, attr(op, "how")
    got, expected = (host.sizes.emit(parse(attr(op, name))) for name in ("got", "expected"))
    (lo, hi), (least, most) = fn.interval(got), fn.interval(expected)
    if (how == "min" and lo >= most) or (how == "max" and hi <= least):
        return
    number = host.low.checks.add(how.upper(), attr(op, "text"), attr(op, "input"))
    host.require(fn.cmp({"equal": "eq", "min": "ge", "max": "le"}[how], got, expected), number, expected, got)
    if how != "equal" and least == most:
        fn.assume(got, lo=least if how == "min" else None, hi=least if how == "max" else None)


def _capacity(host: HostProgram, op: Capacity) -> None:
    """What the stride before the dim that grows says; without strides, what is filled."""
    k, d, fn = _argument(host, op), attr(op, "dim"), host.fn
    t = argument_type(host.block, k)
    strides = host.tensor_field(k, "strides", PTR)
    filled, inner = host.sizes.emit(t.shape[d]), host.sizes.emit(product(t.shape[d + 1 :]))

    def from_strides() -> list[V]:
        given = fn.div(fn.load(fn.gep(strides, d - 1, I64), I64), fn.max(inner, 1))
        return [fn.min(fn.max(given, -1), abi.MAX_DIM)]  # beyond that it isn't a buffer, as is found below

    host.sizes.symbols[attr(op, "symbol")] = fn.if_else(_is_null(host, strides), lambda: [filled], from_strides, [I64])[0]


def _is_null(host: HostProgram, p: V) -> V:
    return host.fn.cmp("eq", host.fn.ptr_to_int(p), 0)


def _check_buffer(host: HostProgram, op: CheckBuffer) -> None:
    """The strides are those of the whole buffer, which is as long as its first part at least."""
    k, d, fn = _argument(host, op), attr(op, "dim"), host.fn
    t, memory = argument_type(host.block, k), from_mlir(op.operands[0])
    strides = host.tensor_field(k, "strides", PTR)
    filled: sympy.Expr = t.shape[d]

    def regular() -> list[V]:
        data = host.tensor_field(k, "data", PTR)
        has_room = fn.cmp("ge", host.sizes.emit(memory.shape[d]), host.sizes.emit(filled))
        same = fn.and_(has_room, fn.cmp("ne", fn.ptr_to_int(data), 0))
        for dim, (size, want) in enumerate(zip(t.shape, dense_strides(memory.shape), strict=True)):
            s = fn.load(fn.gep(strides, dim, I64), I64)
            same = fn.and_(same, fn.or_(fn.cmp("eq", host.sizes.emit(size), 1), fn.cmp("eq", s, host.sizes.emit(want))))
        return [same]

    host.sizes.push()
    ok = fn.if_else(_is_null(host, strides), lambda: [fn.const(True, "i1")], regular, ["i1"])[0]
    host.sizes.pop()
    host.require(ok, host.low.checks.add("ASSERT", attr(op, "text"), attr(op, "input")), fn.i64(0), fn.i64(0))
