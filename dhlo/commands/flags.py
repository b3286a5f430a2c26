"""`dhlo flags` and `dhlo --cmake-dir`: where an installation keeps the libraries that C and C++ hosts link."""

from __future__ import annotations

from pathlib import Path

from dhlo import _runtime
from dhlo.errors import DhloError

__all__ = ["cmake_dir", "host_flags"]


def host_flags() -> list[str]:
    """Compiler flags for a host program: headers, the static libraries of serving and the runtime, of which linkers take
    what the program uses, and what they need of the system.

    Raises DhloError if dhlo is used from a source tree without being installed: its runtime lies in the build folder.
    """
    library = _installed("lib/libdhlo_runtime.a")
    return [f"-I{library.parents[1] / 'include'}", str(library.with_name("libdhlo_serve.a")), str(library), "-pthread", "-ldl"]


def cmake_dir() -> Path:
    """The folder of the package's dhloConfig.cmake. Raises DhloError like `host_flags`."""
    return _installed("lib/cmake/dhlo/dhloConfig.cmake").parent


def _installed(name: str) -> Path:
    path = Path(_runtime.__file__).parent / name
    if not path.is_file():
        raise DhloError(f"'{path}' does not exist: the runtime is part of an installed package (pip install)")
    return path
