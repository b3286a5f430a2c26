"""Averages over windows side by side, and over whole images, at many sizes of one program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.export import Dim, export

import dhlo
from tests.calls import Call

POOLS: dict[str, tuple[int, Callable[[Tensor], Any]]] = {
    "7 x 7": (2, lambda x: F.avg_pool2d(x, 7)),
    "2 x 5": (2, lambda x: F.avg_pool2d(x.relu(), (2, 5)) * 2),
    "3 x 1": (2, lambda x: F.avg_pool2d(x, (3, 1))),
    "divided by 5": (2, lambda x: F.avg_pool2d(x, 4, divisor_override=5)),
    "beyond the image": (2, lambda x: F.avg_pool2d(x, 3, ceil_mode=True)),
    "overlapping": (2, lambda x: F.avg_pool2d(x, 4, stride=3)),
    "padded": (2, lambda x: F.avg_pool2d(x, 4, padding=1)),
    "line": (1, lambda x: F.avg_pool1d(x, 16)),
    "volume": (3, lambda x: F.avg_pool3d(x, (2, 3, 4))),
    "all of an image": (2, lambda x: F.adaptive_avg_pool2d(x, 1).flatten(1)),
    "all of a line": (1, lambda x: F.adaptive_avg_pool1d(x, 1) * x),
    "all of a volume": (3, lambda x: F.adaptive_avg_pool3d(x, 1)),
    "rows": (2, lambda x: F.adaptive_avg_pool2d(x, (None, 1))),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", POOLS)
def test_averages(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    rank, f = POOLS[name]
    dims = {0: Dim.AUTO, **{d + 2: Dim.AUTO for d in range(rank)}}
    example = torch.randn(2, 3, *[40 if rank < 3 else 17] * rank).to(dtype)
    try:
        f(example)
    except RuntimeError as e:
        assert "not implemented for" in str(e)
        pytest.skip(str(e))
    model = dhlo.compile(export(Call(f), (example,), dynamic_shapes=((dims,),)))
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    done = 0
    for size in (40, 17, 16, 7, 14, 21, 33, 64) if rank < 3 else (17, 15, 16, 12, 9):
        x = torch.randn(2 if size < 33 else 0 if size == 33 else 1, 3, *range(size, size + rank)).to(dtype)
        if x.numel():
            x.view(-1)[3] = torch.nan
        try:
            got = model(x)
        except dhlo.ContractError:  # torch.export takes a result of one element for another program
            assert size != example.shape[2]
            continue
        torch.testing.assert_close(got, f(x), rtol=tolerance, atol=tolerance, equal_nan=True)
        done += 1
    assert done >= 3
