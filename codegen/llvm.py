"""Lowers kernel modules from upstream MLIR to optimised machine code: MLIR passes, LLVM IR text, llvmlite."""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Mapping

import llvmlite.binding as llvm

from dhlo import mlir

__all__ = ["Jit", "TargetSpec", "compile_object", "emit_assembly", "host_target", "lower_to_llvm_ir"]

PASSES = (
    "builtin.module(convert-vector-to-scf,convert-scf-to-cf,convert-vector-to-llvm{reassociate-fp-reductions=true},"
    "arith-expand,convert-arith-to-llvm,convert-cf-to-llvm,canonicalize,cse,reconcile-unrealized-casts)"
)


class TargetSpec:
    """What code is generated for: an LLVM triple, CPU name and feature string. `optimize` is LLVM's level, 0 to 3."""

    def __init__(self, triple: str, cpu: str, features: str = "", optimize: int = 2) -> None:
        self.triple, self.cpu, self.features, self.optimize = triple, cpu, features, optimize

    def machine(self, *, jit: bool = False) -> llvm.TargetMachine:
        _initialize()
        target = llvm.Target.from_triple(self.triple)
        return target.create_target_machine(cpu=self.cpu, features=self.features, opt=self.optimize, reloc="pic",
                                            codemodel="jitdefault" if jit else "default")


@functools.cache
def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


@functools.cache
def host_target() -> TargetSpec:
    """The machine that the compiler runs on."""
    _initialize()
    return TargetSpec(llvm.get_default_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())


def lower_to_llvm_ir(text: str) -> str:
    """MLIR text of a `KernelModule` to LLVM IR text."""
    with mlir.context(dialect=False):
        module = mlir.ir.Module.parse(text)
        mlir.PassManager.parse(PASSES).run(module.operation)
        return _spell_floats_in_hex(mlir.translate_to_llvm_ir(module.operation))


_FLOAT = re.compile(
    r"\b(?P<type>half|bfloat|float|double)\b(?! *[*@])"
    r"|(?<![\w.%@$-])(?:f0x(?P<bits>[0-9A-F]+)|(?P<sign>[-+]?)(?P<nan>[qs]?nan\b(?:\(0x[0-9A-Fa-f]+\))?)"
    r"|(?P<number>[-+]?(?:\d+\.\d*(?:e[-+]?\d+)?|inf\b)))")


def _spell_floats_in_hex(text: str) -> str:
    """Rewrites float literals as old-style hex: the MLIR side prints f0x.., +inf, +qnan and short decimals that older LLVM
    parsers do not read. A literal's type is the nearest float type before it on its line."""
    current = "double"

    def literal(m: re.Match[str]) -> str:
        nonlocal current
        if m["type"]:
            current = m["type"]
            return m[0]
        if m["nan"]:
            x = float("-nan" if m["sign"] == "-" else "nan")
        elif m["bits"]:
            raw = bytes.fromhex(m["bits"]) + (b"\0\0" if current == "bfloat" else b"")
            x = struct.unpack({8: ">d", 4: ">f", 2: ">e"}[len(raw)], raw)[0]
        else:
            x = float(m["number"])
        return _hex_literal(x, current)

    return "\n".join(line if line.startswith(("!", "source_filename", "attributes", ";")) else _FLOAT.sub(literal, line)
                     for line in text.split("\n"))


def _hex_literal(x: float, ty: str) -> str:
    """`x` as an LLVM literal of type half, bfloat, float or double; floats are written as the equal double."""
    if ty == "half":
        return f"0xH{struct.pack('>e', x).hex().upper()}"
    if ty == "bfloat":
        bits = struct.unpack(">I", struct.pack(">f", x))[0]
        return f"0xR{(bits >> 16) + (bits >> 15 & 1 if x == x else 0):04X}"
    return f"0x{struct.pack('>d', x if ty == 'double' else struct.unpack('>f', struct.pack('>f', x))[0]).hex().upper()}"


def optimise(ir_text: str, target: TargetSpec) -> tuple[llvm.ModuleRef, llvm.TargetMachine]:
    """Parses and optimises LLVM IR; explicit vector code gains nothing from the loop vectoriser, so that is off."""
    machine = target.machine()
    module = llvm.parse_assembly(ir_text, llvm.create_context())  # a context of its own: called from several threads
    module.triple = target.triple
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=target.optimize)
    options.loop_vectorization = options.slp_vectorization = False
    options.loop_unrolling = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return module, machine


def compile_object(ir_text: str, target: TargetSpec) -> bytes:
    """Optimised, position-independent object code."""
    module, machine = optimise(ir_text, target)
    return bytes(machine.emit_object(module))


def emit_assembly(ir_text: str, target: TargetSpec) -> str:
    """The assembly of `compile_object`, for looking at."""
    module, machine = optimise(ir_text, target)
    return str(machine.emit_assembly(module))


class Jit:
    """Objects loaded into this process without a linker; keep it alive as long as the code is used."""

    def __init__(self, objects: list[bytes], symbols: Mapping[str, int] | None = None) -> None:
        """`symbols` are addresses of functions that the objects call."""
        machine = host_target().machine(jit=True)
        for name, address in (symbols or {}).items():
            llvm.add_symbol(name, address)
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        for data in objects:
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(data))
        self._engine.finalize_object()

    def address(self, symbol: str) -> int:
        """Address of an exported function or global; raises KeyError if there is none."""
        addr = self._engine.get_function_address(symbol) or self._engine.get_global_value_address(symbol)
        if not addr:
            raise KeyError(symbol)
        return int(addr)
