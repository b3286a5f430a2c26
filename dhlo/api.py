"""`compile` and `load`: the two ways to a CompiledModel."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dhlo import _runtime
from dhlo.callspec import CallSpec, read_call, updates_of
from dhlo.errors import CompileError, ModelFileError
from dhlo.model import CompiledModel
from dhlo.options import Options, cache_dir
from dhlo.progress import reporter

if TYPE_CHECKING:
    from dhlo.compiler import Artifact
    from dhlo.frontend.program import Program

__all__ = ["build", "compile", "load", "open_model"]


def compile(exported: torch.export.ExportedProgram, **options: Any) -> CompiledModel:
    """Compiles a torch.export program once, for all shapes that it allows.

    Options are the fields of `dhlo.Options`. Raises UnsupportedError listing every operator that can't be compiled,
    with the user's source lines; CompileError if the program is inconsistent.
    """
    try:
        opts = Options(**options)
    except TypeError as e:
        raise CompileError(f"unknown option: {e}") from None
    with reporter(opts.progress) as progress:
        program, artifact = build(exported, opts, progress)
        progress("pack weights")
        model = _load_artifact(artifact)
    call = CallSpec(
        program.inputs,
        program.outputs,
        program.in_spec,
        program.out_spec,
        updates_of(program.inputs, program.mutations),
    )
    return CompiledModel(model, call, artifact)


def build(
    exported: torch.export.ExportedProgram, options: Options, progress: Callable[[str], None] = lambda _: None
) -> tuple[Program, Artifact]:
    """The imported program and its object code, not loaded into this process. Raises the errors of `compile`."""
    from dhlo.cache import Cache, program_key
    from dhlo.codegen.llvm import host_target
    from dhlo.compiler import compile_program, renumber
    from dhlo.frontend import import_program
    from dhlo.frontend.growing import grow_arguments

    progress("import")
    program = import_program(exported)
    grow_arguments(program, options.grow)
    folder = options.cache if options.cache is not None else cache_dir()
    if not folder or options.dump is not None:
        return program, compile_program(program, options, progress)
    cache, key = Cache(folder), program_key(program, host_target(), options.name)
    artifact = cache.get(key)
    if artifact is not None:
        renumber(program)
        return program, artifact
    artifact = compile_program(program, options, progress)
    progress("keep in the cache")
    cache.put(key, artifact)
    return program, artifact


def _load_artifact(artifact: Artifact) -> _runtime.Model:
    """Loads object code into this process and packs the constants into huge pages."""
    from dhlo.codegen.link import extern_addresses
    from dhlo.codegen.llvm import Jit

    jit = Jit(artifact.objects, extern_addresses(artifact.metadata["externs"]))
    memory = _runtime.Buffer(max(artifact.constants.bytes, 64))
    artifact.constants.fill(np.frombuffer(memory, np.uint8))  # type: ignore[call-overload]
    return _runtime.Model.from_address(
        jit.address("dhlo_model_v1"), memory.address, artifact.constants.bytes, (jit, memory)
    )


def load(path: str | Path) -> CompiledModel:
    """Loads a model file. It is called like the model that was compiled: same pytrees, keywords and updated inputs.

    Where the file names pytree types that aren't registered in this process, as their library isn't imported, it takes
    and gives flat sequences of tensors. Raises ModelFileError if the file is truncated, foreign, too new, or made for
    another CPU.
    """
    model = open_model(path)
    return CompiledModel(model, read_call(json.loads(model.metadata).get("call"), model.inputs, model.outputs))


def open_model(path: str | Path, num_threads: int = 0) -> _runtime.Model:
    """The native model of a file, run by `num_threads` threads (0: one per processor).

    Raises ModelFileError like `load`.
    """
    try:
        return _runtime.Model.from_file(path, num_threads=num_threads)
    except RuntimeError as e:
        raise ModelFileError(str(e)) from None
