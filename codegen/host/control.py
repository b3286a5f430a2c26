"""Branches and loops of the host program: how their regions run, and where the values live that leave them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dhlo.codegen.families.copy.flat import emit_copy
from dhlo.codegen.host.memory import Memory
from dhlo.codegen.host.program import HostProgram
from dhlo.codegen.kernel_ir.builder import I1, I8, I64, PTR, V
from dhlo.ir.handles import Block, Value
from dhlo.ir.memory import base, buffers_of
from dhlo.ir.ops.control import Cond, While, new_symbols, yielded
from dhlo.ir.symbols import symbols_of
from dhlo.ir.types import from_mlir

__all__ = ["emit_cond", "emit_while"]

EmitBlock = Callable[[Block, Mapping[Value, V]], None]  # writes a block's operations; gives values the memory that they shall have


def emit_cond(host: HostProgram, memory: Memory, op: Cond, emit_block: EmitBlock) -> None:
    """Runs one region. Its results are written where the surrounding program wants them; a result whose size only the branch
    knows stays where the branch computed it. A planning call goes through both."""
    fn = host.fn
    names = new_symbols(op, host.sizes.symbols)
    late = [any(not symbols_of(s).isdisjoint(names) for s in from_mlir(v).shape) for v in op.results]
    memory.place_results([v for v, is_late in zip(op.results, late, strict=True) if not is_late], op)
    homes = [None if is_late else host.pointer(v) for v, is_late in zip(op.results, late, strict=True)]
    places = {v: fn.alloca(1, PTR, 8) for v, is_late in zip(op.results, late, strict=True) if is_late}
    sizes = {n: fn.alloca(1, I64, 8) for n in names}
    taken = _decision(host, op.operands[0])
    labels = [host.label("then"), host.label("else"), host.label("join")]
    fn.branch(taken, labels[0], labels[1])
    for region, label in zip(op.regions, labels, strict=False):
        fn.label(label)
        host.sizes.push()
        given = yielded(region)
        emit_block(region.blocks[0], {base(v): p for v, p in zip(given, homes, strict=True) if p is not None})
        for v, x in zip(op.results, given, strict=True):
            if v in places:
                fn.store(host.pointer(x), places[v], 8)
            for s, n in zip(from_mlir(v).shape, from_mlir(x).shape, strict=True):
                if s.is_Symbol and s.name in sizes:
                    fn.store(host.size(n), sizes[s.name], 8)
        host.check_sizes()
        host.sizes.pop()
        if label is labels[0]:
            fn.branch(host.planning, labels[1], labels[2])
    fn.jump(labels[2])
    fn.label(labels[2])
    for name, cell in sizes.items():
        host.sizes.symbols[name] = fn.load(cell, I64)
    for v, place in places.items():
        _settle(host, memory, op, v, fn.load(place, PTR))


def _decision(host: HostProgram, v: Value) -> V:
    """The value of a one-element bool tensor; a planning call takes it for true."""
    host.check_sizes()
    host.mark_data_dependent()
    p = host.pointer(v)
    return host.unless_planning(lambda: host.fn.cmp("ne", host.fn.load(p, I8), 0), host.fn.const(True, I1))


def _settle(host: HostProgram, memory: Memory, op: Cond, v: Value, at: V) -> None:
    """A value of only now known size stays where it is, or is copied to where the surrounding program wants it."""
    memory.place_results([v], op)
    if v in host.pointers:
        emit_copy(host, at, host.pointers[v], host.size(from_mlir(v).bytes))
        host.check_status()
    else:
        host.pointers[v] = at


def emit_while(host: HostProgram, memory: Memory, op: While, emit_block: EmitBlock) -> None:
    """Repeats the body. Each carried value has two buffers that swap roles; the first is the result's own. A planning call goes
    through it once."""
    fn = host.fn
    memory.place_results(list(op.results), op)
    homes = [host.pointer(v) for v in op.results]
    spares = [host.arena_pointer(b) for b in buffers_of(op, "spare")]
    nbytes = [host.size(from_mlir(v).bytes) for v in op.results]
    read, write = ([fn.alloca(1, PTR, 8) for _ in op.results] for _ in range(2))
    for x, home, spare, size, r, w in zip(op.operands, homes, spares, nbytes, read, write, strict=True):
        emit_copy(host, host.pointer(x), home, size)
        fn.store(home, r, 8)
        fn.store(spare, w, 8)
    host.check_status()
    test, body = (region.blocks[0] for region in op.regions)
    labels = [host.label("test"), host.label("body"), host.label("exit")]
    fn.jump(labels[0])
    fn.label(labels[0])
    host.poll()
    current = [fn.load(r, PTR) for r in read]
    host.sizes.push()
    emit_block(test, dict(zip(test.arguments, current, strict=True)))
    again = _decision(host, yielded(op.regions[0])[0])
    host.sizes.pop()
    fn.branch(again, labels[1], labels[2])
    fn.label(labels[1])
    following = [fn.load(w, PTR) for w in write]
    host.sizes.push()
    bound = {base(v): p for v, p in zip(yielded(op.regions[1]), following, strict=True)}
    emit_block(body, dict(zip(body.arguments, current, strict=True)) | bound)
    host.check_sizes()
    host.sizes.pop()
    for old, new, r, w in zip(current, following, read, write, strict=True):
        fn.store(new, r, 8)
        fn.store(old, w, 8)
    fn.branch(host.planning, labels[2], labels[0])
    fn.label(labels[2])
    for at, home, size in zip(current, homes, nbytes, strict=True):
        moved = fn.cmp("ne", fn.ptr_to_int(at), fn.ptr_to_int(home))
        emit_copy(host, at, home, fn.select(moved, size, fn.i64(0)))
    host.check_status()
