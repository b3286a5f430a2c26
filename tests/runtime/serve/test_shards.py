"""An engine over two processes in C++, over a step written by hand; plain and under sanitizers."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

BuildNative = Callable[..., Path]


def run(build: Path) -> str:
    result = subprocess.run([str(build / "serve" / "shard_tests")], capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout.splitlines()[-1]


def test_shards(build_native: BuildNative) -> None:
    assert run(build_native("shard_tests")) == "all passed"


@pytest.mark.slow
@pytest.mark.parametrize("sanitize", ["address,undefined", "thread"])
def test_shards_under_sanitizers(build_native: BuildNative, sanitize: str) -> None:
    assert run(build_native("shard_tests", sanitize)) == "all passed"
