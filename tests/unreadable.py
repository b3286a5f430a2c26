"""Tensors that begin, or end, where memory that can't be read does."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable

import torch

__all__ = ["check_beside_unreadable"]


def check_beside_unreadable(call: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> None:
    """That results are the same where `x` begins with a page whose predecessor can't be read, and where it ends with one whose
    successor can't: reading beside it would end the process."""
    page = mmap.PAGESIZE
    pages = -(-x.nbytes // page)
    memory = mmap.mmap(-1, (pages + 2) * page)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None)
    for at in (0, page * (pages + 1)):
        assert libc.mprotect(ctypes.c_void_p(base + at), page, mmap.PROT_READ & 0) == 0
    want = call(x)
    for start in (page, page * (pages + 1) - x.nbytes):
        there = torch.frombuffer(memory, dtype=x.dtype, count=x.numel(), offset=start).view(x.shape)
        there.copy_(x)
        assert torch.equal(call(there), want)
    for at in (0, page * (pages + 1)):
        libc.mprotect(ctypes.c_void_p(base + at), page, mmap.PROT_READ | mmap.PROT_WRITE)
