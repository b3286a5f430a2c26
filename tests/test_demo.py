"""The demo of the README on a tiny model: compile, compare, save, run from C++."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_demo(tmp_path: Path) -> None:
    if shutil.which("dhlo", path=str(Path(sys.executable).parent)) is None:
        pytest.skip("the demo needs dhlo installed")
    command = [sys.executable, str(ROOT / "examples/bert.py"), "--tiny", "--folder", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "equal Python's, bit by bit" in result.stdout
