"""dhlo works with several versions of PyTorch: others are refused by name, and what a version lacks is known beforehand."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from dhlo.errors import TorchVersionError
from dhlo.frontend import registry
from dhlo.frontend.compat import ABSENT_IN, VERSION, Absent, aten, higher_order, present, prims
from dhlo.frontend.linear_algebra import LINEAR_ALGEBRA
from dhlo.torch_version import NEWEST, OLDEST, require_supported

ROOT = Path(__file__).resolve().parents[1]


def test_pip_is_told_the_same_range() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert OLDEST[0] == NEWEST[0] == 2
    assert f"torch>=2.{OLDEST[1]},<2.{NEWEST[1] + 1}" in project["dependencies"]
    (pinned,) = re.findall(r"^TORCH := ([\d.]+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert OLDEST <= require_supported(pinned) <= NEWEST
    assert f"2.{OLDEST[1]} to 2.{NEWEST[1]}" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize(
    ("version", "number"), [("2.12.0", (2, 12)), ("2.13.0+cpu", (2, 13)), ("2.15.0+cu132", (2, 15)), ("2.15.0a0+git1", (2, 15))]
)
def test_supported_versions(version: str, number: tuple[int, int]) -> None:
    assert require_supported(version) == number


@pytest.mark.parametrize("version", ["1.13.1", "2.1", "2.11.0+cpu", "2.16.0", "2.120.0", "3.13.0", "", "unknown"])
def test_other_versions_are_refused(version: str) -> None:
    with pytest.raises(TorchVersionError, match=re.escape(f"dhlo supports torch 2.12 to 2.15, found {version}") + "$"):
        require_supported(version)


IMPORTS = """
import torch
torch.__version__ = "2.16.0+cpu"
import dhlo  # reads no file of PyTorch's
for use in ("dhlo.compile", "dhlo.load", "from dhlo import Session", "import dhlo.api", "import dhlo.compiler"):
    try:
        exec(use)
    except dhlo.TorchVersionError as e:
        assert isinstance(e, ImportError) and isinstance(e, dhlo.DhloError)
        print(e)
"""


def test_refused_at_import() -> None:
    result = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=False)
    assert result.stdout == "dhlo supports torch 2.12 to 2.15, found 2.16.0+cpu\n" * 5, result.stderr


def test_the_command_line_refuses_too() -> None:
    script = "import torch; torch.__version__ = '2.11.0'\nfrom dhlo.cli import app\napp(['compile', 'model.pt2'])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr == "error: dhlo supports torch 2.12 to 2.15, found 2.11.0\n"


def test_operators_that_come_and_go_are_listed_rightly() -> None:
    for name, lacking in ABSENT_IN.items():
        namespace, op = name.split("::")
        assert hasattr(getattr(torch.ops, namespace), op) == (VERSION[1] not in lacking), name
        assert lacking <= set(range(OLDEST[1], NEWEST[1] + 1)) and len(lacking) < NEWEST[1] - OLDEST[1] + 1, name


def test_misspelt_operators_are_mistakes() -> None:
    for namespace in (aten, prims, higher_order):
        with pytest.raises(AttributeError, match="no_such_operator"):
            _ = namespace.no_such_operator
    with pytest.raises(AttributeError, match="no_such_overload"):
        _ = aten.add.no_such_overload


def test_rules_of_absent_operators_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ABSENT_IN, "aten::gone_with_this_version", frozenset({VERSION[1]}))
    gone = aten.gone_with_this_version
    assert isinstance(gone, Absent) and isinstance(gone.default, Absent) and gone.overloads() == []
    assert "gone_with_this_version.default" in repr(gone.default)
    table: dict[Any, str] = {gone.default: "a rule", aten.add.Tensor: "another"}
    assert present(table) == {torch.ops.aten.add.Tensor: "another"}
    rules: dict[Any, registry.Lowering] = {}
    registry.into(rules, [gone.default, gone.Tensor, aten.mul.Tensor])(len)
    assert rules == {torch.ops.aten.mul.Tensor: len}


def test_tables_hold_operators_of_this_version() -> None:
    tables = [getattr(registry, n) for n in ("LOWERINGS", "VIEWS", "MAYBE_VIEWS", "COMPLEX", "COMPLEX_VIEWS", "HIGHER_ORDER")]
    for table in (*tables, registry.INLINED, registry.UPDATES, LINEAR_ALGEBRA):
        assert table and not [op for op in table if isinstance(op, Absent)]
