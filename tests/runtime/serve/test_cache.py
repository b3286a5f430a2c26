"""The cache of serving, in C++: units, random operations beside a naive record, failing allocations; plain and under sanitizers."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

BuildNative = Callable[..., Path]


def run(build: Path, *arguments: str) -> str:
    command = [str(build / "serve" / "cache_tests"), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_cache(build_native: BuildNative) -> None:
    assert run(build_native("cache_tests")) == "all passed\n"


@pytest.mark.slow
@pytest.mark.parametrize("sanitize", ["address,undefined", "thread"])
def test_cache_under_sanitizers(build_native: BuildNative, sanitize: str) -> None:
    build = build_native("cache_tests", sanitize)
    assert run(build) == "all passed\n"
    assert run(build, "2") == "all passed\n"
