"""Every op's cases compiled for aarch64 and run there, against the same references and tolerances as on the machine at hand."""

from __future__ import annotations

import pytest

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


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) for n in ("dhlo.matmul", "dhlo.conv", "dhlo.lstm")])
def test_op_with_dot_products(hosts: Hosts, name: str) -> None:
    check(hosts, name, "aarch64+bf16+dotprod+i8mm")


@pytest.mark.slow
def test_bytes_without_a_sign_by_dot_products_of_those_with_one(hosts: Hosts) -> None:
    check(hosts, "dhlo.matmul", "aarch64+dotprod")
