"""The elementwise part of a step of recurrent layers."""

from __future__ import annotations

from dhlo.codegen.elementwise import vmath
from dhlo.codegen.elementwise.emit import Emitter, KernelArgs
from dhlo.codegen.elementwise.index import Index
from dhlo.codegen.families.kernel import vectors
from dhlo.codegen.kernel_ir.builder import I64, PTR, KernelModule, V
from dhlo.codegen.kernel_ir.launch import kernel_fn, load_args
from dhlo.ir.types import DType

__all__ = ["CELL_WORK", "CHUNK", "emit_cell"]

CHUNK = 256  # elements of a row that one item of a cell kernel covers
CELL_WORK = CHUNK * 64  # simple operations of an item: some five sigmoids and tanhs an element
GATES = {"lstm": 4, "gru": 3}
POINTERS = {"lstm": 4, "gru": 5}


def emit_cell(module: KernelModule, kind: str, dtype: DType) -> str:
    """Emits (once) one step of all rows: item (b, chunk) of [B, ceil(H / CHUNK)].

    lstm: (gates [B, 4H], product [B, 4H], c [B, H] in and out, h out [B, H], H); gates i, f, g, o.
    gru: (gates [B, 3H], product [B, 3H], bias [3H], h [B, H], h out [B, H], H); gates r, z, n.
    tanh, relu: (gates [B, H], product [B, H], h out [B, H], H).
    """
    name = f"{kind}_cell_{dtype}"
    if name in module.functions:
        return name
    fn = kernel_fn(module, name)
    em = Emitter(fn, KernelArgs(fn, fn.args[0]), set(), lambda _: 0)
    *p, hidden = load_args(fn, [*[PTR] * POINTERS.get(kind, 3), I64])
    chunks = fn.ceildivu(hidden, CHUNK)
    with fn.loop(fn.args[1], fn.args[2]) as item:
        row, lo = fn.divu(item.iv, chunks), fn.mul(fn.remu(item.iv, chunks), CHUNK)
        hi = fn.min(fn.add(lo, CHUNK), hidden)
        state = Index(fn.mul(row, hidden))
        parts = [Index(fn.mul(fn.add(fn.mul(row, GATES.get(kind, 1)), k), hidden)) for k in range(GATES.get(kind, 1))]

        def get(array: V, start: Index, i: Index) -> V:
            return em.load_memory(array, dtype, em.plus(start, i))

        def lstm(i: Index) -> None:
            gates, product, c, h = p
            gi, gf, gg, go = (fn.add(get(gates, k, i), get(product, k, i)) for k in parts)
            keep = fn.mul(vmath.call(fn, "sigmoid", gf), get(c, state, i))
            new = fn.fma(vmath.call(fn, "sigmoid", gi), vmath.call(fn, "tanh", gg), keep)
            em.store(new, c, dtype, em.plus(state, i))
            em.store(fn.mul(vmath.call(fn, "sigmoid", go), vmath.call(fn, "tanh", new)), h, dtype, em.plus(state, i))

        def gru(i: Index) -> None:
            gates, product, bias, h, out = p
            x = [get(gates, k, i) for k in parts]
            rest = [fn.add(get(product, k, i), get(bias, Index(fn.mul(hidden, n)), i)) for n, k in enumerate(parts)]
            r, z = (vmath.call(fn, "sigmoid", fn.add(x[k], rest[k])) for k in range(2))
            new = vmath.call(fn, "tanh", fn.fma(r, rest[2], x[2]))
            old = get(h, state, i)
            em.store(fn.fma(z, fn.sub(old, new), new), out, dtype, em.plus(state, i))

        def plain(i: Index) -> None:
            gates, product, out = p
            x = fn.add(get(gates, state, i), get(product, state, i))
            x = fn.max(x, 0.0) if kind == "relu" else vmath.call(fn, "tanh", x)
            em.store(x, out, dtype, em.plus(state, i))

        vectors(em, lo, hi, {"lstm": lstm, "gru": gru}.get(kind, plain))
    fn.done()
    return name
