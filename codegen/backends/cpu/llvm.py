"""Lowers kernel modules from upstream MLIR to optimised machine code: MLIR passes, LLVM IR text, llvmlite."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import llvmlite.binding as llvm

from dhlo.codegen.backends.cpu.dialects import bf16_as_integers, in_older_spelling
from dhlo.codegen.backends.cpu.unlocked import emit_object, run_passes
from dhlo.codegen.kernel_ir.builder import EXPLICIT, ONCE
from dhlo.codegen.target import Target, native
from dhlo.errors import CompileError
from dhlo.ir import mlir
from dhlo.options import verify_passes

__all__ = [
    "Jit",
    "code_features",
    "compile_common",
    "compile_object",
    "emit_assembly",
    "lower_common",
    "lower_to_llvm_ir",
    "optimise",
]

# Of LLVM's optimisation; and of making machine code of what runs once a call. A decoder's host program of 24 layers then takes
# 4.2 s, with its short order of passes, instead of 9.6, and a call of 12 small layers the 11 us that it took; with 0 it would
# take 1.2 s, and 13 % longer to run (Zen 5).
_LEVEL, _LEVEL_ONCE = 2, 1
_LIBRARY = "model"  # name of loaded code in its JIT

PASSES = (
    "builtin.module(convert-vector-to-scf,convert-scf-to-cf,convert-vector-to-llvm{{reassociate-fp-reductions=true}},"
    "arith-expand{{include-bf16={bf16}}},convert-arith-to-llvm,convert-cf-to-llvm,canonicalize,cse,reconcile-unrealized-casts)"
)


# Names of intrinsics begin with the feature that they belong to; these are in every target's baseline.
_CALL, _X86 = "llvm.call_intrinsic", "llvm.x86."
_OF_BASELINE = ("sse", "sse2", "sse41", "sse42", "avx", "avx2", "avx512", "fma", "bmi")


def machine(target: Target, features: Iterable[str] = (), level: int = _LEVEL) -> llvm.TargetMachine:
    """Makes code for any CPU of the target's architecture that has `features`, with an effort of `level`."""
    _initialize()
    made = llvm.Target.from_triple(target.triple)
    cpu = "x86-64" if target.is_x86 else "generic"
    return made.create_target_machine(
        cpu=cpu, features=",".join(f"+{f}" for f in features), opt=level, reloc="pic", codemodel="default"
    )


@functools.cache
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def code_features(text: str, target: Target) -> list[str]:
    """The features that code from this MLIR text of a `KernelModule` may use on the target, by LLVM's names: its baseline, and what
    stands behind the intrinsics that it calls and the types of its values.

    Raises CompileError where the text calls for a feature that the target lacks.
    """
    _, *calls = text.split(f'{_CALL} "')
    called = {call.partition('"')[0] for call in calls}
    used = {dot.feature for dot in (*target.dots.values(), *target.matrix_dots.values()) if dot.intrinsic in called}
    of_tiles = target.tiles.features if target.tiles is not None else {}
    used |= {of_tiles[name] for name in called & of_tiles.keys()}
    if "bf16" in target.dots and _has_bf16(text):
        used.add(target.dots["bf16"].feature)
    called -= of_tiles.keys()  # whose names begin with themselves
    named = {name.removeprefix(_X86).partition(".")[0] for name in called if name.startswith(_X86)}.difference(_OF_BASELINE)
    if not named <= target.extras:
        raise CompileError(f"the program needs {', '.join(sorted(named - target.extras))}, which the target '{target.name}' lacks")
    return [*target.features, *sorted(used | named)]


def _has_bf16(text: str) -> bool:
    """Whether MLIR text may have values of that type, alone or in vectors."""
    return any(not line.startswith("llvm.mlir.global") and (" bf16" in line or "xbf16" in line) for line in text.split("\n"))


