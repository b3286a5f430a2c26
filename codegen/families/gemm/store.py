"""The epilogue of products whose result is a dense matrix that the caller goes on with."""

from __future__ import annotations

from dhlo.codegen.elementwise.emit import Emitter, KernelArgs
from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.families.gemm.matmul import EPILOGUE_ARGS
from dhlo.codegen.families.kernel import vectors
from dhlo.codegen.kernel_ir.builder import I64, Fn, KernelModule
from dhlo.ir.types import DType

__all__ = ["emit_store_rows"]


def emit_store_rows(module: KernelModule, dtype: DType) -> str:
    """Emits (once) an epilogue of matrix products that stores tiles to a dense matrix; arguments: address, columns."""
    name = f"store_rows_{dtype}"
    if name not in module.functions:
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
