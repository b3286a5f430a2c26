"""The two calls of LLVM that take time, for several threads at once: llvmlite lets one thread into LLVM at a time, which LLVM asks
for only where threads share a context. Objects are llvmlite's, and whoever calls keeps them alive."""

from __future__ import annotations

import ctypes
import functools

import llvmlite.binding as llvm

from dhlo.errors import CompileError

__all__ = ["emit_object", "run_passes"]


@functools.cache
def _library() -> ctypes.CDLL:
    """llvmlite's own library, once more, by functions that let go of Python's lock and take no other."""
    library = ctypes.CDLL(llvm.ffi.lib._name)
    library.LLVMPY_TargetMachineEmitToMemory.restype = ctypes.c_void_p
    library.LLVMPY_GetBufferStart.restype = ctypes.c_void_p
    library.LLVMPY_GetBufferSize.restype = ctypes.c_size_t
    return library


def run_passes(passes: llvm.ModulePassManager, module: llvm.ModuleRef, builder: llvm.PassBuilder) -> None:
    """Runs passes over a module whose context no other thread uses."""
    _library().LLVMPY_RunNewModulePassManager(passes, module, builder)


def emit_object(machine: llvm.TargetMachine, module: llvm.ModuleRef) -> bytes:
    """Object code of a module whose context no other thread uses. Raises CompileError where LLVM can't make any."""
    library = _library()
    with llvm.ffi.OutputString() as why:
        buffer = ctypes.c_void_p(library.LLVMPY_TargetMachineEmitToMemory(machine, module, 1, why))
        if not buffer:
            raise CompileError(f"LLVM makes no code: {why}")
    try:
        return ctypes.string_at(library.LLVMPY_GetBufferStart(buffer), library.LLVMPY_GetBufferSize(buffer))
    finally:
        library.LLVMPY_DisposeMemoryBuffer(buffer)
