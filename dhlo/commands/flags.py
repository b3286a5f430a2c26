"""`dhlo flags`: where an installation keeps the runtime that C and C++ hosts link."""

from __future__ import annotations

from pathlib import Path

from dhlo import _runtime
from dhlo.errors import DhloError

__all__ = ["host_flags"]


def host_flags() -> list[str]:
    """Compiler flags for a host program: headers, the static runtime, and what it needs of the system.

    Raises DhloError if dhlo is used from a source tree without being installed: its runtime lies in the build folder.
    """
    package = Path(_runtime.__file__).parent
    library = package / "lib" / "libdhlo_runtime.a"
    if not library.is_file():
        raise DhloError(f"'{library}' does not exist: the runtime is part of an installed package (pip install)")
    return [f"-I{package / 'include'}", str(library), "-pthread", "-ldl"]
