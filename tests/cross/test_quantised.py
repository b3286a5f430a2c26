"""Products with right sides of codes, compiled for aarch64 and run there."""

from __future__ import annotations

import pytest

from dhlo.compiler import compile_program
from dhlo.options import Options
from tests.codegen.test_quantised import SMALL, check, products
from tests.cross.remote import Hosts, RemoteModel


@pytest.mark.parametrize("target", ["aarch64", "aarch64+dotprod+i8mm"])
@pytest.mark.parametrize("code", ["i8", "i4", "f4e2m1fn", pytest.param("f8e4m3fn", marks=pytest.mark.slow)])
def test_code(hosts: Hosts, code: str, target: str) -> None:
    module = products(code, SMALL)
    program = module.program()
    model = RemoteModel(compile_program(program, Options(target=target)), hosts(target)).compiled(program)
    for m in (0, 1, 5, 40):
        check(module, model, m)
