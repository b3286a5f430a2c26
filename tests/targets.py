"""The machine that tests compile for: DHLO_TARGET, or the one at hand."""

from __future__ import annotations

from dhlo.codegen.families.gemm.register_tile import tile_spec
from dhlo.codegen.target import parse_target
from dhlo.options import default_target

TARGET = parse_target(default_target())
TILES = tile_spec(TARGET)
