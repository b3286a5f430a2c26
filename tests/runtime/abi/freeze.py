"""Keeps today's headers, and a model file of today, for test_frozen.py: run once a release, when the interface is settled.

python -m tests.runtime.abi.freeze
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

import dhlo

HERE = Path(__file__).parent
INCLUDE = HERE.parents[2] / "runtime" / "include" / "dhlo"
FROZEN = HERE / "release_1_0"


class Counting(torch.nn.Module):
    """y = 2 x + calls so far."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = 2 * x + self.calls
        self.calls.add_(1)
        return y


def compile_model(path: Path, target: str = "native") -> None:
    """Writes the model file that host.c takes."""
    rows = torch.export.Dim("rows", min=0, max=16)
    program = torch.export.export(Counting(), (torch.zeros(2, 4),), dynamic_shapes=({0: rows},))
    dhlo.compile(program, target=target).save(path)


if __name__ == "__main__":
    (FROZEN / "dhlo").mkdir(parents=True, exist_ok=True)
    for name in ("abi.h", "runtime.h", "runtime.hpp"):
        shutil.copy(INCLUDE / name, FROZEN / "dhlo" / name)
    compile_model(FROZEN / "model.dhlo", "x86-64-v3")
