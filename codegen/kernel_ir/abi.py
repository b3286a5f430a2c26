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
    "DTYPES",
    "DTYPE_BYTES",
    "MAX_DIM",
    "MAX_RANK",
    "MODEL",
    "MODEL_BYTES",
    "PLAN",
    "PLAN_FIELDS",
    "SECTION",
    "STATE",
    "STATE_BYTES",
    "TENSOR",
    "TENSOR_BYTES",
    "TRAILER_MAGIC",
    "VALUE",
    "VALUE_BYTES",
]

ABI_MAGIC: Final = 0x314F4C48444D4C53
ABI_VERSION: Final = 3
ABI_SYMBOL: Final = "dhlo_model_v1"
MAX_RANK: Final = 8
MAX_DIM: Final = (1 << 48) - 1

DTYPES: Final[dict[str, int]] = {d.torch_name: d.code for d in dtypes.DTYPES.values()}
"""Code of each dtype, by PyTorch's name."""

DTYPE_BYTES: Final[dict[str, int]] = {d.torch_name: d.bytes for d in dtypes.DTYPES.values()}
"""Bytes of one element of each dtype."""

# Byte offsets of the fields of each struct.
TENSOR: Final[dict[str, int]] = {"data": 0, "sizes": 8, "strides": 16, "dtype": 24, "rank": 28}
TENSOR_BYTES: Final = 32
CALL: Final[dict[str, int]] = {
    "constants": 0,
    "state": 8,
    "num_threads": 16,
    "arena": 24,
    "output": 32,
    "launch": 40,
    "fail": 48,
    "random": 56,
    "l2_bytes": 64,
    "plan": 72,
}
CALL_BYTES: Final = 80
CHECK: Final[dict[str, int]] = {"kind": 0, "input": 8, "text": 16}
CHECK_BYTES: Final = 24
VALUE: Final[dict[str, int]] = {"name": 0, "dtype": 8, "rank": 16, "sizes": 24, "dims": 32}
VALUE_BYTES: Final = 40
STATE: Final[dict[str, int]] = {"name": 0, "offset": 8, "bytes": 16, "init_offset": 24}
STATE_BYTES: Final = 32
MODEL: Final[dict[str, int]] = {
    "magic": 0,
    "version": 8,
    "struct_bytes": 12,
    "name": 16,
    "producer": 24,
    "cpu_features": 32,
    "metadata": 40,
    "num_inputs": 48,
    "inputs": 56,
    "num_outputs": 64,
    "outputs": 72,
    "num_checks": 80,
    "checks": 88,
    "num_launches": 96,
    "launches": 104,
    "num_states": 112,
    "states": 120,
    "state_bytes": 128,
    "constants_bytes": 136,
    "num_segments": 144,
    "run": 152,
    "num_updated": 160,
    "updated": 168,
    "grows": 176,
}
MODEL_BYTES: Final = 184

CHECK_KIND: Final[dict[str, int]] = {"rank": 0, "dtype": 1, "equal": 2, "min": 3, "max": 4, "assert": 5, "index": 6, "size": 7}
"""Code of each dhlo_check_kind."""

PLAN: Final[dict[str, int]] = {"peak_live_bytes": 0, "data_dependent": 1}
"""Index of each field of the plan array."""
PLAN_FIELDS: Final = 2

TRAILER_MAGIC: Final = 0x52544F4C48444C53
SECTION: Final[dict[str, int]] = {"code": 1, "constants": 2, "metadata": 3, "features": 4}
"""Code of each dhlo_section_kind."""
