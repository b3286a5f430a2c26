"""Lowers kernel modules from upstream MLIR to optimised machine code: MLIR passes, LLVM IR text, llvmlite."""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Iterable, Mapping

import llvmlite.binding as llvm

from dhlo import mlir
from dhlo.errors import CompileError

__all__ = ["BASELINE", "Jit", "TargetSpec", "code_features", "compile_object", "emit_assembly", "host_target", "lower_to_llvm_ir"]

PASSES = (
    "builtin.module(convert-vector-to-scf,convert-scf-to-cf,convert-vector-to-llvm{reassociate-fp-reductions=true},"
    "arith-expand,convert-arith-to-llvm,convert-cf-to-llvm,canonicalize,cse,reconcile-unrealized-casts)"
)


# What all code may use: the vectors that kernels are laid out for, and what every CPU that has them has besides.
_VECTORS = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
BASELINE = ("sse3", "ssse3", "sse4.1", "sse4.2", "cx16", "sahf", "popcnt", "crc32", "movbe", "lzcnt", "bmi", "bmi2", "prfchw",
            "xsave", "avx", "avx2", "f16c", "fma", *_VECTORS)

# What some code uses besides, by how LLVM IR shows that: its own intrinsics, and conversions that LLVM has one instruction for.
_EXTRAS = {"avx512bf16": re.compile(r"^ *%\S+ = fptrunc <[^>]*> [^\n]* to <\d+ x bfloat>", re.MULTILINE)}
_INTRINSIC = re.compile(r"^declare [^\n]*@llvm\.x86\.(\w+)\.", re.MULTILINE)
_OF_BASELINE = ("sse", "sse2", "sse41", "sse42", "avx", "avx2", "avx512", "fma", "bmi")  # as intrinsics spell them


class TargetSpec:
    """What code is generated for: an LLVM triple; a CPU by its name, which says how code is tuned; LLVM's feature string, such as
    "+avx2,+avx512f", which says what may be used. `optimize` is LLVM's level, 0 to 3."""

    def __init__(self, triple: str, cpu: str, features: str = "", optimize: int = 2) -> None:
        self.triple, self.cpu, self.features, self.optimize = triple, cpu, features, optimize

    @property
    def names(self) -> frozenset[str]:
        """The features that the CPU has, by LLVM's names."""
        return frozenset(f[1:] for f in self.features.split(",") if f.startswith("+"))

    def check(self) -> None:
        """Raises CompileError for a CPU that kernels aren't laid out for."""
        lacks = [f for f in _VECTORS if f not in self.names]
        if lacks or not self.triple.startswith("x86_64"):
            what = f"lacks {', '.join(lacks)}" if lacks else "is not x86-64"
            raise CompileError(f"can't compile for the CPU '{self.cpu}' ({self.triple}), which {what}",
                               hint="kernels are laid out for AVX-512: compile on a CPU that has it")

    def machine(self, features: Iterable[str] = (), *, jit: bool = False) -> llvm.TargetMachine:
        """Makes code for any CPU that has `features` beyond the plain x86-64."""
        _initialize()
        target = llvm.Target.from_triple(self.triple)
        return target.create_target_machine(cpu="x86-64" if self.triple.startswith("x86_64") else "generic",
                                            features=",".join(f"+{f}" for f in features), opt=self.optimize, reloc="pic",
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


def code_features(ir_text: str, target: TargetSpec) -> list[str]:
    """The features that code from this LLVM IR may use on the target, by LLVM's names: the baseline and what the text names. They
    depend on the CPU only as far as kernels were chosen for it.

    Raises CompileError where the text names a feature that the target lacks.
    """
    used = {f for f, pattern in _EXTRAS.items() if f in target.names and pattern.search(ir_text)}
    named = {m for m in _INTRINSIC.findall(ir_text) if m not in _OF_BASELINE}
    if not named <= target.names:
        raise CompileError(f"the program needs {', '.join(sorted(named - target.names))}, which the CPU '{target.cpu}' lacks")
    return [f for f in BASELINE if f in target.names] + sorted(used | named)


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


_DEFINITION = re.compile(r"^(define [^\n]*) \{$", re.MULTILINE)


def optimise(ir_text: str, target: TargetSpec) -> tuple[llvm.ModuleRef, llvm.TargetMachine]:
    """Parses and optimises LLVM IR; explicit vector code gains nothing from the loop vectoriser, so that is off. Instructions are
    those of `code_features`, scheduled for the target's CPU; all 512 bits of vectors are used, whatever the CPU prefers."""
    machine = target.machine(code_features(ir_text, target))
    tuned = _DEFINITION.sub(rf'\1 "tune-cpu"="{target.cpu}" "prefer-vector-width"="512" {{', ir_text)
    module = llvm.parse_assembly(tuned, llvm.create_context())  # a context of its own: called from several threads
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
