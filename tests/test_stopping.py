"""Runs that are stopped: by a timeout, a token, another thread, a task's cancellation; and what they leave behind."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import dhlo


class Endless(torch.nn.Module):
    """Turns that only end when `n` is reached, a counter of calls, and a log that is replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("last", torch.zeros(4))

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        def body(i: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return i + 1, y * 1.0 + 1.0

        _, y = torch.while_loop(lambda i, y: i < n, body, (torch.zeros((), dtype=torch.int64), x))
        self.calls.add_(1)
        self.last.copy_(y[:4])
        return y


NEVER, SOON = torch.tensor(1 << 60), torch.tensor(3)
X = torch.zeros(8)


@pytest.fixture(scope="module")
def model() -> dhlo.CompiledModel:
    return dhlo.compile(torch.export.export(Endless(), (X, SOON)))


def check(session: dhlo.Session, calls: int) -> None:
    """Nothing that a stopped run would have changed has changed, and the next run works."""
    assert session.read_state("calls") == calls
    assert torch.equal(session.read_state("last"), torch.full((4,), 3.0 if calls else 0.0))
    assert torch.equal(session(X, SOON), torch.full((8,), 3.0))
    assert session.read_state("calls") == calls + 1


def test_timeout(model: dhlo.CompiledModel) -> None:
    session = model.session()
    with pytest.raises(dhlo.DeadlineError, match="longer than its timeout of 20000000 ns") as raised:
        session.run((X, NEVER), timeout=0.02)
    assert isinstance(raised.value, TimeoutError)
    check(session, 0)
    assert torch.equal(session.run((X, SOON), {}, timeout=1e30), torch.full((8,), 3.0))
    for bad in (0, -1, float("nan"), "1", 1j):
        with pytest.raises(ValueError, match="timeout: expected seconds above 0"):
            session.run((X, SOON), timeout=bad)  # type: ignore[arg-type]
    for strange in (3, b"four", dhlo.CancelToken):
        with pytest.raises(TypeError, match=r"cancel: expected a dhlo.CancelToken, or None, got \w+"):
            session.run((X, SOON), cancel=strange)  # type: ignore[arg-type]


def test_token_and_cancel(model: dhlo.CompiledModel) -> None:
    session, token = model.session(), dhlo.CancelToken()
    timer = threading.Timer(0.02, token.cancel)
    timer.start()
    with pytest.raises(dhlo.CancelledError, match="the run was cancelled"):
        session.run((X, NEVER), cancel=token)
    with pytest.raises(dhlo.CancelledError):
        session.run((X, SOON), cancel=token)  # before it begins
    assert token.cancelled
    check(session, 0)
    over = threading.Event()

    def cancel() -> None:
        while not over.wait(0.001):
            session.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(dhlo.CancelledError):
        session(X, NEVER)
    over.set()
    thread.join()
    check(session, 1)
    for wrong in (b"12345678", b"", "text"):
        with pytest.raises((TypeError, ValueError)):
            session.native.run([X, SOON], 0, wrong)  # type: ignore[arg-type]
    assert len(session.native.run([X, SOON], 0, None)) == 1


def test_async(model: dhlo.CompiledModel) -> None:
    async def main() -> None:
        sessions = [model.session() for _ in range(3)]
        results = await asyncio.gather(*(s.run_async(X, SOON) for s in sessions))
        assert all(torch.equal(y, torch.full((8,), 3.0)) for y in results)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await sessions[0].run_async(X, NEVER)
        check(sessions[0], 1)
        with pytest.raises(dhlo.ContractError):
            await sessions[0].run_async(X)
        task = asyncio.create_task(sessions[1].run_async(X, NEVER))
        await asyncio.sleep(0.01)
        with pytest.raises(dhlo.SessionError):
            await sessions[1].run_async(X, SOON)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        check(sessions[1], 1)
        assert torch.equal(await model.run_async(X, SOON), torch.full((8,), 3.0))
        assert model.read_state("calls") == 1

    asyncio.run(main())


def test_model_without_state() -> None:
    """Awaited calls of a model itself run at once, each in its thread's session."""
    plain = dhlo.compile(torch.export.export(torch.nn.Linear(4, 3).eval(), (torch.randn(2, 4),)))
    xs = [torch.randn(2, 4) for _ in range(8)]

    async def main() -> list[torch.Tensor]:
        return await asyncio.gather(*(plain.run_async(x) for x in xs))

    for x, y in zip(xs, asyncio.run(main()), strict=True):
        assert torch.equal(y, plain(x))
    assert torch.equal(plain.run((xs[0],), timeout=10), plain(xs[0]))


def test_a_task_that_waits_for_a_thread_is_cancelled(model: dhlo.CompiledModel) -> None:
    """It doesn't wait until others leave a thread of the executor."""
    session, free = model.session(), threading.Event()

    async def main() -> bool:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        taken = loop.run_in_executor(None, free.wait)
        task = asyncio.ensure_future(session.run_async(X, NEVER))
        await asyncio.sleep(0.01)
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=30)
        free.set()
        await taken
        return task in done and task.cancelled()

    assert asyncio.run(main())
    check(session, 0)
