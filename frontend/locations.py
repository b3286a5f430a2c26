"""Source locations: where in the user's model a node of the exported graph comes from."""

from __future__ import annotations

import functools
import os
import re
import sys
from typing import Any

import torch

from dhlo.ir.mlir import ir

__all__ = ["location", "portable_path", "source_line"]

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_TORCH = os.path.dirname(torch.__file__) + os.sep
_PACKAGES = re.compile(r".*/(?:site|dist)-packages/")


@functools.cache
def _frame(trace: str) -> tuple[str, int, str] | None:
    """The innermost frame outside torch itself, and outside of what it generates."""
    frames = [(f, int(line), name) for f, line, name in _FRAME.findall(trace) if not f.startswith("<")]
    own = [f for f in frames if not f[0].startswith(_TORCH)]
    return own[-1] if own else (frames[-1] if frames else None)


@functools.cache
def portable_path(path: str) -> str:
    """A source file's path without the machine's folders: below the folder that its outermost package lies in, or that Python
    imports it from; the file's name alone where neither is known."""
    below = _PACKAGES.sub("", path)
    if below != path:
        return below
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.isfile(os.path.join(folder, "__init__.py")):
        while os.path.isfile(os.path.join(folder, "__init__.py")):
            folder = os.path.dirname(folder)
        return os.path.relpath(path, folder)
    roots = [root for root in map(os.path.abspath, sys.path) if root != os.sep and path.startswith(root + os.sep)]
    return os.path.relpath(path, max(roots, key=len)) if roots else os.path.basename(path)


def _module(node: Any) -> tuple[str, str] | None:
    """The innermost module that the node ran in, and its type."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return None
    path, kind = list(stack.values())[-1]
    return path, kind.rpartition(".")[2] if isinstance(kind, str) else kind.__name__


def source_line(node: Any) -> str | None:
    """`file:line, in function` of the user's code, or the module's path where there is no trace."""
    frame = _frame(node.meta.get("stack_trace") or "")
    if frame:
        return f"{frame[0]}:{frame[1]}, in {frame[2]}"
    module = _module(node)
    return f"{module[0] or 'model'} ({module[1]})" if module else None


def location(node: Any) -> Any:
    """MLIR location of a node: its name, within that its module's path if it has one, and within that its source line.
    `dhlo.ir.places` reads it."""
    frame, module = _frame(node.meta.get("stack_trace") or ""), _module(node)
    place = ir.Location.file(portable_path(frame[0]), frame[1], 0) if frame else ir.Location.unknown()
    if module and (module[0] or not frame):
        place = ir.Location.name(module[0] or f"model ({module[1]})", childLoc=place)
    return ir.Location.name(node.name, childLoc=place)
