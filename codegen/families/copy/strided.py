"""Copies tensors with arbitrary strides into dense row-major memory, and back."""

from __future__ import annotations

from dhlo.codegen.kernel_ir.builder import I64, PTR, KernelModule
from dhlo.codegen.kernel_ir.launch import kernel_fn, load_args

__all__ = ["emit_copy_strided"]


def emit_copy_strided(module: KernelModule, itemsize: int, copies_out: bool) -> str:
    """Emits (once) a kernel for elements of `itemsize` bytes and returns its symbol. Arguments: source, destination, sizes,
    strides (elements; of the source, or of the destination if it `copies_out`) and rank >= 1; an item is one row along the last
    dim."""
    name = f"copy_{'out' if copies_out else 'in'}_{itemsize}"
    if name in module.functions:
        return name
    elem = {1: "i8", 2: "i16", 4: "i32", 8: "i64", 16: "i128"}[itemsize]
    fn = kernel_fn(module, name)
    src, dst, sizes, strides, rank = load_args(fn, [PTR, PTR, PTR, PTR, I64])
    last = fn.sub(rank, 1)
    n, step = fn.load(fn.gep(sizes, last, I64), I64), fn.load(fn.gep(strides, last, I64), I64)
    with fn.loop(fn.args[1], fn.args[2]) as row:
        with fn.loop(0, last, 1, [row.iv, fn.const(0, I64)]) as lp:
            rest, offset = lp.carried
            d = fn.sub(fn.sub(last, 1), lp.iv)
            size = fn.load(fn.gep(sizes, d, I64), I64)
            stride = fn.load(fn.gep(strides, d, I64), I64)
            lp.yield_(fn.divu(rest, size), fn.add(offset, fn.mul(fn.remu(rest, size), stride)))
        start = lp.results[1]
        dense = fn.gep(src if copies_out else dst, fn.mul(row.iv, n), elem)
        with fn.loop(0, n) as col:
            there = fn.gep(dst if copies_out else src, fn.add(start, fn.mul(col.iv, step)), elem)
            here = fn.gep(dense, col.iv, elem)
            source, to = (here, there) if copies_out else (there, here)
            fn.store(fn.load(source, elem, min(itemsize, 8)), to, min(itemsize, 8))
    fn.done()
    return name
