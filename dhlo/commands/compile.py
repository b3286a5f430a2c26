"""`dhlo compile`: an exported program to a model file, or to the text or object of one of the stages."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from enum import StrEnum
from importlib import import_module
from pathlib import Path

import torch

from dhlo.api import build
from dhlo.commands.console import console, megabytes
from dhlo.container import check_target, write_bytes
from dhlo.errors import CompileError
from dhlo.options import Options
from dhlo.progress import reporter

__all__ = ["Emit", "compile_file", "read_program"]


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


def read_program(path: Path, modules: Sequence[str] = ()) -> torch.export.ExportedProgram:
    """Reads what torch.export.save wrote, after importing `modules` (custom operators, pytree types).

    The file has to be trusted: PyTorch's reader unpickles objects, evaluates expressions and imports modules that it names.
    Raises CompileError if the file can't be read.
    """
    for name in modules:
        try:
            import_module(name)
        except (ImportError, TypeError, ValueError) as e:  # no name of a module
            raise CompileError(f"module '{name}' can't be imported: {e}") from None
    if not path.is_file():
        raise CompileError(f"'{path}' is not a file")
    log = logging.getLogger("torch.export")
    level = log.level
    log.setLevel(logging.CRITICAL)  # it logs a traceback before it raises
    try:
        return torch.export.load(path)
    except Exception as e:  # the loader raises whatever its parts raise
        raise CompileError(
            f"'{path}' can't be read as a program of torch.export.save: {e}",
            hint="files with custom operators or pytree types need --import MODULE that defines them",
        ) from None
    finally:
        log.setLevel(level)


def compile_file(
    source: Path,
    output: Path | None,
    emit: Emit,
    name: str | None,
    progress: bool,
    modules: Sequence[str],
    locations: bool,
) -> Path:
    """Compiles `source` and writes `output`: by default, `source` with the suffix of what is written. Returns the path.

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
    options = Options(name=name or source.stem, progress=progress)
    exported = read_program(source, modules)
    if emit in (Emit.MLIR, Emit.PLANNED):
        write_bytes(output, _module_text(exported, emit is Emit.PLANNED, locations).encode())
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
    return output


def _module_text(exported: torch.export.ExportedProgram, planned: bool, locations: bool) -> str:
    """The module as imported, or as the host program is made of it."""
    from dhlo.codegen.target import parse_target
    from dhlo.commands.opt import module_text
    from dhlo.compiler import plan_program
    from dhlo.frontend import import_program

    program, options = import_program(exported), Options()
    if planned:
        plan_program(program, options, lambda _: None, parse_target(options.target))
    with program.context:
        return module_text(program.module, locations)
