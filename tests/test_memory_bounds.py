"""Kernels read no byte past their arguments: each argument ends where an unreadable page begins."""

from __future__ import annotations

import ctypes
import mmap

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

import dhlo

PAGE = mmap.PAGESIZE
_KEPT: list[mmap.mmap] = []


def guarded(t: torch.Tensor) -> torch.Tensor:
    """A copy of `t` whose last byte is the last of a readable page."""
    size = t.numel() * t.element_size()
    room = -(-size // PAGE) * PAGE
    memory = mmap.mmap(-1, room + PAGE)
    _KEPT.append(memory)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(base + room), ctypes.c_size_t(PAGE), 0) == 0
    out = torch.frombuffer(memory, dtype=t.dtype, count=t.numel(), offset=room - size).reshape(t.shape)
    return out.copy_(t)


CASES = {
    "patches": (nn.Conv2d(3, 40, 16, 16), lambda n: torch.randn(n, 3, 32, 48)),
    "conv3x3": (nn.Conv2d(5, 7, 3, 1, 1), lambda n: torch.randn(n, 5, 9, 11)),
    "conv_stride": (nn.Conv2d(3, 33, 7, 2, 3), lambda n: torch.randn(n, 3, 17, 19)),
    "conv1x1": (nn.Conv2d(17, 33, 1), lambda n: torch.randn(n, 17, 5, 5)),
    "linear": (nn.Linear(19, 45), lambda n: torch.randn(n, 19)),
    "linear_of_pairs": (nn.Linear(19, 45).bfloat16(), lambda n: torch.randn(4 * n, 19, dtype=torch.bfloat16)),
    "softmax": (nn.Softmax(-1), lambda n: torch.randn(n, 37)),
    "columns": (nn.Softmax(0), lambda n: torch.randn(n, 37)),
    "attention": (None, lambda n: torch.randn(n, 2, 21, 24)),
    "pool": (nn.MaxPool2d(3, 2, 1), lambda n: torch.randn(n, 3, 13, 15)),
    "enlarged": (nn.Upsample(scale_factor=3, mode="bilinear"), lambda n: torch.randn(n, 2, 5, 7 * n)),
    "nearest": (nn.Upsample(size=(20, 45)), lambda n: torch.randn(n, 1, 7, 11)),
    "bytes": (nn.Upsample(size=(20, 45), mode="bilinear"), lambda n: torch.randint(0, 256, (n, 1, 7, 59), dtype=torch.uint8)),
}


class SelfAttention(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x)


@pytest.mark.parametrize("name", CASES)
def test_reads_stay_inside(name: str) -> None:
    torch.manual_seed(0)
    module, make = CASES[name]
    module = (module or SelfAttention()).eval()
    compiled = dhlo.compile(
        torch.export.export(
            module,
            (make(2),),
            dynamic_shapes=({d: Dim.DYNAMIC for d in range(make(2).dim()) if make(2).shape[d] != make(3).shape[d]},),
        )
    )
    for n in (1, 2, 3, 7):
        x = make(n)
        with torch.no_grad():
            rtol, atol = (1e-4, 1e-5) if x.dtype == torch.float32 else (1e-2, 1e-2)
            torch.testing.assert_close(compiled(guarded(x)), module(x), rtol=rtol, atol=atol)
