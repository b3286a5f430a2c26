"""Workers keep off the processor that the caller computes on, where they would only take turns with it; they go nowhere that
they were not let, and leave signals of faults to the process. Threads may compile at once."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.export import Dim, export

import dhlo


class Product(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b


COUNTS = itertools.count(21)


def _threads() -> dict[int, str]:
    """This process's threads by id, with their names."""
    return {int(task.name): (task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()}


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[int], dhlo.CompiledModel]]:
    """A model with workers of its own that have started, and their thread ids; the caller's affinity is put back."""
    monkeypatch.setenv("DHLO_NUM_THREADS", str(next(COUNTS)))  # a pool that no other test shares
    before, allowed = _threads(), os.sched_getaffinity(0)
    exported = export(Product(), (torch.randn(4, 6), torch.randn(6, 8)), dynamic_shapes=({0: Dim("m"), 1: Dim("k")}, {0: Dim("k")}))
    model = dhlo.compile(exported)
    model(torch.randn(900, 700), torch.randn(700, 8))
    started = [t for t, name in _threads().items() if name == "dhlo-worker" and t not in before]
    assert started
    yield started, model
    os.sched_setaffinity(0, allowed)


def _crowded_calls(model: dhlo.CompiledModel, count: int) -> None:
    """Calls with many more workers than processors, so that some run in turns with the caller until they are moved."""
    a, b = torch.randn(9000, 300), torch.randn(300, 8)
    for _ in range(count):
        torch.testing.assert_close(model(a, b), a @ b, atol=1e-3, rtol=1e-4)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_workers_are_moved_off_the_callers_processor(workers: tuple[list[int], dhlo.CompiledModel]) -> None:
    started, model = workers
    here = min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {here})
    for _ in range(50):
        _crowded_calls(model, 10)
        if all(here not in os.sched_getaffinity(worker) for worker in started):
            return
    raise AssertionError([os.sched_getaffinity(worker) for worker in started])


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_workers_stay_where_somebody_has_put_them(workers: tuple[list[int], dhlo.CompiledModel]) -> None:
    started, model = workers
    here = min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {here})
    for worker in started:
        os.sched_setaffinity(worker, {here})  # as `taskset -ap` does
    _crowded_calls(model, 100)
    assert all(os.sched_getaffinity(worker) == {here} for worker in started)


def test_workers_leave_faults_to_the_processs_handlers(workers: tuple[list[int], dhlo.CompiledModel]) -> None:
    """A blocked fault kills the process without its handler; signals that come from outside are for the host's threads."""
    faults = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS}
    for worker in workers[0]:
        deadline = time.monotonic() + 20
        while _blocked(worker) & faults and time.monotonic() < deadline:
            time.sleep(0.01)  # a thread that hasn't begun yet blocks everything
        blocked = _blocked(worker)
        assert not blocked & faults
        assert {signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD, signal.SIGUSR1} <= blocked


def _blocked(thread: int) -> set[signal.Signals]:
    """The signals that a thread of this process blocks."""
    status = Path(f"/proc/self/task/{thread}/status").read_text()
    (mask,) = (int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigBlk"))
    return {s for s in signal.Signals if mask >> (s - 1) & 1}


_FIRST_USE = """
import sys
import threading
import torch
import dhlo

sys.setswitchinterval(1e-6)  # threads take turns often
sizes = range(3, 11)
rows = ({0: torch.export.Dim.AUTO},)
programs = [torch.export.export(torch.nn.ReLU(), (torch.randn(2, n),), dynamic_shapes=rows) for n in sizes]
together, right = threading.Barrier(len(sizes)), []

def use(program, n):
    together.wait()
    x = torch.randn(7, n)
    right.append(torch.equal(dhlo.compile(program)(x), x.relu()))

threads = [threading.Thread(target=use, args=given) for given in zip(programs, sizes)]
for t in threads:
    t.start()
for t in threads:
    t.join()
print(right)
"""


def test_a_first_use_in_several_threads_at_once() -> None:
    """MLIR's bindings describe the dialect anew for each context, in one place: two that did so at once ended the process."""
    ran = subprocess.run([sys.executable, "-c", _FIRST_USE], capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0 and ran.stdout.strip() == str([True] * 8), ran.stderr
