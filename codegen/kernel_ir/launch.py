"""What a kernel is, and what a kernel family needs of the host program: sizes as i64 values in, launches out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dhlo.codegen.kernel_ir.builder import I64, PTR, Fn, KernelModule, V

__all__ = ["EPILOGUE_ARGS", "KERNEL_ARGS", "HostContext", "is_kernel", "kernel_fn", "load_args"]

KERNEL_ARGS = (("args", PTR), ("begin", I64), ("end", I64), ("worker", I64), ("scratch", PTR))

EPILOGUE_ARGS = (("eargs", PTR), ("tile", PTR), ("ld", I64), ("batch", I64), ("m0", I64), ("n0", I64), ("mr", I64), ("nr", I64))
"""Of an epilogue, which takes `mr` x `nr` finished elements of a product at row m0 and column n0, the tile's rows `ld` apart."""


class HostContext(Protocol):
    """The host function under construction, as kernel families see it.

    `fn` is the builder to emit size arithmetic and branches into. `launch` emits a call of the runtime's launch service:
    `args` (i64 or pointers) are stored to the argument array, items [0, count) are split in chunks of at least `grain`;
    kernels get `scratch` bytes per worker. Launches may stand inside `fn.when` (variant choice); they run in program order.
    """

    module: KernelModule

    @property
    def fn(self) -> Fn: ...

    @property
    def num_threads(self) -> V: ...

    @property
    def l2_bytes(self) -> V:
        """Second-level cache of one core."""
        ...

    def machine(self, fact: str) -> V:
        """A fact of the machine that the program runs on, by its name in `abi.MACHINE`."""
        ...

    def kept(self) -> V:
        """An array with a number for each worker, for `Blocks`: 0 as the next launch begins, and its alone."""
        ...

    def launch(self, kernel: str, args: Sequence[V], count: V | int, grain: V | int, scratch: V | int = 0) -> None: ...


def kernel_fn(module: KernelModule, name: str) -> Fn:
    """Starts a kernel: `void name(const int64_t* args, int64_t begin, int64_t end, int64_t worker, void* scratch)`."""
    return Fn(module, name, KERNEL_ARGS)


def is_kernel(module: KernelModule, name: str) -> bool:
    """Is a name that of a function of the module that can be launched?"""
    known = module.functions.get(name)
    return known is not None and known.declaration.endswith(f"({', '.join(ty for _, ty in KERNEL_ARGS)})")


def load_args(fn: Fn, types: Sequence[str]) -> list[V]:
    """The kernel's arguments by position; PTR entries come back as pointers, all others as i64."""
    out = []
    for i, ty in enumerate(types):
        x = fn.load(fn.gep(fn.args[0], i, I64), I64)
        out.append(fn.int_to_ptr(x) if ty == PTR else x)
    return out
