"""The table of element types: one code a type, sizes in bits, and what is made of both."""

from __future__ import annotations

import pytest
import torch

from dhlo.codegen.kernel_ir import abi
from dhlo.codegen.target import BITS
from dhlo.ir.dtypes import DTYPES, DType
from dhlo.ir.symbols import evaluate
from dhlo.ir.types import TensorType, from_torch_dtype

NIBBLE = DType("i4", "quint4x2", 4, "i8", 99)


def test_names_and_codes_are_of_one_type_each() -> None:
    table = list(DTYPES.values())
    for names in ([d.code for d in table], [d.torch_name for d in table], [d.name for d in table]):
        assert len(set(names)) == len(table)
    assert [d.code for d in table] == list(range(len(table)))


@pytest.mark.parametrize("name", DTYPES)
def test_an_element_is_as_large_as_torchs(name: str) -> None:
    d = DTYPES[name]
    assert from_torch_dtype(d.torch) is d
    assert d.bytes * 8 == d.bits == d.torch.itemsize * 8
    assert str(d.torch) == f"torch.{d.torch_name}"
    assert abi.DTYPES[d.torch_name] == d.code and abi.DTYPE_BYTES[d.torch_name] == d.bytes
    assert BITS[d.register] >= 1


def test_registers_have_the_bits_of_their_types() -> None:
    assert BITS == {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "f16": 16, "bf16": 16, "f32": 32, "f64": 64}


def test_types_narrower_than_a_byte_lie_without_gaps() -> None:
    t = TensorType.of(NIBBLE, ["n", 3])
    assert [evaluate(t.bytes, {"n": n}) for n in (0, 1, 2, 5)] == [0, 2, 3, 8]
    with pytest.raises(TypeError, match="4 bits"):
        _ = NIBBLE.bytes


def test_tensors_of_whole_bytes_have_plain_sizes() -> None:
    assert str(TensorType.of("f32", ["n", 3]).bytes) == "12*n"
    assert TensorType.of("bf16", [2, 3]).bytes == 12
    assert torch.empty(2, 3, dtype=torch.bfloat16).nbytes == 12
