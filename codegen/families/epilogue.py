"""Epilogues: what a group does with each finished tile of a matrix product or convolution, as a function the kernel calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dhlo.codegen.elementwise.emit import Emitter, KernelArgs, Slot, Touch
from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.elementwise.rules import rounds_by_integers
from dhlo.codegen.families.gemm.register_tile import BF16
from dhlo.codegen.families.kernel import Checks, GroupKernel, finish, vectors
from dhlo.codegen.families.lowering import GroupHost
from dhlo.codegen.kernel_ir.builder import F32, I64, Fn, KernelModule, V
from dhlo.codegen.kernel_ir.launch import EPILOGUE_ARGS
from dhlo.ir.dialect import Kind, Op, attr, defining
from dhlo.ir.handles import Value
from dhlo.ir.nans import has_plain_nans
from dhlo.ir.ops.control import Group
from dhlo.ir.ops.elementwise import Abs, Add, Convert, Copy, Elementwise, Maximum, Minimum, Neg, Sub
from dhlo.ir.ops.movement import Broadcast
from dhlo.ir.types import DType, from_mlir

# What no processor takes longer for where numbers are subnormal, besides rounding to bf16.
_STEADY = (Abs, Add, Copy, Maximum, Minimum, Neg, Sub)

__all__ = ["Epilogue", "emit_store_rows", "epilogue_args", "lower_epilogue", "repeated_buffers", "set_sums", "touch_of"]


@dataclass
class Epilogue:
    """The function's symbol and what its argument array holds."""

    symbol: str
    touch: str | None  # the function that prefetches what the epilogue writes and reads of a tile, with the same arguments
    slots: list[Slot]
    lookups: dict[int, Op]  # number of an index check -> the op that it is about
    stores: str | None = None  # the dtype as which it stores the anchor's result, if it does nothing else


def lower_epilogue(
    module: KernelModule, group: Group, anchor: Op, checks: Checks, place: Callable[[Emitter, Index, Index, Index], Sequence[Index]]
) -> Epilogue:
    """`place(emitter, batch, row, column)` gives the index of a tile's element in the anchor's result. The tile has room for whole
    vectors, so that lanes beyond its last column may be read."""
    k = GroupKernel(module, group, checks, EPILOGUE_ARGS)
    _emit(k, anchor, place)
    symbol, touch = finish(k, "epilogue"), None
    if not k.lookups:
        toucher = GroupKernel(module, group, checks, EPILOGUE_ARGS, slots=k.args.slots)
        toucher.em.touching = Touch()
        _emit(toucher, anchor, place)
        touch = finish(toucher, "touch")
    return Epilogue(symbol, touch, k.args.slots, k.lookups, stores=_stored(k.yields, anchor.results[0]))


def _stored(yields: Sequence[Value], acc: Value) -> str | None:
    """The dtype of the only value that a group yields, if that is the anchor's result or f32 of it as narrower floats."""
    if len(yields) != 1:
        return None
    op, dtype = defining(yields[0]), from_mlir(yields[0]).dtype
    converts = isinstance(op, Convert) and op.operands[0] == acc and from_mlir(acc).dtype.name == F32 and dtype.is_float
    return dtype.name if yields[0] == acc or converts else None


def _emit(k: GroupKernel, anchor: Op, place: Callable[[Emitter, Index, Index, Index], Sequence[Index]]) -> None:
    fn, em = k.fn, k.em
    _, tile, ld, batch, m0, n0, mr, nr = fn.args
    acc = anchor.results[0]
    register, steady = from_mlir(acc).dtype.register, all(map(_is_steady, k.ops))
    with fn.loop(0, mr) as lp, em.scope():
        row = fn.gep(tile, fn.mul(lp.iv, ld), register)
        m = Index(fn.add(m0, lp.iv))
        if not em.touching:
            _load_of_row(k, acc, place(em, Index(batch), m, Index(n0, 1)))

        def body(c: Index) -> None:
            zero = fn.const(0, fn.vec(register))
            x: V = zero if em.touching else fn.load(fn.gep(row, c.base, register), fn.vec(register))
            if em.mask is not None and not steady:  # what lies behind the last column may be subnormal
                x = fn.select(em.mask, x, zero)
            set_sums(em, acc, x)
            idx = list(place(em, Index(batch), m, Index(fn.add(n0, c.base), 1, multiple=fn.lanes)))
            for r, v in enumerate(k.yields):
                em.store(em.value(v, idx), k.result_pointer(r), from_mlir(v).dtype, em.flatten(idx, from_mlir(v).shape))
            del em.leaves[acc]

        vectors(em, 0, nr, body)


