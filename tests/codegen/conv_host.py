"""Builds convolution and pooling kernels under the test host, with epilogues that store and apply bias and relu."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dhlo.codegen.families.conv.conv import Conv
from dhlo.codegen.families.conv.quantised import ByteConv
from dhlo.codegen.families.conv.transposed import ConvTranspose
from dhlo.codegen.kernel_ir.builder import F32, I32, I64, Fn, KernelModule, vec
from dhlo.codegen.kernel_ir.launch import EPILOGUE_ARGS
from tests.codegen.harness import Program, TestHost, aligned

__all__ = [
    "build_byte_conv",
    "build_conv",
    "byte_conv_params",
    "byte_operands",
    "conv_params",
    "emit_store",
    "numpy_type",
    "run_conv",
]


def numpy_type(elem: str) -> type[np.floating[Any]]:
    return np.float32 if elem == F32 else np.float64


def emit_store(module: KernelModule, elem: str, *, bias_relu: bool = False) -> str:
    """An epilogue for eargs = (out, positions, channels, bias): out[batch, m, n] = tile, or relu(tile + bias[m])."""
    lanes = module.target.lanes(elem)
    f = Fn(module, "epilogue", EPILOGUE_ARGS)
    eargs, tile, ld, batch, m0, n0, mr, nr = f.args
    out, positions, channels, bias = (f.load(f.gep(eargs, i, I64), I64) for i in range(4))
    with f.loop(0, mr) as r:
        m = f.add(m0, r.iv)
        row = f.add(f.mul(f.add(f.mul(batch, channels), m), positions), n0)
        with f.loop(0, nr, lanes) as c:
            v = f.load(f.gep(tile, f.add(f.mul(r.iv, ld), c.iv), elem), vec(elem, lanes))
            if bias_relu:
                v = f.max(f.add(v, f.load(f.gep(f.int_to_ptr(bias), m, elem), elem)), 0.0)
            f.store_first(v, f.gep(f.int_to_ptr(out), f.add(row, c.iv), elem), f.sub(nr, c.iv))
    f.done()
    return "epilogue"


def build_conv(conv: Conv | ConvTranspose, *, bias_relu: bool = False, strided: bool = False, pack: bool = False) -> Program:
    """Compiles a convolution; with `strided` the host function takes the input's strides s0, s1, .. .

    With `pack` the weight is packed by the host function to `packed`; a transposed convolution has a `workspace`.
    """
    module = KernelModule(conv.spec.target)
    conv.emit_kernels(module)
    epilogue = emit_store(module, conv.elem, bias_relu=bias_relu)
    host = TestHost(module)
    x, w, eargs = host.pointer("x"), host.pointer("w"), host.pointer("eargs")
    sizes = [host.size(f"n{i}") for i in range(len(conv.kernel) + 1)]
    strides = [host.size(f"s{i}") for i in range(len(conv.kernel) + 2)] if strided else None
    if pack:
        conv.emit_pack(host, weight=w, packed=(w := host.pointer("packed")))
    symbol = host.fn.address_of(epilogue)
    if isinstance(conv, ConvTranspose):
        conv.emit_launch(
            host,
            x=x,
            w=w,
            sizes=sizes,
            epilogue=symbol,
            epilogue_args=eargs,
            x_strides=strides,
            workspace=host.pointer("workspace"),
        )
    else:
        conv.emit_launch(host, x=x, w=w, sizes=sizes, epilogue=symbol, epilogue_args=eargs, x_strides=strides)
    return host.build()


def _aligned_copy(x: Any) -> Any:
    """As the constants of a model are."""
    copy = aligned(x.nbytes).view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


def conv_params(
    conv: Conv | ConvTranspose, x: Any, weight: Any, bias: Any = None, *, strided: bool = False, pack: bool = False
) -> tuple[dict[str, Any], Any]:
    """Parameters of a call and the output that it writes, filled with 777."""
    dtype = numpy_type(conv.elem)
    spatial = [max(0, n) for n in conv.output_size(x.shape[2:])]
    out = np.full((x.shape[0], conv.out_channels, *spatial), 777.0, dtype)
    address = 0 if bias is None else bias.ctypes.data
    eargs = np.array([out.ctypes.data, int(np.prod(spatial)), conv.out_channels, address], np.int64)
    params: dict[str, Any] = {"x": x, "w": weight if pack else _aligned_copy(conv.pack_weight(weight)), "eargs": eargs}
    if pack:
        params["packed"] = np.full(conv.workspace_bytes // x.itemsize, np.nan, dtype)
    if isinstance(conv, ConvTranspose):
        kept = int(conv.kept_elements(len(out), spatial))
        params["workspace"] = np.full(kept + 1, 777.0, dtype)
    params |= {f"n{i}": n for i, n in enumerate((x.shape[0], *x.shape[2:]))}
    if strided:
        params |= {f"s{i}": n // x.itemsize for i, n in enumerate(x.strides)}
    return params, out


def run_conv(
    conv: Conv | ConvTranspose,
    program: Program,
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    strided: bool = False,
    pack: bool = False,
    seed: int | None = None,
    threads: int = 2,
) -> Any:
    """The convolution's output."""
    params, out = conv_params(conv, x, weight, bias, strided=strided, pack=pack)
    program(num_threads=threads, seed=seed, **params)
    if isinstance(conv, ConvTranspose):
        assert params["workspace"][-1] == 777.0
    return out


