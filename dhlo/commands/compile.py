"""`dhlo compile`: an exported program to a model file, or to the text or object of one of the stages."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path

import torch

from dhlo.api import build
from dhlo.codegen.target import parse_targets
from dhlo.commands.console import cache_summary, console, megabytes, quantised_summary
from dhlo.container import check_target, write_bytes
from dhlo.errors import CompileError
from dhlo.exported import read_program
from dhlo.options import Options, default_target
from dhlo.progress import reporter

__all__ = ["Emit", "compile_file"]


class Emit(StrEnum):
    """What `dhlo compile` writes."""

    SO = "so"
    OBJ = "obj"
    MLIR = "mlir"
    PLANNED = "planned"
    LLVM = "llvm"
    ASM = "asm"


_SUFFIX = {
    Emit.SO: ".so",
    Emit.OBJ: ".o",
    Emit.MLIR: ".mlir",
    Emit.PLANNED: ".planned.mlir",
    Emit.LLVM: ".ll",
    Emit.ASM: ".s",
}


def compile_file(
    source: Path,
    output: Path | None,
    emit: Emit,
    name: str | None,
    progress: bool,
    modules: Sequence[str],
    locations: bool,
    target: str | None = None,
    weights: Mapping[str, str] | None = None,
    winograd: bool = True,
    kv_cache: str = "",
) -> Path:
    """Compiles `source` for `target`, with `weights`, `winograd` and `kv_cache` (see `Options`), and writes `output`: by default,
    `source` with the suffix of what is written. Returns the path.

    Raises CompileError, and OSError where the output can't be written.
    """
    output = output or source.with_suffix(_SUFFIX[emit])
    if not output.parent.is_dir() or output.is_dir():
        raise CompileError(
            f"'{output}' can't be written: " + ("it is a folder" if output.is_dir() else f"'{output.parent}' is not a folder")
        )
    if emit in (Emit.SO, Emit.OBJ):
        check_target(output)
    start = time.perf_counter()
    options = Options(
        name=name or source.stem,
        progress=progress,
        target=target or default_target(),
        weights=weights or {},
        winograd=winograd,
        kv_cache=kv_cache,
    )
    parse_targets(options.target)  # before the work that a wrong name would waste
    exported = read_program(source, modules)
    if emit in (Emit.MLIR, Emit.PLANNED):
        write_bytes(output, _module_text(exported, emit is Emit.PLANNED, locations, options).encode())
        return output
    from dhlo.codegen.backends.cpu import link

    with reporter(progress) as tell:
        _, artifact = build(exported, options, tell)
        tell(f"write {output}")
        match emit:
            case Emit.SO:
                link.write_model(artifact, output)
            case Emit.OBJ:
                link.write_object(artifact, output)
            case Emit.LLVM:
                write_bytes(output, link.merged_ir(artifact).encode())
            case _:
                write_bytes(output, link.merged_assembly(artifact).encode())
    if emit in (Emit.SO, Emit.OBJ):
        code = output.stat().st_size - (artifact.constants.bytes if emit is Emit.SO else 0)
        console().print(
            f"{output}: {megabytes(code)} without weights, {megabytes(artifact.constants.bytes)} weights, "
            f"{time.perf_counter() - start:.1f} s"
        )
        if artifact.metadata["quantised"]:
            console().print(quantised_summary(artifact.metadata["quantised"]), markup=False)
        if artifact.metadata["caches"]:
            console().print(cache_summary(artifact.metadata["caches"]), markup=False)
    return output


def _module_text(exported: torch.export.ExportedProgram, planned: bool, locations: bool, options: Options) -> str:
    """The module as imported, or as the host program is made of it."""
    from dhlo.commands.opt import module_text
    from dhlo.compiler import plan_program
    from dhlo.frontend import import_program
    from dhlo.passes.quantise_caches import request_caches
    from dhlo.passes.quantise_weights import request_weights

    program = import_program(exported)
    if planned:
        with program.context:
            request_weights(program.module, options.weights)
            request_caches(program.module, options.kv_cache)
        plan_program(program, options, lambda _: None, parse_targets(options.target)[:1])
    with program.context:
        return module_text(program.module, locations)
