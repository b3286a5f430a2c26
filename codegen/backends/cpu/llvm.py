"""Lowers kernel modules from upstream MLIR to optimised machine code: MLIR passes, LLVM IR text, llvmlite."""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Iterable, Mapping

import llvmlite.binding as llvm

from dhlo.codegen.target import Target, native
from dhlo.errors import CompileError
from dhlo.ir import mlir

__all__ = ["Jit", "code_features", "compile_object", "emit_assembly", "lower_to_llvm_ir", "optimise"]

_LEVEL = 2  # of LLVM's optimisation
_LIBRARY = "model"  # name of loaded code in its JIT

PASSES = (
    "builtin.module(convert-vector-to-scf,convert-scf-to-cf,convert-vector-to-llvm{{reassociate-fp-reductions=true}},"
    "arith-expand{{include-bf16={bf16}}},convert-arith-to-llvm,convert-cf-to-llvm,canonicalize,cse,reconcile-unrealized-casts)"
)


# What some code uses beyond its target's baseline, by how LLVM IR shows that: a type, and intrinsics named after the
# feature. Without the feature, LLVM calls functions that hosts needn't have wherever the type occurs.
_BFLOAT = re.compile(r"^(?!@)[^\n]*\bbfloat\b", re.MULTILINE)
_INTRINSIC = re.compile(r"^declare [^\n]*@llvm\.x86\.(\w+)\.", re.MULTILINE)
_OF_BASELINE = ("sse", "sse2", "sse41", "sse42", "avx", "avx2", "avx512", "fma", "bmi")  # as intrinsics spell them


def machine(target: Target, features: Iterable[str] = ()) -> llvm.TargetMachine:
    """Makes code for any CPU of the target's architecture that has `features`."""
    _initialize()
    made = llvm.Target.from_triple(target.triple)
    cpu = "x86-64" if target.is_x86 else "generic"
    return made.create_target_machine(
        cpu=cpu, features=",".join(f"+{f}" for f in features), opt=_LEVEL, reloc="pic", codemodel="default"
    )


@functools.cache
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def code_features(ir_text: str, target: Target) -> list[str]:
    """The features that code from this LLVM IR may use on the target, by LLVM's names: its baseline and what the text names.

    Raises CompileError where the text names a feature that the target lacks.
    """
    used = {dot.feature for dot in target.dots.values() if f"@{dot.intrinsic}" in ir_text}
    if "bf16" in target.dots and _BFLOAT.search(ir_text):
        used.add(target.dots["bf16"].feature)
    named = {m for m in _INTRINSIC.findall(ir_text) if m not in _OF_BASELINE}
    if not named <= target.extras:
        raise CompileError(f"the program needs {', '.join(sorted(named - target.extras))}, which the target '{target.name}' lacks")
    return [*target.features, *sorted(used | named)]


def lower_to_llvm_ir(text: str, target: Target) -> str:
    """MLIR text of a `KernelModule` to LLVM IR text."""
    integers = "bf16" not in target.dots  # which then round to bf16 and are stored for it
    with mlir.ir.Context(), mlir.ir.Location.unknown():
        module = mlir.ir.Module.parse(text)
        mlir.PassManager.parse(PASSES.format(bf16=str(integers).lower())).run(module.operation)
        ir_text = _spell_floats_in_hex(mlir.translate_to_llvm_ir(module.operation))
        return _bf16_as_integers(ir_text) if integers else ir_text


def _bf16_as_integers(ir_text: str) -> str:
    """The text with i16 for bfloat, which is left in memory, in vectors and in constants alone."""
    constant = re.sub(r"\b0xR([0-9A-F]{4})\b", lambda m: str(int(m[1], 16)), ir_text)
    text = re.sub(r"\bbfloat\b", "i16", re.sub(r"(?<=[.v\d])bf16\b", "i16", constant))
    seen: set[str] = set()

    def once(m: re.Match[str]) -> str:
        """An intrinsic that served both types is declared twice now."""
        new = m["name"] not in seen
        seen.add(m["name"])
        return m[0] if new else ""

    return re.sub(r"^declare [^\n]*(?P<name>@[\w.]+)\([^\n]*$", once, text, flags=re.MULTILINE)