def build_byte_conv(c: ByteConv, facts: Sequence[str] = ()) -> Program:
    """Compiles a convolution of bytes, which stores its sums; `facts` of the machine are parameters."""
    module = KernelModule(c.spec.target)
    c.emit_kernels(module)
    epilogue, host = emit_store(module, I32), TestHost(module, asked=facts)
    sizes = [host.size(f"n{i}") for i in range(len(c.kernel) + 1)]
    x, w, workspace, eargs = (host.pointer(n) for n in ("x", "w", "workspace", "eargs"))
    for fact in facts:
        host.size(fact)
    symbol = host.fn.address_of(epilogue)
    c.emit_launch(host, x=x, w=w, sizes=sizes, workspace=workspace, epilogue=symbol, epilogue_args=eargs)
    return host.build()


def byte_conv_params(c: ByteConv, x: Any, weight: Any) -> tuple[dict[str, Any], Any]:
    """Parameters of a call and the output that it writes, filled with 777."""
    spatial = [max(0, n) for n in c.conv.output_size(x.shape[2:])]
    out = np.full((x.shape[0], c.out_channels, *spatial), 777, np.int32)
    w = _aligned_copy(c.pack_weight(weight))
    assert w.nbytes == c.weight_bytes
    workspace = aligned(4 * x.shape[0] * c.groups * c.units * int(np.prod(x.shape[2:])))
    eargs = np.array([out.ctypes.data, int(np.prod(spatial)), c.out_channels, 0], np.int64)
    params: dict[str, Any] = {"x": x, "w": w, "workspace": workspace, "eargs": eargs}
    return params | {f"n{i}": n for i, n in enumerate((x.shape[0], *x.shape[2:]))}, out


def byte_operands(c: ByteConv, sizes: tuple[int, ...], seed: int) -> tuple[Any, Any]:
    """An image and weights of all bytes."""
    rng, shape = np.random.default_rng(seed), (sizes[0], c.in_channels, *sizes[1 : len(c.kernel) + 1])
    low, high, dtype = (0, 256, np.uint8) if c.spec.unsigned else (-128, 128, np.int8)
    weight = rng.integers(-128, 128, (c.out_channels, c.in_channels // c.groups, *c.kernel)).astype(np.int8)
    return rng.integers(low, high, shape).astype(dtype), weight
