"""Functions in C that a program calls."""

import ctypes
import re
from typing import Any

import torch

from dhlo.errors import CompileError
from dhlo.ir.dialect import Kind, Numbers, Op, Operands, Results, attr, result_types
from dhlo.ir.mlir import ir
from dhlo.ir.ops.movement import number
from dhlo.ir.symbols import parse
from dhlo.ir.types import TensorType, from_torch_dtype

Args = list[torch.Tensor]


def check_name(symbol: str) -> str:
    """The name of a function in C. Raises CompileError where it is none."""
    if not isinstance(symbol, str) or re.fullmatch(r"[A-Za-z_]\w*", symbol, re.ASCII) is None:
        raise CompileError(f"{symbol!r} is no name of a function in C", hint="of one in C++, give its mangled name: nm shows it")
    return symbol


class Extern(Op, name="extern"):
    """Calls the C function `symbol`, int32_t (const dhlo_tensor* inputs, dhlo_tensor* outputs, const dhlo_number* numbers), on
    dense tensors; it fills the outputs, reads nothing else, and returns 0, or another number to fail the call. `numbers` are
    integers, size expressions and floats as text. `library` says where the function is (see frontend/extensions.py)."""

    kind = Kind.OPAQUE
    explicit = True
    symbol: ir.StringAttr
    library: ir.StringAttr
    numbers: Numbers
    x: Operands
    y: Results

    @classmethod
    def check(cls, operands: list[TensorType], results: list[TensorType], attrs: dict[str, Any]) -> str | None:
        try:
            check_name(attrs["symbol"])
        except CompileError as e:
            return e.what
        return None

    def reference(self, args: Args, sizes: Any) -> Args:
        out = [torch.empty([sizes(s) for s in t.shape], dtype=t.dtype.torch) for t in result_types(self)]
        args = [x.contiguous() for x in args]
        numbers = [number(text) if number(text) is not None else sizes(parse(text)) for text in attr(self, "numbers")]
        status = function(attr(self, "symbol"), attr(self, "library"))(_tensors(args), _tensors(out), _numbers(numbers))
        if status:
            raise ValueError(f"{attr(self, 'symbol')} returned {status}")
        return out


def function(symbol: str, library: str) -> Any:
    """The function as ctypes sees it. Raises OSError if the library can't be opened, AttributeError if it lacks the function."""
    return getattr(ctypes.CDLL(library or None), symbol)


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("sizes", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("capacity", ctypes.c_int64),
    )


class _Number(ctypes.Union):
    _fields_ = (("i", ctypes.c_int64), ("f", ctypes.c_double))


def _tensors(xs: Args) -> Any:
    rows = []
    for x in xs:
        sizes = (ctypes.c_int64 * max(x.dim(), 1))(*x.shape)
        dtype, shape = from_torch_dtype(x.dtype).code, ctypes.cast(sizes, ctypes.c_void_p)
        rows.append(_Tensor(x.data_ptr(), shape, None, dtype, x.dim(), x.nbytes))
        rows[-1].kept = sizes
    out = (_Tensor * max(len(rows), 1))(*rows)
    out.kept = rows  # type: ignore[attr-defined]
    return out


def _numbers(values: list[Any]) -> Any:
    return (_Number * max(len(values), 1))(*(_Number(f=v) if isinstance(v, float) else _Number(i=v) for v in values))


__all__ = [n for n, c in list(globals().items()) if isinstance(c, type) and issubclass(c, Op)] + ["check_name", "function"]
