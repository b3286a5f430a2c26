"""The serving engine in C++, over a step written by hand; plain and under sanitizers."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

BuildNative = Callable[..., Path]


def run(build: Path, program: str, *arguments: str) -> str:
    command = [str(build / "serve" / program), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout.splitlines()[-1]


def test_engine(build_native: BuildNative) -> None:
    assert run(build_native("engine_tests"), "engine_tests") == "all passed"


def test_beams(build_native: BuildNative) -> None:
    assert run(build_native("beam_tests"), "beam_tests") == "all passed"


def test_trees_of_drafts(build_native: BuildNative) -> None:
    assert run(build_native("draft_tests"), "draft_tests") == "all passed"


@pytest.mark.slow
@pytest.mark.parametrize("sanitize", ["address,undefined", "thread"])
def test_engine_under_sanitizers(build_native: BuildNative, sanitize: str) -> None:
    assert run(build_native("engine_tests", sanitize), "engine_tests", "300") == "all passed"
    assert run(build_native("beam_tests", sanitize), "beam_tests") == "all passed"
