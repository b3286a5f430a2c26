"""Compiled programs kept on disk, found again by everything that went into them."""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dhlo import _runtime
from dhlo.codegen.constants import raw

if TYPE_CHECKING:
    from dhlo.codegen.llvm import TargetSpec
    from dhlo.compiler import Artifact
    from dhlo.frontend.program import Program

__all__ = ["Cache", "StoredConstants", "program_key"]

_CODE, _CONSTANTS = "code.pickle", "constants.bin"


class StoredConstants:
    """A constant blob in a file; stands in for the `Constants` of a fresh compilation."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes = path.stat().st_size

    def fill(self, memory: npt.NDArray[np.uint8]) -> None:
        """Reads the blob into `memory`."""
        with self.path.open("rb", buffering=0) as f:
            at = 0
            while at < self.bytes:
                n = f.readinto(memory.data[at:self.bytes])
                if not n:
                    raise OSError(f"{self.path} ends after {at} of {self.bytes} bytes")
                at += n

    def chunks(self) -> Iterator[npt.NDArray[np.uint8]]:
        """The blob, piece by piece."""
        if self.bytes:
            data = np.memmap(self.path, np.uint8, "r")
            for at in range(0, self.bytes, 1 << 26):
                yield data[at:at + (1 << 26)]


@cache
def _compiler_version() -> str:
    """Changes with every edit of the compiler: sizes and times of its files."""
    root = Path(__file__).parent
    files = sorted(p for d in (root, *(p.resolve() for p in root.iterdir() if p.is_dir())) for p in d.rglob("*.py"))
    rows = [f"{p.name} {p.stat().st_size} {p.stat().st_mtime_ns}" for p in files]
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()


def program_key(program: Program, target: TargetSpec, name: str) -> str:
    """Digest of an imported program with its weights, the target and the compiler itself."""
    h = hashlib.sha256()
    with program.context:
        h.update(program.module.operation.get_asm(enable_debug_info=True).encode())
    parts = (program.symbols, program.user_names, program.inputs, program.outputs, program.mutations, str(program.in_spec),
             str(program.out_spec), target.triple, target.cpu, target.features, target.optimize, name, _compiler_version())
    h.update(repr(parts).encode())
    for key, t in program.weights.items():
        h.update(f"{key} {t.dtype} {tuple(t.shape)} {_runtime.hash64(raw(t).data)}".encode())
    return h.hexdigest()


class Cache:
    """A folder of compiled programs. Entries appear whole or not at all; the least recently used go when it grows past
    `max_bytes`. Several processes may use it at once."""

    def __init__(self, folder: str | Path, max_bytes: int = 20 << 30) -> None:
        self.folder, self.max_bytes = Path(folder), max_bytes

    def get(self, key: str) -> Artifact | None:
        """The entry of a key, or None if there is none (or it can't be read)."""
        entry = self.folder / key
        try:
            data = (entry / _CODE).read_bytes()
            if int.from_bytes(data[:8], "little") != _runtime.hash64(data[8:]):
                shutil.rmtree(entry, ignore_errors=True)  # damaged: make room for a good one
                return None
            artifact: Any = pickle.loads(data[8:])
            os.utime(entry)
            found: Artifact = replace(artifact, constants=StoredConstants(entry / _CONSTANTS))
            return found
        except (OSError, pickle.UnpicklingError, EOFError, AttributeError):
            return None

    def put(self, key: str, artifact: Artifact) -> None:
        """Keeps a compiled program; a full or read-only disk only means that it isn't kept."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            part = Path(tempfile.mkdtemp(prefix=".part-", dir=self.folder))
        except OSError:
            return
        try:
            with (part / _CONSTANTS).open("wb") as f:
                for chunk in artifact.constants.chunks():
                    f.write(chunk.data)
            code = pickle.dumps(replace(artifact, constants=None))  # type: ignore[arg-type]
            (part / _CODE).write_bytes(_runtime.hash64(code).to_bytes(8, "little") + code)
            part.rename(self.folder / key)
        except OSError:
            shutil.rmtree(part, ignore_errors=True)
        self._trim()

    def _trim(self) -> None:
        entries = [(e.stat().st_mtime, sum(f.stat().st_size for f in e.iterdir()), e) for e in self.folder.iterdir() if e.is_dir()]
        total = sum(size for _, size, _ in entries)
        for _, size, entry in sorted(entries)[:-1]:
            if total <= self.max_bytes:
                break
            shutil.rmtree(entry, ignore_errors=True)
            total -= size
