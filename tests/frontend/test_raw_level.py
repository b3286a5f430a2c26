"""Operators below PyTorch's public functions, as graphs that were lowered elsewhere call them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.frontend.test_more_ops import compiled

A: Any = torch.ops.aten
INDEX = torch.tensor([4, 4, 1, 2, 2, 1, 5])
TABLE = torch.randn(6, 3)

CASES: dict[str, tuple[Callable[..., Any], list[list[torch.Tensor]]]] = {
    "_convolution": (
        lambda x, w: (
            A._convolution(x, w, None, [1], [0], [1], False, [0], 1, False, False, True, True),
            A._convolution.deprecated(x, w, None, [2], [1], [1], False, [0], 1, False, False, True),
        ),
        [[torch.randn(2, 3, 8), torch.randn(4, 3, 3)], [torch.randn(5, 3, 13), torch.randn(4, 3, 3)]],
    ),
    "threshold_backward of two dtypes": (
        lambda g, x: (
            A.threshold_backward(g, x, 0.5),
            A.threshold_backward(g.double(), x, 0),
            A.threshold_backward(g.bfloat16(), x, 0),
        ),
        [[torch.randn(3, 4), torch.randn(3, 4)], [torch.randn(1, 17), torch.randn(1, 17)]],
    ),
    "nearest by given factors": (  # at twice the size, the size counts
        lambda x: (A.upsample_nearest2d.vec(x, None, [1.7, 2.3]), A._upsample_nearest_exact2d.vec(x, None, [1.7, 2.3])),
        [[torch.randn(2, 3, 3, 4)], [torch.randn(1, 2, 2, 2)], [torch.randn(3, 1, 5, 3)], [torch.randn(1, 2, 19, 20)]],
    ),
    "smooth by given factors": (
        lambda x: (A.upsample_bilinear2d.vec(x, None, False, [1.7, 0.6]), A.upsample_bicubic2d.vec(x, None, False, [1.7, 2.3])),
        [[torch.randn(2, 3, 4, 5)], [torch.randn(1, 2, 2, 4)], [torch.randn(3, 1, 9, 6)]],
    ),
}
for _mode in range(3):
    for _padding in (-1, 1):
        CASES[f"_embedding_bag, mode {_mode}, padding {_padding}"] = (
            lambda t, i, o, m=_mode, p=_padding: A._embedding_bag(t, i, o, False, m, False, None, False, p),
            [[TABLE, INDEX, torch.tensor([0, 2, 2])], [TABLE, INDEX[:3].clone(), torch.tensor([0, 1, 1, 2])]],
        )


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    compiled(CASES[name][0], *CASES[name][1])