def _is_steady(op: Op) -> bool:
    """Whether subnormal numbers take as long as others."""
    if isinstance(op, Convert):
        return from_mlir(op.results[0]).dtype.name == BF16
    return isinstance(op, _STEADY) or not isinstance(op, Elementwise)


def repeated_buffers(k: GroupKernel, acc: Value) -> list[Broadcast]:
    """The group's broadcasts of buffers to the shape of the anchor's result. Where the target rounds to bf16 by integers, NaNs of
    these buffers become plain ones as they are loaded, for many sums at once."""
    found = _repeated(k.ops, acc)
    if _has_plain_sums(acc) and rounds_by_integers(k.fn.target):
        k.em.made_plain |= {op.operands[0] for op in found if from_mlir(op.operands[0]).dtype.name == F32}
    return found


def _repeated(ops: Sequence[Any], acc: Value) -> list[Broadcast]:
    made = {r for op in ops for r in op.results}
    spread = [op for op in ops if isinstance(op, Broadcast) and from_mlir(op.results[0]).shape == from_mlir(acc).shape]
    return [op for op in spread if op.operands[0] not in made]


def _has_plain_sums(acc: Value) -> bool:
    """Whether the sums of an anchor have no NaNs but plain ones: those of a chain's second convolution by what is done to the first
    one's, as `repeated_buffers` are made so."""
    ops = list(acc.owner.operation.block.operations)
    first = next((op.results[0] for op in ops if getattr(op, "kind", None) is Kind.CONVOLUTION), acc)
    known = _repeated(ops, first) if first != acc and has_plain_nans(first) else []
    return has_plain_nans(acc, [op.results[0] for op in known])


def _load_of_row(k: GroupKernel, acc: Value, idx: Sequence[Index]) -> None:
    """Loads what all columns of a tile's row have in common, at the index `idx` of one of its elements: LLVM leaves loads inside a
    loop that stores."""
    for op in repeated_buffers(k, acc):
        sizes = from_mlir(op.operands[0]).shape
        if all(idx[d].uniform for n, d in zip(sizes, attr(op, "dims"), strict=True) if n != 1):
            k.em.value(op.results[0], idx)
        else:
            k.em.made_plain.discard(op.operands[0])


def set_sums(em: Emitter, acc: Value, x: V) -> None:
    """Makes `x` the anchor's result in what is computed next."""
    if x.elem == F32 and _has_plain_sums(acc):
        em.fn.plain.add(x.name)
    em.leaves[acc] = lambda _em, _idx: x


def epilogue_args(host: GroupHost, e: Epilogue) -> tuple[V, V]:
    """The epilogue's address and its filled argument array."""
    return host.fn.address_of(e.symbol), host.array([host.slot(s) for s in e.slots])


def touch_of(host: GroupHost, e: Epilogue) -> V | None:
    """The address of what prefetches the epilogue's memory, if anything does."""
    return None if e.touch is None else host.fn.address_of(e.touch)


def emit_store_rows(module: KernelModule, dtype: DType) -> str:
    """Emits (once) an epilogue that stores tiles to a dense matrix; arguments: address, columns."""
    name = f"store_rows_{dtype}"
    if name in module.functions:
        return name
    fn = Fn(module, name, EPILOGUE_ARGS)
    eargs, tile, ld, _, m0, n0, mr, nr = fn.args
    em = Emitter(fn, KernelArgs(fn, fn.args[0]), set(), lambda _: 0)
    y, n = fn.int_to_ptr(fn.load(eargs, I64)), fn.load(fn.gep(eargs, 1, I64), I64)
    with fn.loop(0, mr) as lp:
        row, to = fn.gep(tile, fn.mul(lp.iv, ld), dtype.register), fn.add(fn.mul(fn.add(m0, lp.iv), n), n0)

        def body(c: Index) -> None:
            x = fn.load(fn.gep(row, c.base, dtype.register), fn.vec(dtype.register))
            em.store(x, y, dtype, em.plus(Index(to), c))

        vectors(em, 0, nr, body)
    fn.done()
    return name
