"""The kernel ABI of `runtime/include/dhlo/abi.h` for Python: field offsets and enums."""

from __future__ import annotations

from typing import Final

from dhlo.ir import dtypes

__all__ = [
    "ABI_MAGIC",
    "ABI_SYMBOL",
    "ABI_VERSION",
    "CALL",
    "CALL_BYTES",
    "CHECK",
    "CHECK_BYTES",
    "CHECK_KIND",
    "CODE",
    "CODE_BYTES",
    "COLLECTIVE",
    "COLLECTIVE_BYTES",
    "COLLECTIVE_KIND",
    "DTYPES",
    "DTYPE_BYTES",
    "ENTRY",
    "ENTRY_BYTES",
    "LEVEL",
    "LEVEL_BYTES",
    "MACHINE",
    "MACHINE_FIELDS",
    "MACHINE_RANGES",
    "MAX_DIM",
    "MAX_ENTRIES",
    "MAX_LEVELS",
    "MAX_RANK",
    "MODEL",
    "MODEL_BYTES",
    "PAGE_GROUP",
    "PAGE_GROUP_BYTES",
    "PAGING",
    "PAGING_BYTES",
    "PLAN",
    "PLAN_FIELDS",
    "POOL",
    "POOL_BYTES",
    "PROCESS_GROUP",
    "PROCESS_GROUP_BYTES",
    "REDUCTION",
    "SECTION",
    "STATE",
    "STATE_BYTES",
    "SYMBOL",
    "SYMBOL_BYTES",
    "TENSOR",
    "TENSOR_BYTES",
    "TRAILER_MAGIC",
    "VALUE",
    "VALUE_BYTES",
    "WEIGHTS_MAGIC",
]

ABI_MAGIC: Final = 0x314F4C48444D4C53
ABI_VERSION: Final = 12
ABI_SYMBOL: Final = "dhlo_model_v1"
MAX_RANK: Final = 8
MAX_DIM: Final = (1 << 48) - 1

DTYPES: Final[dict[str, int]] = {d.torch_name: d.code for d in dtypes.DTYPES.values()}
"""Code of each dtype, by PyTorch's name."""

DTYPE_BYTES: Final[dict[str, int]] = {d.torch_name: d.bytes for d in dtypes.DTYPES.values()}
"""Bytes of one element of each dtype."""

# Byte offsets of the fields of each struct.
TENSOR: Final[dict[str, int]] = {"data": 0, "sizes": 8, "strides": 16, "dtype": 24, "rank": 28, "capacity": 32}
TENSOR_BYTES: Final = 40
CALL: Final[dict[str, int]] = {
    "constants": 0,
    "state": 8,
    "num_threads": 16,
    "arena": 24,
    "output": 32,
    "launch": 40,
    "fail": 48,
    "random": 56,
    "machine": 64,
    "plan": 72,
    "poll": 80,
    "collective": 88,
}
CALL_BYTES: Final = 96
CHECK: Final[dict[str, int]] = {"kind": 0, "input": 8, "text": 16}
CHECK_BYTES: Final = 24
VALUE: Final[dict[str, int]] = {"name": 0, "dtype": 8, "rank": 16, "sizes": 24, "dims": 32}
VALUE_BYTES: Final = 40
STATE: Final[dict[str, int]] = {"name": 0, "offset": 8, "bytes": 16, "init_offset": 24, "dtype": 32, "rank": 40, "sizes": 48}
STATE_BYTES: Final = 56
SYMBOL: Final[dict[str, int]] = {"name": 0, "min": 8, "max": 16}
SYMBOL_BYTES: Final = 24
LEVEL: Final[dict[str, int]] = {"name": 0, "cpu_features": 8}
LEVEL_BYTES: Final = 16
POOL: Final[dict[str, int]] = {"input": 0, "group": 8, "keys": 16, "scales": 24}
POOL_BYTES: Final = 32
PAGE_GROUP: Final[dict[str, int]] = {"slots": 0, "tables": 8, "window": 16}
PAGE_GROUP_BYTES: Final = 24
PAGING: Final[dict[str, int]] = {
    "block_slots": 0,
    "positions": 8,
    "starts": 16,
    "lengths": 24,
    "num_groups": 32,
    "groups": 40,
    "num_pools": 48,
    "pools": 56,
    "adapters": 64,
    "max_positions": 72,
    "cells": 80,
    "num_states": 88,
    "states": 96,
    "by_order": 104,
    "cross_tables": 112,
    "cross_lengths": 120,
    "num_cross": 128,
    "cross": 136,
    "hidden": 144,
}
PAGING_BYTES: Final = 152
ADAPTED: Final[dict[str, int]] = {"name": 0, "offset": 8, "inputs": 16, "outputs": 24}
ADAPTED_BYTES: Final = 32
ADAPTERS: Final[dict[str, int]] = {"chosen": 0, "weights": 8, "rank": 16, "num_products": 24, "products": 32}
ADAPTERS_BYTES: Final = 40
PROCESS_GROUP: Final[dict[str, int]] = {"name": 0, "size": 8}
PROCESS_GROUP_BYTES: Final = 16
COLLECTIVE: Final[dict[str, int]] = {"kind": 0, "group": 8, "dtype": 16, "reduction": 24, "root": 32, "place": 40}
COLLECTIVE_BYTES: Final = 48
CODE: Final[dict[str, int]] = {"run": 0, "num_launches": 8, "launches": 16, "num_segments": 24}
CODE_BYTES: Final = 32
ENTRY: Final[dict[str, int]] = {
    "name": 0,
    "metadata": 8,
    "code": 16,
    "num_inputs": 24,
    "inputs": 32,
    "num_outputs": 40,
    "outputs": 48,
    "num_checks": 56,
    "checks": 64,
    "num_updated": 72,
    "updated": 80,
    "grows": 88,
    "num_symbols": 96,
    "symbols": 104,
    "paging": 112,
    "num_process_groups": 120,
    "process_groups": 128,
    "num_collectives": 136,
    "collectives": 144,
}
ENTRY_BYTES: Final = 152
MODEL: Final[dict[str, int]] = {
    "magic": 0,
    "version": 8,
    "struct_bytes": 12,
    "name": 16,
    "producer": 24,
    "num_levels": 32,
    "levels": 40,
    "num_entries": 48,
    "entries": 56,
    "num_states": 64,
    "states": 72,
    "state_bytes": 80,
    "constants_bytes": 88,
}
MODEL_BYTES: Final = 96
MAX_ENTRIES: Final = 1024
MAX_LEVELS: Final = 16

