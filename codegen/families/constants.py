"""The constant blob: weights as kernels want them, each stored once."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["Constants", "States"]

_ALIGN = 64


class Constants:
    """Collects constants and gives each an offset. Data is produced when the blob is written, one constant at a time, so that
    packing 400 MB of weights never needs two copies of everything."""

    def __init__(self) -> None:
        self._offsets: dict[Hashable, int] = {}
        self._parts: list[tuple[int, int, Callable[[], npt.NDArray[Any]]]] = []
        self.bytes = 0

    def add(self, key: Hashable, nbytes: int, data: Callable[[], npt.NDArray[Any]]) -> int:
        """Offset of a constant of `nbytes`; `data` is called later, unless `key` is here already."""
        if key not in self._offsets:
            self._offsets[key] = self.bytes
            self._parts.append((self.bytes, nbytes, data))
            self.bytes += -(-nbytes // _ALIGN) * _ALIGN
        return self._offsets[key]

    def add_tensor(self, key: Hashable, t: torch.Tensor) -> int:
        """Offset of a dense row-major copy of a tensor."""
        return self.add(key, t.numel() * t.element_size(), lambda: raw(t))

    def parts(self) -> list[tuple[int, int, Callable[[], npt.NDArray[Any]]]]:
        """Offset, bytes and content, to be called for, of each constant, in order."""
        return list(self._parts)

    def fill(self, memory: npt.NDArray[np.uint8]) -> None:
        """Writes everything into `memory`, which has `bytes` bytes; packing and copying run without Python's lock."""

        def write(part: tuple[int, int, Callable[[], npt.NDArray[Any]]]) -> None:
            offset, nbytes, data = part
            flat = data().reshape(-1).view(np.uint8)
            if flat.nbytes != nbytes:
                raise AssertionError(f"constant of {flat.nbytes} bytes, {nbytes} announced")
            memory[offset : offset + nbytes] = flat
            memory[offset + nbytes : offset + nbytes + -nbytes % _ALIGN] = 0

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            list(pool.map(write, self._parts))

    def chunks(self) -> Iterator[npt.NDArray[np.uint8]]:
        """The blob in order, piece by piece: while one is written, the next is made."""

        def made(data: Callable[[], npt.NDArray[Any]]) -> npt.NDArray[np.uint8]:
            return np.ascontiguousarray(data()).reshape(-1).view(np.uint8)

        with ThreadPoolExecutor(1) as ahead:
            coming = [ahead.submit(made, data) for _, _, data in self._parts[:1]]
            for i in range(len(self._parts)):
                flat = coming.pop().result()
                coming += [ahead.submit(made, data) for _, _, data in self._parts[i + 1 : i + 2]]
                yield flat
                pad = -flat.nbytes % _ALIGN
                if pad:
                    yield np.zeros(pad, np.uint8)


class States:
    """The state block: tensors that a session keeps, with their initial content among the constants."""

    def __init__(self, initial: dict[str, torch.Tensor], constants: Constants) -> None:
        self.rows: list[tuple[str, int, int, int]] = []  # name, offset, bytes, offset of the initial content
        self.block_bytes = 0
        for name, t in initial.items():
            size = t.numel() * t.element_size()
            self.rows.append((name, self.block_bytes, size, constants.add_tensor(("state", name), t)))
            self.block_bytes += -(-size // _ALIGN) * _ALIGN

    def offset(self, name: str) -> int:
        return next(offset for n, offset, _, _ in self.rows if n == name)

    def bytes(self, name: str) -> int:
        return next(size for n, _, size, _ in self.rows if n == name)


def raw(t: torch.Tensor) -> npt.NDArray[Any]:
    """A tensor's elements as bytes (numpy knows no bfloat16)."""
    t = t.detach().contiguous()
    # Not reshape(-1), as one element alone may keep a stride of 0.
    return t.as_strided((t.numel(),), (1,)).view(torch.uint8).numpy() if t.numel() else np.zeros(0, np.uint8)
