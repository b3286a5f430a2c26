"""The one import of the MLIR Python bindings: another distribution of upstream's bindings can stand in by editing this file."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import ext, func, irdl
from torch_mlir.dialects import llvm as _llvm
from torch_mlir.dialects._ods_common import _cext
from torch_mlir.passmanager import PassManager

# The bindings look for a Python module of every dialect whose op they meet, and only remember what they found.
sys.modules.setdefault("torch_mlir.dialects.dhlo", ModuleType("torch_mlir.dialects.dhlo"))

__all__ = ["PassManager", "ext", "func", "ir", "irdl", "register_operation", "translate_to_llvm_ir"]


def translate_to_llvm_ir(op: Any) -> str:
    """LLVM IR text of a module in the llvm dialect."""
    return str(_llvm.translate_module_to_llvmir(op))


def register_operation(name: str, cls: type) -> None:
    """Makes ops of that name instances of a class, in all contexts."""
    _cext.globals._register_operation_impl(name, cls, replace=True)
