"""Exported programs from files."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import torch

from dhlo.errors import CompileError

__all__ = ["read_program"]


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
