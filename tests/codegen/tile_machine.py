"""Runs kernels that are made of instructions on tiles where the CPU has none: as calls of `tile_machine.cpp`."""

from __future__ import annotations

import ctypes
import functools
import re
import subprocess
import tempfile
from pathlib import Path

from dhlo import _runtime
from dhlo.codegen.target import Target

__all__ = ["emulated", "is_needed", "report", "symbols"]

_SOURCE = Path(__file__).with_suffix(".cpp")
_NAMES = ("ldtilecfg", "tilerelease", "tilezero", "tileloadd64", "tileloaddt164", "tilestored64", "tdpbf16ps", "tdpbssd", "tdpbusd")
_CALLED = re.compile(rf"@llvm\.x86\.({'|'.join(_NAMES)})\(")


def is_needed(target: Target) -> bool:
    """Whether this CPU lacks the target's tiles."""
    return target.tiles is not None and not all(map(_runtime.cpu_supports, set(target.tiles.features.values())))


@functools.cache
def _library() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tile_machine.so"
        flags = ["-std=c++17", "-O2", "-shared", "-fPIC", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"]
        subprocess.run(["c++", *flags, str(_SOURCE), "-o", str(path)], check=True)
        library = ctypes.CDLL(str(path))
    library.tile_report.restype = ctypes.c_char_p
    return library


def emulated(ir_text: str) -> str:
    """LLVM IR with calls for instructions on tiles."""
    lines = ir_text.split("\n")
    for i, line in enumerate(lines):
        if line.startswith("attributes "):
            lines[i] = re.sub(r",?\+amx-\w+", "", line)
        elif line.startswith("declare ") and _CALLED.search(line):
            lines[i] = line.replace(" immarg", "")
    return _CALLED.sub(r"@tile_\1(", "\n".join(lines))


def symbols() -> dict[str, int]:
    """Addresses of what `emulated` code calls."""
    found = {f"tile_{name}": getattr(_library(), f"tile_{name}") for name in _NAMES}
    return {name: ctypes.cast(f, ctypes.c_void_p).value or 0 for name, f in found.items()}


def report() -> int:
    """Products of tiles since the last report. Raises AssertionError where code did what traps, or left tiles in use."""
    count, kept = ctypes.c_int64(), ctypes.c_int64()
    fault = _library().tile_report(ctypes.byref(count), ctypes.byref(kept))
    assert fault is None, fault.decode()
    assert kept.value == 0, "a thread has not released its tiles"
    return count.value