_FLOAT = re.compile(
    r"\b(?P<type>half|bfloat|float|double)\b(?! *[*@])"
    r"|(?<![\w.%@$-])(?:f0x(?P<bits>[0-9A-F]+)|(?P<sign>[-+]?)(?P<nan>[qs]?nan\b(?:\(0x[0-9A-Fa-f]+\))?)"
    r"|(?P<number>[-+]?(?:\d+\.\d*(?:e[-+]?\d+)?|inf\b)))"
)


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

    return "\n".join(
        line if line.startswith(("!", "source_filename", "attributes", ";")) else _FLOAT.sub(literal, line)
        for line in text.split("\n")
    )


def _hex_literal(x: float, ty: str) -> str:
    """`x` as an LLVM literal of type half, bfloat, float or double; floats are written as the equal double."""
    if ty == "half":
        return f"0xH{struct.pack('>e', x).hex().upper()}"
    if ty == "bfloat":
        bits = struct.unpack(">I", struct.pack(">f", x))[0]
        return f"0xR{(bits >> 16) + (bits >> 15 & 1 if x == x else 0):04X}"
    return f"0x{struct.pack('>d', x if ty == 'double' else struct.unpack('>f', struct.pack('>f', x))[0]).hex().upper()}"


_DEFINITION = re.compile(r"^(define [^\n]*) \{$", re.MULTILINE)


def optimise(ir_text: str, target: Target) -> tuple[llvm.ModuleRef, llvm.TargetMachine]:
    """Parses and optimises LLVM IR; explicit vector code gains nothing from the loop vectoriser, so that is off. Instructions are
    those of `code_features`, scheduled for the target's CPU; all bits of its vectors are used, whatever the CPU prefers."""
    features = code_features(ir_text, target)
    made = machine(target, features)
    attributes = {
        "target-features": ",".join(f"+{f}" for f in features),
        "tune-cpu": target.tune,
        "prefer-vector-width": str(target.vector_bits),
    }
    spelled = " ".join(f'"{k}"="{v}"' for k, v in attributes.items())
    tuned = _DEFINITION.sub(rf"\1 {spelled} {{", ir_text)
    module = llvm.parse_assembly(tuned, llvm.create_context())  # a context of its own: called from several threads
    module.triple = target.triple
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=_LEVEL)
    options.loop_vectorization = options.slp_vectorization = False
    options.loop_unrolling = False
    builder = llvm.create_pass_builder(made, options)
    builder.getModulePassManager().run(module, builder)
    return module, made


def compile_object(ir_text: str, target: Target) -> bytes:
    """Optimised, position-independent object code."""
    module, made = optimise(ir_text, target)
    return bytes(made.emit_object(module))


def emit_assembly(ir_text: str, target: Target) -> str:
    """The assembly of `compile_object`, for looking at."""
    module, made = optimise(ir_text, target)
    return str(made.emit_assembly(module))


class Jit:
    """Objects loaded into this process without a linker; keep it alive as long as the code is used.

    JITLink gives an object's sections one piece of memory and reaches everything else through tables, wherever it lies: a process
    may have so many libraries that no 2 GB around have room left.
    """

    def __init__(self, objects: list[bytes], symbols: Mapping[str, int] | None = None) -> None:
        """`symbols` are addresses of functions that the objects call. Raises CompileError where objects are broken."""
        library = llvm.JITLibraryBuilder().add_current_process()
        for name, address in (symbols or {}).items():
            library.import_symbol(name, address)
        for data in objects:
            library.add_object_img(data)
        try:
            self._linker = llvm.create_lljit_compiler(machine(native()), use_jit_link=True)
            self._loaded = library.link(self._linker, _LIBRARY)
        except RuntimeError as e:
            raise CompileError(f"the code can't be loaded: {e}") from None
        self._found: dict[str, llvm.ResourceTracker] = {}

    def address(self, symbol: str) -> int:
        """Address of an exported function or global. Raises CompileError if there is none, or it calls what nothing has."""
        if symbol not in self._found:
            try:
                self._found[symbol] = self._linker.lookup(_LIBRARY, symbol)
            except RuntimeError as e:
                raise CompileError(f"the code can't be loaded: {e}") from None
        return int(self._found[symbol][symbol])
