"""What tests run in a process of its own changes nothing in theirs, and fails or skips as it would there."""

from __future__ import annotations

import os

import pytest
from torch.utils._pytree import SUPPORTED_NODES, register_pytree_node

from tests import zoo


class Cache:
    """A class that a model registers."""


def registers(name: str) -> None:
    assert Cache not in SUPPORTED_NODES
    register_pytree_node(Cache, lambda _: ([], None), lambda *_: Cache())
    assert Cache in SUPPORTED_NODES and name == "model"


def skips(name: str) -> None:
    pytest.skip(f"no {name}")


def dies(_: str) -> None:
    os._exit(7)


def test_registrations_are_gone_with_the_process() -> None:
    for _ in range(2):
        zoo.in_own_process(registers, "model")
    assert Cache not in SUPPORTED_NODES


def test_outcomes() -> None:
    with pytest.raises(AssertionError, match="name == "):
        zoo.in_own_process(registers, "other")
    with pytest.raises(pytest.skip.Exception, match="no model"):
        zoo.in_own_process(skips, "model")
    with pytest.raises(AssertionError, match="ended with 7"):
        zoo.in_own_process(dies, "model")
