"""Every op's cases compiled for aarch64 and run there, against the same references and tolerances as on the machine at hand."""

from __future__ import annotations

import pytest
import torch

from dhlo.api import build
from dhlo.compiler import compile_program
from dhlo.options import Options
from tests.cross.remote import Hosts, RemoteModel
from tests.programs import Module
from tests.test_ops import CASES, SIZES, WEIGHTS

# One or two of each family, and what is converted, rounded or masked.
ALWAYS = [
    "dhlo.bitcast",
    "dhlo.conv",
    "dhlo.exp",
    "dhlo.fft",
    "dhlo.group",
    "dhlo.histogram",
    "dhlo.interleave",
    "dhlo.lexsort",
    "dhlo.matmul",
    "dhlo.pool",
    "dhlo.scan",
    "dhlo.transpose",
    "dhlo.xor",
]
assert set(ALWAYS) <= set(CASES)
MOST = {"dhlo.attention": 203}  # keys and queries: products of all with all take an emulator minutes
NAMES = [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.slow) for name in sorted(CASES)]


def check(hosts: Hosts, name: str, target: str) -> None:
    module = Module(CASES[name], WEIGHTS)
    program = module.program()
    artifact = compile_program(program, Options(target=target))
    model = RemoteModel(artifact, hosts(target)).compiled(program)
    for seed, (n, m) in enumerate(SIZES):
        module.check(model, {"n": n, "m": min(m, MOST.get(name, m))}, seed)


@pytest.mark.parametrize("name", NAMES)
def test_op(hosts: Hosts, name: str) -> None:
    check(hosts, name, "aarch64")


@pytest.mark.parametrize(
    "name", ["dhlo.matmul", pytest.param("dhlo.conv", marks=pytest.mark.slow), pytest.param("dhlo.lstm", marks=pytest.mark.slow)]
)
def test_op_with_dot_products(hosts: Hosts, name: str) -> None:
    check(hosts, name, "aarch64+bf16+dotprod+i8mm")


def test_bytes_without_a_sign_by_dot_products_of_those_with_one(hosts: Hosts) -> None:
    check(hosts, "dhlo.matmul", "aarch64+dotprod")


class Bytes(torch.nn.Module):
    """With packed weights and with what is packed by the call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codes", torch.randint(-128, 128, (67, 90), dtype=torch.int8))

    def forward(self, q: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch._int_mm(q, self.codes), torch._int_mm(q, q.t())


def test_blocks_of_bytes(hosts: Hosts) -> None:
    """Panels of all heights, the last unit of k and rows in pairs alone or not."""
    torch.manual_seed(0)
    module, target = Bytes(), "aarch64+dotprod+i8mm"
    q = torch.randint(-128, 128, (20, 67), dtype=torch.int8)
    program, artifact = build(
        torch.export.export(module, (q,), dynamic_shapes=({0: torch.export.Dim.AUTO},)), Options(target=target)
    )
    assert "i8mm" in artifact.metadata["levels"][0]["cpu_features"].split(",")
    model = RemoteModel(artifact, hosts(target)).compiled(program)
    for rows in (17, 18, 19, 20, 21, 22, 23, 65, 131):
        q = torch.randint(-128, 128, (rows, 67), dtype=torch.int8)
        for got, want in zip(model(q), module(q), strict=True):
            assert torch.equal(got, want)
