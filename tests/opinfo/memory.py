"""How much memory PyTorch's own run of a program takes, without running it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["largest"]


class _Results(TorchDispatchMode):
    """Sees the bytes of the largest tensor that an operator makes."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for x in pytree.tree_leaves(made):
            if isinstance(x, torch.Tensor):
                self.most = max(self.most, x.numel() * x.element_size())
        return made


def largest(module: Any, tensors: Sequence[torch.Tensor]) -> int | None:
    """Bytes of the largest tensor of a run; None where sizes depend on values."""
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
            given = [mode.from_tensor(x) for x in tensors]
            with _Results() as seen:
                module(*given)
    except Exception:
        return None
    return seen.most
