"""`compile` and `load`: the two ways to a CompiledModel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from dhlo import _runtime
from dhlo.codegen.llvm import Jit
from dhlo.compiler import Artifact, compile_program
from dhlo.errors import CompileError, ModelFileError
from dhlo.model import CompiledModel
from dhlo.options import Options
from dhlo.progress import reporter

__all__ = ["compile", "load"]


def compile(exported: torch.export.ExportedProgram, **options: Any) -> CompiledModel:  # noqa: A001
    """Compiles a torch.export program once, for all shapes that it allows.

    Options are the fields of `dhlo.Options`. Raises UnsupportedError listing every operator that can't be compiled, with the
    user's source lines; CompileError if the program is inconsistent.
    """
    from dhlo.frontend import import_program

    try:
        opts = Options(**options)
    except TypeError as e:
        raise CompileError(f"unknown option: {e}") from None
    with reporter(opts.progress) as progress:
        progress("import")
        program = import_program(exported)
        artifact = compile_program(program, opts, progress)
        progress("pack weights")
        model = _load_artifact(artifact)
    leaf = {s.name: i for i, s in enumerate(program.inputs)}
    updates = [(leaf[m.target], m.index) for m in program.mutations if m.kind == "input"]
    stateful = [m.target for m in program.mutations if m.kind != "input"]
    if stateful:
        raise CompileError(f"the program changes its buffers ({', '.join(stateful)}), which is not supported yet",
                           hint="pass them as inputs")
    return CompiledModel(model, program.inputs, program.outputs, program.in_spec, program.out_spec, artifact, updates)


def _load_artifact(artifact: Artifact) -> _runtime.Model:
    """Loads object code into this process and packs the constants into huge pages."""
    jit = Jit(artifact.objects)
    memory = _runtime.Buffer(max(artifact.constants.bytes, 64))
    artifact.constants.fill(np.frombuffer(memory, np.uint8))  # type: ignore[call-overload]
    return _runtime.Model.from_address(jit.address("dhlo_model_v1"), memory.address, artifact.constants.bytes, (jit, memory))


def load(path: str | Path) -> CompiledModel:
    """Loads a model file. It takes and gives flat sequences of tensors.

    Raises ModelFileError if the file is truncated, foreign, too new, or made for another CPU.
    """
    try:
        model = _runtime.Model.from_file(path)
    except RuntimeError as e:
        raise ModelFileError(str(e)) from None
    from dhlo.frontend.program import InputSpec, OutputSpec
    from dhlo.types import DTYPES, TensorType

    any_type = TensorType(DTYPES["f32"], ())
    inputs = [InputSpec(v["name"], any_type) for v in model.inputs]
    outputs = [OutputSpec(v["name"], i) for i, v in enumerate(model.outputs)]
    return CompiledModel(model, inputs, outputs, None, None)
