"""Copies dense memory: what a run leaves in the state block."""

from __future__ import annotations

import sympy

from dhlo.codegen.elementwise.emit import Slot
from dhlo.codegen.families.box import COPY_WORK, grain_of
from dhlo.codegen.families.kernel import Launch
from dhlo.codegen.kernel_ir.builder import I8, I64, PTR, KernelModule, V, vec
from dhlo.codegen.kernel_ir.launch import HostContext, kernel_fn, load_args
from dhlo.ir.handles import Value
from dhlo.ir.symbols import ceil_div
from dhlo.shape_infer.views import View

__all__ = ["BLOCK_BYTES", "copy_launch", "emit_copy", "emit_copy_flat"]

BLOCK_BYTES = 1 << 14
_LINE_BYTES = 64  # moved at once: a cache line


def emit_copy_flat(module: KernelModule) -> str:
    """Emits (once) the kernel and returns its symbol. Arguments: source, destination, bytes; an item is BLOCK_BYTES."""
    name = "copy_flat"
    if name in module.functions:
        return name
    fn = kernel_fn(module, name)
    src, dst, size = load_args(fn, [PTR, PTR, I64])
    lo, hi = fn.mul(fn.args[1], BLOCK_BYTES), fn.min(fn.mul(fn.args[2], BLOCK_BYTES), size)
    full = fn.add(lo, fn.and_(fn.sub(hi, lo), -_LINE_BYTES))
    with fn.loop(lo, full, _LINE_BYTES) as lp:
        fn.store(fn.load(fn.gep(src, lp.iv, I8), vec(I8, _LINE_BYTES)), fn.gep(dst, lp.iv, I8))
    with fn.loop(full, hi) as lp:
        fn.store(fn.load(fn.gep(src, lp.iv, I8), I8), fn.gep(dst, lp.iv, I8))
    fn.done()
    return name


def copy_launch(module: KernelModule, source: View, to: Value, nbytes: sympy.Expr) -> Launch:
    """The launch that copies dense memory to that of a value; emits the kernel."""
    slots: list[Slot] = [("view", source), ("pointer", to), ("size", nbytes)]
    return Launch(emit_copy_flat(module), slots, ceil_div(nbytes, BLOCK_BYTES), BLOCK_BYTES * COPY_WORK)


def emit_copy(host: HostContext, src: V, dst: V, nbytes: V) -> None:
    """Copies dense memory."""
    blocks = host.fn.ceildivu(nbytes, BLOCK_BYTES)
    host.launch(emit_copy_flat(host.module), [src, dst, nbytes], blocks, grain_of(host, BLOCK_BYTES * COPY_WORK))
