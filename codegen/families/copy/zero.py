"""Clears dense memory."""

from __future__ import annotations

from dhlo.codegen.kernel_ir.builder import I8, PTR, KernelModule
from dhlo.codegen.kernel_ir.launch import kernel_fn, load_args

__all__ = ["emit_zero"]


def emit_zero(module: KernelModule) -> str:
    """Emits (once) a kernel that clears bytes: (to), item = one byte."""
    name = "zero_flat"
    if name not in module.functions:
        fn = kernel_fn(module, name)
        (to,) = load_args(fn, [PTR])
        n, first, zero = fn.sub(fn.args[2], fn.args[1]), fn.gep(to, fn.args[1], I8), fn.const(0, I8)
        operands = f"{first.name}, {zero.name}, {n.name}"
        fn.raw(f'"llvm.intr.memset"({operands}) <{{isVolatile = false}}> : (!llvm.ptr, i8, i64) -> ()')
        fn.done()
    return name
