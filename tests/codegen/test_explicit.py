"""Explicit functions (`Fn`) are optimised by a short order of passes: their loops are those that LLVM's whole order makes. Threads
make code at once."""

from __future__ import annotations

import itertools
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

import dhlo
from dhlo.api import build
from dhlo.codegen.backends.cpu import llvm
from dhlo.codegen.backends.cpu.unlocked import emit_object
from dhlo.codegen.families.gemm.microkernel import emit_shared_table
from dhlo.codegen.families.gemm.register_tile import tile_spec
from dhlo.codegen.kernel_ir.builder import EXPLICIT, F32, F64, I64, ONCE, PTR, Fn, KernelModule, Linkage
from dhlo.codegen.kernel_ir.split import split_module
from dhlo.codegen.target import Target, parse_target
from dhlo.options import Options


def innermost_loops(assembly: str) -> dict[str, list[int]]:
    """Instructions of each loop that has none inside, by function, of x86 assembly."""
    out: dict[str, list[int]] = {}
    for name, body in re.findall(r"^(\w[\w.$]*):$\n(.*?)^\.Lfunc_end", assembly, re.MULTILINE | re.DOTALL):
        lines = [line.split("#")[0].strip() for line in body.split("\n")]
        lines = [line for line in lines if line and (not line.startswith(".") or line.endswith(":"))]
        labels = {line[:-1]: i for i, line in enumerate(lines) if line.endswith(":")}
        jumps = [(labels[line.split()[-1]], i) for i, line in enumerate(lines) if line[0] == "j" and line.split()[-1] in labels]
        loops = [(first, last) for first, last in jumps if first < last]
        inner = [(a, b) for a, b in loops if not any((c, d) != (a, b) and a <= c and d <= b for c, d in loops)]
        out[name] = [sum(not line.endswith(":") for line in lines[a : b + 1]) for a, b in inner]
    return out


def tiles(target: Target, elem: str) -> KernelModule:
    """Micro-kernels of products, which LLVM doesn't drop for want of callers."""
    module = KernelModule(target)
    emit_shared_table(module, elem, placed=elem, spec=tile_spec(target), packing=True)
    module.functions.update({name: replace(f, linkage=Linkage.EXPORTED) for name, f in module.functions.items()})
    return module


def assembly(module: KernelModule, target: Target) -> str:
    optimised, machine = llvm.optimise(llvm.lower_to_llvm_ir(module.text(), target), target)
    return str(machine.emit_assembly(optimised))


@pytest.mark.parametrize("elem", [F32, F64])
@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
def test_loops_of_tiles_lose_nothing(level: str, elem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = parse_target(level)
    short = innermost_loops(assembly(tiles(target, elem), target))
    monkeypatch.setattr(llvm, "_all_are", lambda module, attribute: False)
    whole = innermost_loops(assembly(tiles(target, elem), target))
    kernels = [name for name in whole if name.startswith("ukr_")]
    assert len(kernels) > 2 and all(f.explicit for f in tiles(target, elem).functions.values())
    for name in kernels:
        assert len(short[name]) == len(whole[name]) > 0
        assert sum(short[name]) <= 1.02 * sum(whole[name]) + 1


def two_callers() -> KernelModule:
    """Two kernels that call one that is explicit, whose loop has values that are the same in each step."""
    module = KernelModule(parse_target("x86-64-v3"))
    module.add_constant("table", "(dense<[1, 2]> : vector<2xi64>) : vector<2xi64>")
    inner = Fn(module, "inner", [("x", PTR), ("n", I64)], explicit=True)
    with inner.loop(0, inner.args[1]) as loop:
        inner.store(inner.load(inner.address_of("table"), I64), inner.gep(inner.args[0], loop.iv, I64))
    inner.done()
    for name in ("first", "second"):
        fn = Fn(module, name, [("x", PTR)])
        fn.call("inner", [fn.args[0], fn.load(fn.address_of("table"), I64)])
        fn.done()
    host = Fn(module, "run", [("x", PTR)], internal=False)
    for name in ("first", "second"):
        host.call(name, [host.args[0]])
    host.done()
    return module


def test_explicit_functions_are_parts_of_their_own() -> None:
    """The host program is the first part; constants, which both sides read, are copied to each."""
    host, callers, explicit = (part.text for part in split_module(two_callers(), 2))
    assert "func @run" in host and "@first" in host and "func internal" not in host
    assert "func @first" in callers and "func @second" in callers and callers.count("constant @table") == 1
    assert "func @inner" in explicit and "func @first" not in explicit and explicit.count("constant @table") == 1
    assert [text.count(EXPLICIT) for text in (host, callers, explicit)] == [0, 0, 1]


def test_parts_of_explicit_functions_are_recognised() -> None:
    target = parse_target("x86-64-v3")
    for part in split_module(two_callers(), 2):
        module, _ = llvm.optimise(llvm.lower_to_llvm_ir(part.text, target), target)
        assert llvm._all_are(module, EXPLICIT) == (EXPLICIT in part.text)


def test_host_programs_alone_are_made_with_little_effort() -> None:
    class Double(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ x.mT

    program = torch.export.export(Double(), (torch.ones(3, 4),), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    _, artifact = build(program, Options())
    texts = [text for _, part in artifact.levels for text in part]
    assert [ONCE in text for text in texts] == ["define i32 @dhlo_run" in text for text in texts]
    assert [ONCE in text for text in texts].count(True) == 1 and len(texts) > 1


def test_threads_make_the_same_code() -> None:
    """Several at once, which llvmlite would let in one by one, make what one makes alone."""
    targets = [parse_target(level) for level in ("x86-64-v3", "x86-64-v4")]
    texts = [(llvm.lower_to_llvm_ir(tiles(t, elem).text(), t), t) for t in targets for elem in (F32, F64)]

    def make(made: tuple[str, Target]) -> bytes:
        module, machine = llvm.optimise(*made)
        return emit_object(machine, module)

    alone = [make(x) for x in texts]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(make, 3 * texts)) == 3 * alone
    assert len(set(alone)) == len(texts)


@pytest.mark.slow
def test_programs_of_many_layers() -> None:
    """A host program is one function, however long; passes that ask a value too often have ended the process."""
    sizes = [20 + i % 7 for i in range(152)]
    layers = [
        layer
        for i, (n, m) in enumerate(itertools.pairwise(sizes))
        for layer in (torch.nn.Linear(n, m), torch.nn.Tanh() if i % 3 else torch.nn.LayerNorm(m))
    ]
    model, x = torch.nn.Sequential(*layers).eval(), torch.randn(3, 20)
    compiled = dhlo.compile(torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},)))
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-3, atol=1e-4)
