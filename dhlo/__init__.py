"""dhlo: a dynamic-shape compiler for PyTorch models. One native binary serves every shape."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dhlo.api import compile, load
    from dhlo.custom import check_pass, custom_pass, register_fusion, rewrite
    from dhlo.errors import (
        CancelledError,
        CompileError,
        ContractError,
        DeadlineError,
        DhloError,
        InternalError,
        ModelFileError,
        SessionError,
        SignatureError,
        TorchVersionError,
        UnsupportedError,
    )
    from dhlo.exported import save_program
    from dhlo.frontend import register_c_op, register_decomposition, register_lowering
    from dhlo.model import CompiledModel
    from dhlo.options import CustomPass, LoraOptions, Options, Range
    from dhlo.recovery import read_weights
    from dhlo.session import Session
    from dhlo.stopping import CancelToken
    from dhlo.update import update_weights

__version__ = "0.1.0"
__all__ = [
    "CancelToken",
    "CancelledError",
    "CompileError",
    "CompiledModel",
    "ContractError",
    "CustomPass",
    "DeadlineError",
    "DhloError",
    "InternalError",
    "LoraOptions",
    "ModelFileError",
    "Options",
    "Range",
    "Session",
    "SessionError",
    "SignatureError",
    "TorchVersionError",
    "UnsupportedError",
    "check_pass",
    "compile",
    "custom_pass",
    "load",
    "read_weights",
    "register_c_op",
    "register_decomposition",
    "register_fusion",
    "register_lowering",
    "rewrite",
    "save_program",
    "update_weights",
]
_HOME = {
    "compile": "dhlo.api",
    "load": "dhlo.api",
    "CompiledModel": "dhlo.model",
    "CustomPass": "dhlo.options",
    "check_pass": "dhlo.custom",
    "custom_pass": "dhlo.custom",
    "register_fusion": "dhlo.custom",
    "rewrite": "dhlo.custom",
    "Options": "dhlo.options",
    "LoraOptions": "dhlo.options",
    "Range": "dhlo.options",
    "Session": "dhlo.session",
    "CancelToken": "dhlo.stopping",
    "register_c_op": "dhlo.frontend",
    "register_decomposition": "dhlo.frontend",
    "register_lowering": "dhlo.frontend",
    "save_program": "dhlo.exported",
    "read_weights": "dhlo.recovery",
    "update_weights": "dhlo.update",
}


def __getattr__(name: str) -> Any:
    """Loads the compiler only when it is asked for: a program that just loads model files starts fast."""
    if name not in __all__:
        raise AttributeError(f"module 'dhlo' has no attribute {name!r}")
    from importlib import import_module

    if name in _HOME:
        import_module("dhlo.frontend.compat")  # first, since it says so if this is no PyTorch that dhlo works with
    value = globals()[name] = getattr(import_module(_HOME.get(name, "dhlo.errors")), name)
    return value
