"""Code and constants into this process: of an artifact, and of a model file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

import numpy as np

from dhlo import _runtime
from dhlo.errors import CompileError, DhloError, ModelFileError

if TYPE_CHECKING:
    from dhlo.codegen.backends.artifact import Artifact

__all__ = ["ELSEWHERE", "FileOrigin", "Memory", "Verify", "digest_of", "load_artifact", "open_model"]

Verify: TypeAlias = bool | Literal["always"]
Memory: TypeAlias = Literal["auto", "mapped", "populated", "locked", "copied"]
_MEMORY: Final[tuple[Memory, ...]] = get_args(Memory)  # in the order of dhlo_constants_memory
ELSEWHERE = "name a target of this machine, or write a model file for another one: dhlo compile --target ... -o FILE"


def load_artifact(artifact: Artifact, num_threads: int = 0) -> _runtime.Model:
    """Loads object code into this process and packs the constants into huge pages. From then on the artifact has these, not the
    tensors that they were made of: what is saved later is what was compiled. `num_threads` as `open_model` says."""
    from dhlo.codegen.backends.artifact import StoredConstants
    from dhlo.codegen.backends.cpu.link import extern_addresses
    from dhlo.codegen.backends.cpu.llvm import Jit

    jit = Jit(artifact.objects, extern_addresses(artifact.externs))
    if isinstance(artifact.constants, StoredConstants):
        memory = artifact.constants.memory
    else:
        memory = _runtime.Buffer(max(artifact.constants.bytes, 64))
        artifact.constants.fill(np.frombuffer(memory, np.uint8))  # type: ignore[call-overload]
        artifact.constants = StoredConstants(memory, artifact.constants.bytes)
    try:
        return _runtime.Model.from_address(
            jit.address("dhlo_model_v1"), memory.address, artifact.constants.bytes, (jit, memory), num_threads=num_threads
        )
    except RuntimeError as e:
        if getattr(e, "status", "") != "cpu":
            raise
        raise CompileError(str(e), hint=ELSEWHERE) from None


def open_model(
    path: str | Path,
    num_threads: int = 0,
    *,
    verify: Verify = True,
    memory: Memory = "auto",
    require_key: str | Path | bytes | None = None,
    entry: str | None = None,
    weights: str | Path | None = None,
) -> _runtime.Model:
    """The native model of a file, or its entry of that name, run by `num_threads` threads (0: one per processor).

    The rest is like `load`, errors included. Raises DhloError, naming the entries that there are, where there is no such one.
    """
    if verify not in (False, True, "always"):
        raise DhloError(f"verify: expected True, False or 'always', got {verify!r}")
    if memory not in _MEMORY:
        raise DhloError(f"memory: expected {', '.join(map(repr, _MEMORY))}, got {memory!r}")
    authorize = None
    if require_key is not None:
        from dhlo.signing import check_signature

        authorize = check_signature(path, require_key)
    try:
        model = _runtime.Model.from_file(
            path,
            num_threads=num_threads,
            verify=2 if verify == "always" else int(verify),
            memory=_MEMORY.index(memory),
            authorize=authorize,
            weights=weights,
        )
        return model if entry is None else model.entry(entry)
    except MemoryError as e:
        raise ModelFileError(f"model file '{path}': {e}") from None
    except RuntimeError as e:
        raise e if isinstance(e, ModelFileError) else ModelFileError(str(e)) from None
    except (OverflowError, ValueError) as e:  # the number of threads, here or in DHLO_NUM_THREADS; the entry
        raise DhloError(str(e)) from None


@dataclass(frozen=True)
class FileOrigin:
    """The file that a model was loaded from, how it was loaded, and what told the file from others then."""

    path: Path
    options: Mapping[str, Any]
    mark: tuple[int, ...]

    @staticmethod
    def of(path: str | Path, options: Mapping[str, Any]) -> FileOrigin | None:
        """Of a file that is about to be loaded; None where there is none, which loading it says better."""
        absolute = Path(os.path.abspath(path))
        try:
            return FileOrigin(absolute, options, _mark(absolute))
        except (OSError, ValueError):
            return None

    def digest(self) -> bytes:
        """The file's digest. Raises ModelFileError where it isn't the file any more that was loaded."""
        try:
            same = _mark(self.path) == self.mark
        except OSError:
            same = False
        if not same:
            raise ModelFileError(
                f"model file '{self.path}' was replaced or changed after it was loaded: a pickle of the model names its file"
            )
        return digest_of(self.path)


def _mark(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def digest_of(path: Path) -> bytes:
    """The digest that stands for a model file: see abi.h. Raises ModelFileError and OSError."""
    from dhlo.model_file import open_sections

    with open_sections(path) as sections:
        return sections.file_digest
