"""A function as a module, for torch.export."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["Call"]


class Call(torch.nn.Module):
    """Calls a function of tensors."""

    def __init__(self, f: Callable[..., Any]) -> None:
        super().__init__()
        self.f = f

    def forward(self, *args: Any) -> Any:
        return self.f(*args)
