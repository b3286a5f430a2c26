"""Caches in fewer bits, compiled for aarch64 and run there."""

from __future__ import annotations

import pytest
import torch

from dhlo.compiler import compile_program
from dhlo.frontend import import_program
from dhlo.options import Options
from dhlo.passes.quantise_caches import request_caches
from tests.cross.remote import Hosts, RemoteModel
from tests.test_kv_cache import Attends, compare, program


@pytest.mark.parametrize("kind", ["int8", "bf16"])
def test_cache(hosts: Hosts, kind: str) -> None:
    torch.manual_seed(0)
    imported = import_program(program(Attends()))
    request_caches([imported.module], kind)
    model = RemoteModel(compile_program(imported, Options(target="aarch64")), hosts("aarch64")).compiled(imported)
    compare(Attends(), model, kind)
