"""Tells whether code read or made subnormal numbers, by the sticky flags of the CPU's floating-point status register."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

from dhlo.codegen.backends.cpu.llvm import Jit, compile_object
from dhlo.codegen.target import native

__all__ = ["CAN_TELL", "touches_subnormals"]

CAN_TELL = native().is_x86

# MXCSR: all exceptions masked, rounding to nearest, subnormals as they are
_DEFAULT = 0x1F80
_READ, _MADE = 1 << 1, 1 << 4  # a subnormal operand; a result below the normal numbers that isn't exact
_IR = """
declare void @llvm.x86.sse.ldmxcsr(ptr)
declare void @llvm.x86.sse.stmxcsr(ptr)
define void @set_status(ptr %p) {
  call void @llvm.x86.sse.ldmxcsr(ptr %p)
  ret void
}
define void @get_status(ptr %p) {
  call void @llvm.x86.sse.stmxcsr(ptr %p)
  ret void
}
"""


@functools.cache
def _status() -> tuple[Jit, Callable[[int], None], Callable[[int], None]]:
    jit = Jit([compile_object(_IR, native())])
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    return jit, kind(jit.address("set_status")), kind(jit.address("get_status"))


def touches_subnormals(run: Callable[[], None]) -> str:
    """What `run`, which computes on the calling thread, did: "" or some of "read" and "made"."""
    _, set_status, get_status = _status()
    word = ctypes.c_uint32()
    get_status(ctypes.addressof(word))
    before = word.value
    word.value = _DEFAULT
    set_status(ctypes.addressof(word))
    try:
        run()
    finally:
        get_status(ctypes.addressof(word))
        flags = word.value
        word.value = before
        set_status(ctypes.addressof(word))
    return " ".join(name for bit, name in ((_READ, "read"), (_MADE, "made")) if flags & bit)
