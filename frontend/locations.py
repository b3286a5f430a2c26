"""Source locations: where in the user's model a node of the exported graph comes from."""

from __future__ import annotations

import functools
import os
import re
from typing import Any

import torch

from dhlo.ir.mlir import ir

__all__ = ["location", "source_line"]

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_TORCH = os.path.dirname(torch.__file__) + os.sep


@functools.cache
def _frame(trace: str) -> tuple[str, int, str] | None:
    """The innermost frame outside torch itself, and outside of what it generates."""
    frames = [(f, int(line), name) for f, line, name in _FRAME.findall(trace) if not f.startswith("<")]
    own = [f for f in frames if not f[0].startswith(_TORCH)]
    return own[-1] if own else (frames[-1] if frames else None)


def _module(node: Any) -> str | None:
    """The innermost module that the node ran in."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return None
    path, kind = list(stack.values())[-1]
    return f"{path or 'model'} ({kind if isinstance(kind, str) else kind.__name__})"


def source_line(node: Any) -> str | None:
    """`file:line, in function` of the user's code, or the module's path where there is no trace."""
    frame = _frame(node.meta.get("stack_trace") or "")
    return f"{frame[0]}:{frame[1]}, in {frame[2]}" if frame else _module(node)


def location(node: Any) -> Any:
    """MLIR location of a node: its name, and within that its source line."""
    frame = _frame(node.meta.get("stack_trace") or "")
    if frame:
        child = ir.Location.file(frame[0], frame[1], 0)
    else:
        module = _module(node)
        child = ir.Location.name(module) if module else ir.Location.unknown()
    return ir.Location.name(node.name, childLoc=child)