CHECK_KIND: Final[dict[str, int]] = {"rank": 0, "dtype": 1, "equal": 2, "min": 3, "max": 4, "assert": 5, "index": 6, "size": 7}
"""Code of each dhlo_check_kind."""

COLLECTIVE_KIND: Final[dict[str, int]] = {
    "all_reduce": 0, "all_gather": 1, "reduce_scatter": 2, "all_to_all": 3, "broadcast": 4}  # fmt: skip
"""Code of each dhlo_collective_kind."""

REDUCTION: Final[dict[str, int]] = {"sum": 0, "product": 1, "max": 2, "min": 3}
"""Code of each dhlo_reduction."""

PLAN: Final[dict[str, int]] = {"peak_live_bytes": 0, "data_dependent": 1}
"""Index of each field of the plan array."""
PLAN_FIELDS: Final = 2

MACHINE_RANGES: Final[dict[str, tuple[int, int]]] = {
    "l1d_bytes": (8 << 10, 1 << 20),
    "l2_bytes": (128 << 10, 64 << 20),
    "l3_bytes": (0, 4 << 30),
    "l3_cores": (1, 1024),
    "bf16_percent": (0, 800),
    "wake_ns": (100, 2000),
    "fma128_per_us": (100, 40_000),
    "fma256_per_us": (100, 40_000),
    "fma512_per_us": (100, 40_000),
    "l2_bytes_per_us": (500, 4_000_000),
    "l3_bytes_per_us": (500, 4_000_000),
    "memory_bytes_per_us": (500, 4_000_000),
    "ahead_one": (256, 32_768),
    "ahead_few": (256, 32_768),
    "ahead_more": (256, 32_768),
    "tiles_percent": (0, 12_800),
}
"""The facts of the machine in the order of their indices, and between what the runtime keeps each of them."""
MACHINE: Final[dict[str, int]] = {name: i for i, name in enumerate(MACHINE_RANGES)}
"""Index of each fact of the machine."""
MACHINE_FIELDS: Final = len(MACHINE_RANGES)

TRAILER_MAGIC: Final = 0x52544F4C48444C53
WEIGHTS_MAGIC: Final = 0x54574F4C48444C53
SECTION: Final[dict[str, int]] = {
    "code": 1, "constants": 2, "metadata": 3, "features": 4, "source": 5, "weights_file": 6, "code_digests": 7}  # fmt: skip
"""Code of each dhlo_section_kind."""
