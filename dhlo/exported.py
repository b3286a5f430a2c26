"""Exported programs from files."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, Any, cast

import torch

from dhlo.container import atomic_write, write_all
from dhlo.errors import CompileError

__all__ = ["import_modules", "read_program", "save_program"]

_NAMES = "dhlo.dims"  # a file in the archive of torch.export.save


def save_program(program: torch.export.ExportedProgram, path: str | Path) -> None:
    """Writes an exported program as torch.export.save does, and the names of its dims (torch.export.Dim) besides, which that leaves
    out: `dhlo.compile(path)` and the command line know them again. Other readers see an ordinary file of torch.export.save.

    The file appears when it is whole. Raises OSError if it can't be written.
    """
    env = _shape_env(program)
    names = getattr(env, "source_name_to_debug_name", None) or {}

    def fill(fd: int) -> None:
        file = _File(fd)
        torch.export.save(program, cast(IO[bytes], file), extra_files={_NAMES: json.dumps(dict(names))})
        if file.error is not None:
            raise file.error

    atomic_write(Path(path), fill)


class _File(io.RawIOBase):
    """A file for PyTorch's archives, whose writer ends the process if a write fails: the error is kept for afterwards."""

    def __init__(self, fd: int) -> None:
        self._fd, self._at = fd, 0
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        try:
            if self.error is None:
                write_all(self._fd, data)
        except OSError as e:
            self.error = e
        self._at += size
        return size

    def tell(self) -> int:
        return self._at

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        """PyTorch goes back to the start when all is written, for whoever reads on."""
        return offset


def _shape_env(program: torch.export.ExportedProgram) -> Any:
    values = (n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder")
    modes = (getattr(v, "fake_mode", None) for v in values if isinstance(v, torch.Tensor))
    return next((mode.shape_env for mode in modes if mode is not None), None)


def _restore_names(program: torch.export.ExportedProgram, text: str) -> None:
    """Gives a program the names of dims that `save_program` wrote down; anything else is left alone."""
    env = _shape_env(program)
    try:
        names = json.loads(text or "{}")
    except ValueError:
        return
    if env is not None and isinstance(names, dict):
        env.source_name_to_debug_name.update({k: v for k, v in names.items() if isinstance(v, str)})


def import_modules(names: Sequence[str]) -> None:
    """Imports modules for what they define. Raises CompileError."""
    for name in names:
        try:
            import_module(name)
        except (ImportError, TypeError, ValueError) as e:  # no name of a module
            raise CompileError(f"module '{name}' can't be imported: {e}") from None


def read_program(path: Path, modules: Sequence[str] = ()) -> torch.export.ExportedProgram:
    """Reads what torch.export.save wrote, after importing `modules` (custom operators, pytree types).

    The file has to be trusted: PyTorch's reader unpickles objects, evaluates expressions and imports modules that it names.
    Raises CompileError if the file can't be read.
    """
    import_modules(modules)
    if not path.is_file():
        raise CompileError(f"'{path}' is not a file")
    log = logging.getLogger("torch.export")
    level = log.level
    log.setLevel(logging.CRITICAL)  # it logs a traceback before it raises
    try:
        extra = {_NAMES: ""}
        program = torch.export.load(path, extra_files=extra)
        _restore_names(program, extra[_NAMES])
        return program
    except Exception as e:  # the loader raises whatever its parts raise
        raise CompileError(
            f"'{path}' can't be read as a program of torch.export.save: {e}",
            hint="files with custom operators or pytree types need --import MODULE that defines them",
        ) from None
    finally:
        log.setLevel(level)
