"""How much memory PyTorch's own run of a program takes, without running it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["columns", "largest"]


class _Results(TorchDispatchMode):
    """Sees the bytes of the largest tensor that an operator makes, and the elements of the most columns of a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.most = self.columns = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for x in pytree.tree_leaves(made):
            if isinstance(x, torch.Tensor):
                self.most = max(self.most, x.numel() * x.element_size())
        if func is torch.ops.aten.convolution.default:
            x, w, transposed = args[0], args[1], args[6]
            places = (x if transposed else made)[0, 0].numel()
            self.columns = max(self.columns, w[0].numel() * places)
        return made


def largest(module: Any, tensors: Sequence[torch.Tensor]) -> int | None:
    """Bytes of the largest tensor of a run; None where sizes depend on values."""
    seen = _run(module, tensors)
    return None if seen is None else seen.most


def columns(module: Any, tensors: Sequence[torch.Tensor]) -> int:
    """Elements of the largest matrix of windows that PyTorch makes for a convolution that oneDNN doesn't take, as in double
    precision."""
    seen = _run(module, tensors)
    return 0 if seen is None else seen.columns


def _run(module: Any, tensors: Sequence[torch.Tensor]) -> _Results | None:
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
            given = [mode.from_tensor(x) for x in tensors]
            with _Results() as seen:
                module(*given)
    except Exception:
        return None
    return seen
