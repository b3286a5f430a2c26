"""Sessions hold state: what one has another never sees, a thread gets none that isn't its own, and memory that a call writes
is nobody else's."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch.export import Dim, export

import dhlo


class Decoder(torch.nn.Module):
    """A static cache, a count of calls and random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = torch.nn.Module()
        self.cache.register_buffer("keys", torch.zeros(8, 3))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        keys = self.cache.keys
        assert isinstance(keys, torch.Tensor)
        keys.index_copy_(0, at, x)
        self.calls += 1
        return keys.sum(0) + self.calls, torch.rand(3)


class Writer(torch.nn.Module):
    """Changes one argument and reads the others."""

    def forward(self, cache: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(0, at, x)
        return cache.sum(1) + x.sum()


class PlusOne(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


ROWS = Dim("n", max=8)
X, AT = torch.ones(1, 3), torch.tensor([2])


def compile_decoder() -> dhlo.CompiledModel:
    return dhlo.compile(export(Decoder(), (torch.randn(2, 3), torch.arange(2)), dynamic_shapes=({0: ROWS}, {0: ROWS})))


@pytest.fixture(scope="module")
def compiled() -> dhlo.CompiledModel:
    return compile_decoder()


@pytest.fixture(scope="module")
def writer() -> dhlo.CompiledModel:
    example = (torch.zeros(8, 3), torch.randn(2, 3), torch.arange(2))
    return dhlo.compile(export(Writer(), example, dynamic_shapes=({0: Dim("rows")}, {0: Dim("n")}, {0: Dim("n")})))


def in_thread(call: Callable[[], Any], name: str) -> Any:
    """What the call gives, or the exception that it raises, in a new thread."""
    results: list[Any] = []

    def work() -> None:
        try:
            results.append(call())
        except Exception as e:
            results.append(e)

    thread = threading.Thread(target=work, name=name)
    thread.start()
    thread.join()
    return results[0]


def calls(session: dhlo.Session) -> int:
    (name,) = (n for n in session.state if n.endswith("calls"))
    return int(session.read_state(name))


# ---------------------------------------------------------------------- whose state it is
def test_sessions_are_apart_and_follow_eager(compiled: dhlo.CompiledModel) -> None:
    sessions, references = [compiled.session() for _ in range(3)], [Decoder() for _ in range(3)]
    generator = torch.Generator().manual_seed(0)
    for step in range(12):
        n = step % 3 + 1
        x, at = torch.randn(n, 3, generator=generator), torch.randperm(8, generator=generator)[:n]
        k = int(torch.randint(3, (), generator=generator))
        torch.testing.assert_close(sessions[k](x, at)[0], references[k](x, at)[0])
    for session, reference in zip(sessions, references, strict=True):
        for name, value in session.state.items():
            torch.testing.assert_close(value, dict(reference.named_buffers())[name])


def test_a_session_goes_from_thread_to_thread(compiled: dhlo.CompiledModel) -> None:
    session = compiled.session()
    with ThreadPoolExecutor(4) as pool:
        for n in range(1, 9):
            assert pool.submit(session, X, AT).result()[0][0] == 1 + n


def test_a_second_thread_is_told_to_take_a_session() -> None:
    model = compile_decoder()
    model(X, AT)
    for call in (lambda: model(X, AT), lambda: model.read_state("calls"), model.reset_state, lambda: model.manual_seed(1)):
        error = in_thread(call, "server-1")
        assert isinstance(error, dhlo.SessionError)
        assert "belongs to thread 'MainThread'" in str(error) and "model.session()" in str(error) and "server-1" in str(error)
    assert int(model(X, AT)[0][0]) == 1 + 2  # which nobody has touched
    assert calls(model.session()) == 0


def test_the_state_of_a_thread_that_is_gone_goes_to_nobody() -> None:
    model = compile_decoder()
    assert in_thread(lambda: model(X, AT)[0][0], "first") == 2
    for _ in range(20):  # of which some get the number of the first
        error = in_thread(lambda: model(X, AT), "later")
        assert isinstance(error, dhlo.SessionError) and "'first'" in str(error)
    assert isinstance(in_thread(lambda: model.session()(X, AT), "later"), tuple)


def test_one_of_many_threads_becomes_the_owner() -> None:
    model, barrier = compile_decoder(), threading.Barrier(8)

    def work() -> bool:
        barrier.wait()
        try:
            return int(model(X, AT)[0][0]) == 2
        except dhlo.SessionError:
            return False

    with ThreadPoolExecutor(8) as pool:
        assert sum(f.result() for f in [pool.submit(work) for _ in range(8)]) == 1


def test_models_without_state_run_on_any_thread() -> None:
    model = dhlo.compile(export(PlusOne(), (torch.randn(4),), dynamic_shapes=({0: Dim("n")},)))
    with ThreadPoolExecutor(4) as pool:
        for n, y in enumerate(pool.map(model, [torch.full((n,), float(n)) for n in range(50)])):
            assert torch.equal(y, torch.full((n,), n + 1.0))
    session = model.session()
    assert session.state == {} and torch.equal(session(torch.zeros(3)), torch.ones(3))
    session.restore(session.snapshot())


def test_a_second_call_meanwhile_is_refused(compiled: dhlo.CompiledModel) -> None:
    session = compiled.session()
    refused: list[str] = []

    class Reenter:
        """A tensor that uses the session while it is read for a call."""

        def __dlpack__(self, **_: object) -> object:
            for use in (lambda: session(X, AT), session.snapshot, session.reset, session.copy, lambda: session.state):
                with pytest.raises(dhlo.SessionError, match="in use") as e:
                    use()
                refused.append(str(e.value))
            return X.__dlpack__()

    session(Reenter(), AT)
    assert len(refused) == 5 and calls(session) == 1


# ---------------------------------------------------------------------- copies and snapshots
def test_copies_go_on_from_the_same_state_and_random_numbers(compiled: dhlo.CompiledModel) -> None:
    session = compiled.session()
    session.manual_seed(3)
    session(X, AT)
    twins = [session.copy(), copy.copy(session), copy.deepcopy(session)]
    want = session(2 * X, AT + 1)
    for twin in twins:
        assert twin.model is compiled
        for got, w in zip(twin(2 * X, AT + 1), want, strict=True):
            assert torch.equal(got, w)
        assert calls(twin) == 2
    assert calls(session) == 2


def test_snapshots_bring_back_state_and_random_numbers(compiled: dhlo.CompiledModel) -> None:
    session = compiled.session()
    session(X, AT)
    snapshot = session.snapshot()
    want = [session(k * X, AT)[1] for k in range(3)]
    other = compile_decoder().session()  # the same program compiled again
    for target in (session, other):
        target.restore(bytearray(snapshot))
        assert calls(target) == 1
        assert all(torch.equal(target(k * X, AT)[1], w) for k, w in enumerate(want))


def test_a_snapshot_that_doesnt_fit_changes_nothing(compiled: dhlo.CompiledModel) -> None:
    session = compiled.session()
    session(X, AT)
    stateless = dhlo.compile(export(PlusOne(), (torch.randn(4),), dynamic_shapes=({0: Dim("n")},))).session()
    snapshot = session.snapshot()
    with pytest.raises(dhlo.SessionError, match="of another model: it has 0 states, this model has 2"):
        session.restore(stateless.snapshot())
    with pytest.raises(dhlo.SessionError, match="another model"):
        stateless.restore(snapshot)
    for bad in (b"", b"nonsense", snapshot[:-1], snapshot + b"x", bytes(len(snapshot))):
        with pytest.raises(dhlo.SessionError, match="snapshot"):
            session.restore(bad)
    assert calls(session) == 1


def test_state_by_name(compiled: dhlo.CompiledModel) -> None:
    session = compiled.session()
    assert len(session.state) == 2
    name = next(n for n in session.state if n.endswith("keys"))
    session.write_state(name, torch.arange(24.0).reshape(3, 8).t())
    assert torch.equal(session.read_state(name), torch.arange(24.0).reshape(3, 8).t())
    session.reset()
    assert not session.read_state(name).any()
    with pytest.raises(dhlo.ContractError, match=r"is float32\[8, 3\], got float32\[3, 8\]"):
        session.write_state(name, torch.zeros(3, 8))
    with pytest.raises(KeyError, match="no state 'nothing'; it has .*keys"):
        session.read_state("nothing")
    assert f"{name}: float32[8, 3]" in compiled.signature


def test_a_failed_call_leaves_state_and_session(compiled: dhlo.CompiledModel) -> None:
    session = compiled.session()
    session(X, AT)
    before = session.state
    for bad in ((torch.ones(1, 4), AT), (X, torch.tensor([9])), (torch.ones(9, 3), torch.arange(9)), (X,), ("text", AT)):
        with pytest.raises((dhlo.ContractError, TypeError)):
            session(*bad)
        assert calls(session) == 1
    for name, value in session.state.items():
        assert torch.equal(value, before[name]) or name.endswith("keys")
    assert session(X, AT)[0][0] == 1 + 2


def test_a_cap_that_state_and_weights_exceed(compiled: dhlo.CompiledModel) -> None:
    with pytest.raises(MemoryError, match="exceed the session's cap of 50 bytes"):
        compiled.session(max_bytes=50)
    with pytest.raises(ValueError, match="max_bytes: expected 0"):
        compiled.session(max_bytes=-1)
    session = compiled.session(max_bytes=1 << 20)
    session(X, AT)
    counters = session.counters
    assert counters["state_bytes"] >= 8 * 3 * 4 + 8 and counters["output_used"] == 24
    session.trim()
    assert session.counters["arena_bytes"] == 0 and calls(session) == 1


# ---------------------------------------------------------------------- memory that a call writes
def test_an_updated_argument_shares_memory_with_none(writer: dhlo.CompiledModel) -> None:
    x, at = torch.randn(2, 3), torch.tensor([3, 1])
    buffer = torch.zeros(8, 6)
    shared = "'cache' is written by the model, but shares memory with input 1 'x'"
    indices = torch.zeros(12, dtype=torch.int64)
    bad = [
        ((buffer[:, :3], buffer[:2, :3], at), shared),
        ((buffer[:, :3], buffer[3:5, 2:5], at), shared),
        ((buffer[::2, :3], buffer.view(-1)[10:16].view(2, 3), at), shared),
        ((indices.view(torch.float32).view(8, 3), x, indices[4:6]), "shares memory with input 2 'at'"),
        ((torch.zeros(3).expand(8, 3), x, at), "several of its elements share memory"),
        ((torch.zeros(10).as_strided((8, 3), (1, 1)), x, at), "several of its elements share memory"),
    ]
    for arguments, text in bad:
        with pytest.raises(dhlo.ContractError) as e:
            writer(*arguments)
        assert text in str(e.value)
    assert not buffer.any() and not indices.any()


def test_arguments_may_interleave(writer: dhlo.CompiledModel) -> None:
    at = torch.tensor([5, 1])

    def layouts() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        buffer = torch.randn(8, 2, 3)
        yield buffer[:, 0], buffer[:2, 1]  # keys and values in one buffer
        buffer = torch.randn(16, 3)
        yield buffer[::2], buffer[1:4:2]
        buffer = torch.randn(3, 20)
        yield buffer[:, :8].t(), buffer[:, 8:10].t()
        yield buffer[:, 12:].t(), buffer[:, :2].t()
        buffer = torch.randn(30, 3)
        yield buffer[2:10], buffer[:2]

    for cache, x in layouts():
        want = cache.clone()
        torch.testing.assert_close(writer(cache, x, at), Writer()(want, x, at))
        torch.testing.assert_close(cache, want)
    x = torch.randn(2, 3)
    torch.testing.assert_close(writer(torch.zeros(8, 3), x, at), Writer()(torch.zeros(8, 3), x, at))  # reading one twice


class Growing(torch.nn.Module):
    def forward(self, x: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        k, v = torch.cat([k, x], 1), torch.cat([v, x * 2], 1)
        return k.sum(1) - v.sum(1), k, v


def test_growing_buffers_share_no_room() -> None:
    past = Dim("past", max=64)
    example = (torch.randn(2, 1, 3), torch.randn(2, 5, 3), torch.randn(2, 5, 3))
    exported = export(Growing(), example, dynamic_shapes=({}, {1: past}, {1: past}))
    model = dhlo.compile(exported, grow={"k": 1, "v": 1})
    x, buffer = torch.randn(2, 1, 3), torch.zeros(2, 8, 3)
    for k, v in ((buffer[:, :0], buffer[:, :0]), (buffer[:, :2], buffer[:, :2]), (buffer[:, :0], buffer[:, :1])):
        with pytest.raises(dhlo.ContractError, match="shares memory with input 2 .v., which is written, too"):
            model(x, k, v)
    assert not buffer.any()
    both = torch.zeros(2, 2, 8, 3)  # keys before values
    k, v = both[0, :, :0], both[1, :, :0]
    for _ in range(3):
        _, k, v = model(x, k, v)
    assert torch.equal(both[0, :, :3], x.expand(2, 3, 3)) and torch.equal(both[1, :, :3], 2 * x.expand(2, 3, 3))


def test_memory_that_cant_take_the_update(writer: dhlo.CompiledModel) -> None:
    x, at = torch.randn(2, 3), torch.tensor([5, 1])
    array = np.zeros((8, 3), np.float32)
    writer(array, x, at)
    assert np.array_equal(array[[5, 1]], x.numpy())
    array[:] = 7
    array.flags.writeable = False
    with pytest.raises(dhlo.ContractError, match="'cache' is updated by the model: .* got a read-only tensor"):
        writer(array, x, at)
    assert (array == 7).all()
    writer(torch.zeros(8, 3), array[:2], at)  # only read
    lazy = torch.zeros(8, 3, dtype=torch.complex64).conj().imag
    with pytest.raises(dhlo.ContractError, match="'cache' is updated .* got a tensor whose elements are computed"):
        writer(lazy, x, at)
    for other in (1.0, 3, True, np.float32(2), None):
        with pytest.raises(dhlo.ContractError, match="'cache' is updated by the model: expected a tensor, got"):
            writer(other, x, at)


def test_strides_beyond_all_memory_are_refused(writer: dhlo.CompiledModel) -> None:
    at = torch.tensor([5, 1])
    plus_one = dhlo.compile(export(PlusOne(), (torch.randn(4, 3),), dynamic_shapes=({0: Dim("n")},)))
    for stride in (2**62, -(2**62), 2**58, -(2**47)):
        wide = np.lib.stride_tricks.as_strided(np.zeros(3, np.float32), (2, 3), (stride, 4))
        for call in (lambda wide=wide: writer(torch.zeros(8, 3), wide, at), lambda wide=wide: plus_one(wide)):
            with pytest.raises(dhlo.ContractError, match="strides reach beyond what can be addressed"):
                call()
    flipped = np.arange(24, dtype=np.float32).reshape(8, 3)[::-1, ::-1]
    np.testing.assert_array_equal(plus_one(flipped).numpy(), flipped + 1)


class Counting(torch.nn.Module):
    """x plus the number of calls so far."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x + self.calls


class Interrupting:
    """An argument whose conversion is interrupted, or calls the session that it is an argument of."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act = act

    def __dlpack__(self, **_: object) -> object:
        return self.act()


def _raise(error: BaseException) -> object:
    raise error


def test_interruptions_go_on_as_they_are() -> None:
    session = dhlo.compile(export(Counting(), (torch.randn(3),))).session()
    for error in (KeyboardInterrupt(), SystemExit(3), MemoryError("none")):
        with pytest.raises(type(error)):
            session(Interrupting(lambda error=error: _raise(error)))
    with pytest.raises(dhlo.SessionError, match="in use"):
        session(Interrupting(lambda: session(torch.zeros(3))))
    session(torch.zeros(3))


def test_damaged_snapshots_are_refused() -> None:
    session = dhlo.compile(export(Counting(), (torch.randn(3),))).session()
    session(torch.ones(3))
    saved, before = session.snapshot(), session.state
    for at in range(0, len(saved), 3):
        damaged = bytearray(saved)
        damaged[at] ^= 1 << at % 8
        with pytest.raises(dhlo.SessionError):
            session.restore(damaged)
    assert all(torch.equal(session.state[k], v) for k, v in before.items())
    session.restore(saved)
