"""Winograd's convolution of bytes: its sums are those of products in order, to the last bit, or it isn't chosen."""

from __future__ import annotations

import functools
from dataclasses import replace
from fractions import Fraction
from typing import Any
from unittest import mock

import numpy as np
import pytest

from dhlo.codegen.families.conv.quantised import ByteConv
from dhlo.codegen.families.conv.winograd import Winograd
from dhlo.codegen.families.conv.winograd_bytes import WinogradOfBytes, is_exact
from dhlo.codegen.families.conv.winograd_kernel import FIELDS
from dhlo.codegen.families.gemm.register_tile import TileSpec, tile_spec
from dhlo.codegen.kernel_ir.builder import I32, KernelModule
from dhlo.codegen.target import parse_target
from tests.codegen.conv_host import emit_store
from tests.codegen.harness import Program, TestHost, aligned
from tests.codegen.test_conv import reference
from tests.targets import TILES

Array = Any
SPEC = TILES if TILES.target.pair_products else tile_spec(parse_target("x86-64-v3"))


def square(ins: int, outs: int, zero: int, unsigned: bool, pads: Any = ((1, 1), (1, 1)), spec: TileSpec = SPEC) -> ByteConv:
    return ByteConv(ins, outs, (3, 3), (1, 1), pads, (1, 1), 1, zero, replace(spec, unsigned=unsigned))


@functools.cache
def build(c: ByteConv, forced: bool = True) -> Program:
    """Takes Winograd's algorithm wherever it is exact, if `forced`, else where it costs less."""
    with mock.patch.object(Winograd, "cost", (lambda *_: KernelModule and _[1].fn.i64(0)) if forced else Winograd.cost):
        module = KernelModule(c.spec.target)
        c.emit_kernels(module)
        epilogue, host = emit_store(module, I32), TestHost(module)
        sizes = [host.size(f"n{i}") for i in range(len(c.kernel) + 1)]
        x, w, workspace, eargs = (host.pointer(n) for n in ("x", "w", "workspace", "eargs"))
        symbol = host.fn.address_of(epilogue)
        c.emit_launch(host, x=x, w=w, sizes=sizes, workspace=workspace, epilogue=symbol, epilogue_args=eargs)
        return host.build()
