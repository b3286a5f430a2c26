"""Tests of code for aarch64, under an emulator where the machine is another: all are marked `qemu`, those that take long `slow`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dhlo.codegen.target import parse_target
from tests.cross.remote import Hosts, RemoteHost, missing_tools


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    why = missing_tools()
    here = Path(__file__).parent
    for item in items:
        if here not in item.path.parents:
            continue
        item.add_marker(pytest.mark.qemu)
        if why:
            item.add_marker(pytest.mark.skip(reason=f"code for aarch64 can't be run here: {why}"))


@pytest.fixture(scope="session")
def hosts() -> Iterator[Hosts]:
    """A host for each target, on a CPU that has little more than the target asks for."""
    made: dict[str, RemoteHost] = {}

    def get(target: str) -> RemoteHost:
        if target not in made:
            made[target] = RemoteHost(parse_target(target).extras)
        return made[target]

    yield get
    for host in made.values():
        host.close()