def lower_to_llvm_ir(text: str, target: Target) -> str:
    """MLIR text of a `KernelModule` to LLVM IR text. Its functions say what instructions their code may consist of: those of
    `code_features`, scheduled for the target's CPU; all bits of its vectors are used, whatever the CPU prefers."""
    integers = "bf16" not in target.dots  # which then round to bf16 and are stored for it
    with mlir.ir.Context(), mlir.ir.Location.unknown():
        module = mlir.ir.Module.parse(text)
        passes = mlir.PassManager.parse(PASSES.format(bf16=str(integers).lower()))
        passes.enable_verifier(verify_passes())  # which takes longer than the passes; LLVM verifies what comes of them
        passes.run(module.operation)
        if integers and _has_bf16(text):
            bf16_as_integers(module)
        _set_attributes(
            module,
            {
                "target-features": ",".join(f"+{f}" for f in code_features(text, target)),
                "tune-cpu": target.tune,
                "prefer-vector-width": str(target.vector_bits),
            },
        )
        return in_older_spelling(mlir.translate_to_llvm_ir(module.operation))


def _set_attributes(module: Any, attributes: Mapping[str, str]) -> None:
    """Adds attributes of LLVM's to every function that has a body."""
    string, array = mlir.ir.StringAttr.get, mlir.ir.ArrayAttr.get
    new = [array([string(k), string(v)]) for k, v in attributes.items()]
    for op in module.body.operations:
        if op.operation.name == "llvm.func" and len(op.regions[0].blocks):
            old = op.attributes["passthrough"] if "passthrough" in op.attributes else []
            op.attributes["passthrough"] = array([*old, *new])


def optimise(ir_text: str, target: Target) -> tuple[llvm.ModuleRef, llvm.TargetMachine]:
    """Parses and optimises LLVM IR of `lower_to_llvm_ir`. Code of vectors gains nothing from LLVM's loop vectoriser, so that is
    off; and explicit functions, if a module has no others, are only tidied up."""
    module = llvm.parse_assembly(ir_text, llvm.create_context())  # a context of its own: called from several threads
    module.triple = target.triple
    module.verify()
    made = machine(target, target.features, _LEVEL_ONCE if _all_are(module, ONCE) else _LEVEL)
    options = llvm.create_pipeline_tuning_options(speed_level=_LEVEL)
    options.loop_vectorization = options.slp_vectorization = False
    options.loop_unrolling = False
    builder = llvm.create_pass_builder(made, options)
    passes = _tidying() if _all_are(module, EXPLICIT) else builder.getModulePassManager()
    run_passes(passes, module, builder)
    return module, made


def _all_are(module: llvm.ModuleRef, attribute: str) -> bool:
    """Whether all of its functions have an attribute, but for those that are inlined into them."""
    defined = [b" ".join(f.attributes) for f in module.functions if not f.is_declaration]
    return all(attribute.encode() in attributes or b"alwaysinline" in attributes for attributes in defined)


def _tidying() -> llvm.ModulePassManager:
    """What explicit functions need: values folded, and loops that test at their ends; MLIR has found what is computed twice. LLVM's
    own order of passes combines instructions eight times, and takes six times as long. NewGVN isn't in that, and isn't here: an
    assertion of its own, about values that it meets too often, ended the process for a host program of 150 layers."""
    passes = llvm.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
    passes.add_loop_rotate_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    passes.add_post_order_function_attributes_pass()  # what can't throw takes no tables for unwinding
    passes.add_global_dead_code_eliminate_pass()
    return passes


def compile_object(ir_text: str, target: Target) -> bytes:
    """Optimised, position-independent object code."""
    module, made = optimise(ir_text, target)
    return emit_object(made, module)


def emit_assembly(ir_text: str, target: Target) -> str:
    """The assembly of `compile_object`, for looking at."""
    module, made = optimise(ir_text, target)
    return str(made.emit_assembly(module))


# Of parts that programs have in common, what was made last: they take most of the time, and a few MB each.
lower_common = functools.lru_cache(maxsize=24)(lower_to_llvm_ir)
compile_common = functools.lru_cache(maxsize=24)(compile_object)


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
