"""Machines that code is generated for, as data; the only place that names an instruction set."""

from dhlo.codegen.target.base import BITS, LINE_BYTES, DotProduct, MatrixTiles, Target
from dhlo.codegen.target.registry import native, parse_target, parse_targets

__all__ = ["BITS", "LINE_BYTES", "DotProduct", "MatrixTiles", "Target", "native", "parse_target", "parse_targets"]
