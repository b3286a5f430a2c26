"""The example host over MPI, where there is one: processes that link the runtime alone run a compiled program together."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.export import Dim, export

import dhlo
from tests.tensor_parallel import pretended

C = torch.ops._c10d_functional
SIZE = 2


class Program(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n = x.shape[0]
        every = C.wait_tensor(C.all_gather_into_tensor(x, SIZE, "0"))
        most = C.wait_tensor(C.reduce_scatter_tensor(every * x[:1, :1], "max", SIZE, "0"))
        swapped = C.wait_tensor(C.all_to_all_single(every, [n, n], [n, n], "0"))
        last = C.wait_tensor(C.broadcast(x, 1, "0"))
        return C.wait_tensor(C.all_reduce(x, "sum", "0")), every, most, swapped, last


def given(rows: int, rank: int) -> torch.Tensor:
    """What the example makes up for its inputs."""
    return (((torch.arange(rows * 4) + 3 * rank) % 17 - 8) / 8).reshape(rows, 4)


@pytest.mark.skipif(not (shutil.which("mpicxx") and shutil.which("mpiexec")), reason="MPI isn't installed")
def test_processes_over_mpi(build_native: Callable[..., Path], tmp_path: Path) -> None:
    host = build_native("host_mpi") / "host_mpi"
    with pretended(SIZE):
        program = export(Program(), (torch.randn(3, 4),), dynamic_shapes=({0: Dim("rows", min=1, max=2000)},))
    model = dhlo.compile(program)
    for rank in range(SIZE):
        model.save(tmp_path / f"rank{rank}.so")
    sizes = (1, 5, 1000)
    command = ["mpiexec", "-n", str(SIZE), str(host), str(tmp_path), *map(str, sizes)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    want = []
    for n in sizes:
        a, b = (given(n, rank) for rank in range(SIZE))
        every = torch.cat([a, b])
        most = torch.maximum(every * a[0, 0], every * b[0, 0])[:n]
        want += [(a + b).sum(), every.sum(), most.sum(), torch.cat([a, a]).sum(), b.sum()]
    torch.testing.assert_close([float(line) for line in ran.stdout.split()], [float(x) for x in want], rtol=1e-5, atol=1e-4)
