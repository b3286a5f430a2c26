"""A compiled program as the backends link it, tools show it and the cache keeps it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dhlo._runtime import Buffer
from dhlo.codegen.families.constants import Constants
from dhlo.codegen.target import Target

__all__ = ["Artifact", "StoredConstants"]


class StoredConstants:
    """A constant blob that is in memory already; stands in for the `Constants` of a fresh compilation."""

    def __init__(self, memory: Buffer, nbytes: int) -> None:
        self.memory, self.bytes = memory, nbytes

    def chunks(self) -> Iterator[npt.NDArray[np.uint8]]:
        """The blob, piece by piece."""
        yield np.frombuffer(self.memory, np.uint8)[: self.bytes]  # type: ignore[call-overload]


@dataclass
class Artifact:
    """A compiled program: object files, the constants they use, and texts for looking at."""

    objects: list[bytes]
    constants: Constants | StoredConstants
    planned: str  # the planned module
    entries: list[dict[str, Any]]  # the metadata of each
    llvm_ir: list[str]  # what the objects were made of, before optimisation
    targets: list[Target]  # of each of these
    source: bytes = b""  # what other constants can be made with: see dhlo.source

    @property
    def metadata(self) -> dict[str, Any]:
        """Of the first entry, or the only one."""
        return self.entries[0]

    @property
    def externs(self) -> dict[str, str]:
        """C functions that the program calls, and the libraries that have them."""
        return {symbol: library for entry in self.entries for symbol, library in entry["externs"].items()}

    def digest(self) -> bytes:
        """SHA-256 of that of each object and that of the constants."""
        constants = hashlib.sha256()
        for chunk in self.constants.chunks():
            constants.update(chunk.reshape(-1).view("u1").data)
        return hashlib.sha256(b"".join([*(hashlib.sha256(o).digest() for o in self.objects), constants.digest()])).digest()

    @property
    def code_bytes(self) -> int:
        return sum(map(len, self.objects))

    @property
    def levels(self) -> list[tuple[Target, list[str]]]:
        """The LLVM IR of each target."""
        return [
            (t, [ir for ir, of in zip(self.llvm_ir, self.targets, strict=True) if of == t]) for t in dict.fromkeys(self.targets)
        ]
