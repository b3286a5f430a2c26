"""The Python binding: conversion of inputs, outputs, errors, state, plans, threads and forks."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from dhlo import _runtime

BIAS = torch.tensor([1.0, 2.0, 3.0, 4.0])


@pytest.fixture(scope="module")
def toy(build_toy: Callable[..., Path]) -> _runtime.Model:
    return _runtime.Model.from_file(build_toy())


@pytest.fixture(scope="module")
def one(build_toy: Callable[..., Path]) -> _runtime.Model:
    return _runtime.Model.from_file(build_toy(add_one=True), num_threads=2)


@pytest.fixture
def session(toy: _runtime.Model) -> _runtime.Session:
    return _runtime.Session(toy)


@pytest.mark.parametrize("rows", [0, 1, 3, 64, 65, 1001, 30000])
def test_run(session: _runtime.Session, rows: int) -> None:
    x = torch.randn(rows, 4)
    y, positive, step = session(x, 0)
    assert torch.equal(y, 2 * x + BIAS)
    assert torch.equal(positive, x[x > 0])
    assert (step.dtype, step.shape, step.item()) == (torch.int64, (), 1)


def test_outputs_are_fresh_and_ordinary(session: _runtime.Session) -> None:
    x = torch.randn(5, 4)
    first = session(x, 0)[0]
    copy = first.clone()
    second = session(-x, 0)[0]
    assert torch.equal(first, copy)
    assert first.data_ptr() != second.data_ptr()
    first += 1
    assert first.data_ptr() % 64 == 0
    assert not first.requires_grad
    assert torch.equal(torch.nn.functional.relu(first), torch.relu(copy + 1))


def test_strided_inputs(session: _runtime.Session) -> None:
    base = torch.randn(8, 9)
    for x in (base[:, :4], base[1::3, 2:6], base.t()[:4].t(), base[:1, :4].expand(5, 4), base[:, 3:4].expand(8, 4)):
        assert torch.equal(session(x, 0)[0], 2 * x + BIAS)


def test_kinds_of_input(session: _runtime.Session) -> None:
    x = torch.randn(3, 4)
    expected = 2 * x + BIAS
    with torch.no_grad():
        parameter = torch.nn.Parameter(x)
    for form in (x, x.clone().requires_grad_(), parameter, x.numpy(), np.asfortranarray(x.numpy())):
        assert torch.equal(session(form, 0)[0], expected)
    for mode in (0, torch.tensor(0), np.int64(0), np.int8(0), np.array(0), np.zeros((), dtype=np.int64)):
        assert torch.equal(session([x, mode])[0], expected)
    assert torch.equal(session((x, 0))[0], expected)


def test_lazy_negation_is_done(session: _runtime.Session, one: _runtime.Model) -> None:
    x = torch.randn(3, 4, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    assert torch.equal(session(x, 0)[0], 2 * x + BIAS)
    x = torch.randn(1, dtype=torch.complex64).conj().imag
    assert torch.equal(_runtime.Session(one)(x)[0], x + 1)


BAD = [
    ((torch.zeros(3, 5), 0), ValueError, "input 0 'x' dim 1: expected 4, got 5"),
    ((torch.zeros(3), 0), ValueError, "input 0 'x': expected rank 2, got rank 1"),
    ((torch.zeros(3, 4).double(), 0), ValueError, "input 0 'x': expected float32, got float64"),
    ((torch.zeros(3, 4), 0.5), ValueError, "input 1 'mode': expected int64, got float64"),
    ((torch.zeros(3, 4), True), ValueError, "input 1 'mode': expected int64, got bool"),
    ((torch.zeros(3, 4), -7), ValueError, "input 1 'mode': expected at least 0, got -7"),
    ((torch.zeros(1, 4).expand(10**6 + 1, 4), 0), ValueError, "'x' dim 0 (n): expected at most 1000000, got 1000001"),
    ((torch.zeros(3, 4), 1), ValueError, "mode must not be one"),
    ((torch.zeros(3, 4), 2), RuntimeError, "the model failed without a reason (1)"),
    ((torch.zeros(3, 4), 3), RuntimeError, "the model did not produce output 0"),
    ((torch.zeros(3, 4), 4), ValueError, "embedding: index 9 is out of range for size 7"),
    ((torch.zeros(3, 4),), ValueError, "expected 2 input(s), got 1"),
    ((torch.zeros(3, 4), 0, 0), ValueError, "expected 2 input(s), got 3"),
    ((torch.zeros(3, 4, device="meta"), 0), ValueError, "input 0 'x': cannot be read as a dense CPU tensor: Cannot"),
    ((torch.zeros(3, 4).to(torch.uint16), 0), ValueError, "got an unsupported dtype (DLPack code 1, 16 bits, 1 lanes)"),
    ((torch.zeros(3, 4).to_sparse(), 0), ValueError, "input 0 'x': cannot be read as a dense CPU tensor"),
    ((torch.zeros(1, 1, 1, 1, 1, 1, 1, 1, 4), 0), ValueError, "input 0 'x': rank 9 is outside 0..8"),
    (("text", 0), TypeError, "input 0 'x': expected a tensor or a number, got str"),
    ((None, 0), TypeError, "input 0 'x': expected a tensor or a number, got NoneType"),
    (((3, 4), 0), TypeError, "input 0 'x': expected a tensor or a number, got tuple"),
    ((torch.zeros(3, 4), 2**70), ValueError, "expected an integer of 64 bits"),
]  # fmt: skip


@pytest.mark.parametrize(("inputs", "kind", "text"), BAD, ids=[text[:40] for _, _, text in BAD])
def test_bad_inputs_leave_the_session_usable(
    session: _runtime.Session, inputs: tuple[object, ...], kind: type[Exception], text: str
) -> None:
    for _ in range(2):
        with pytest.raises(kind) as raised:
            session(*inputs)
        assert text in str(raised.value)
        x = torch.randn(2, 4)
        assert torch.equal(session(x, 0)[0], 2 * x + BIAS)


def test_other_device_is_named(session: _runtime.Session) -> None:
    class Elsewhere:
        def __dlpack__(self, **_: object) -> object:
            raise BufferError("lives on Mars")

    with pytest.raises(ValueError, match="input 0 'x': cannot be read as a dense CPU tensor: lives on Mars"):
        session(Elsewhere(), 0)


def test_keyword_inputs_are_refused(session: _runtime.Session) -> None:
    with pytest.raises(TypeError, match="positional"):
        session(x=torch.zeros(1, 4))  # type: ignore[call-arg]


def test_cap(toy: _runtime.Model) -> None:
    session = _runtime.Session(toy, max_bytes=100_000)
    small, large = torch.randn(10, 4), torch.randn(50_000, 4)
    session(small, 0)
    with pytest.raises(MemoryError, match="arena: .* bytes needed, but the session's cap of 100000 bytes"):
        session(large, 0)
    assert torch.equal(session(small, 0)[0], 2 * small + BIAS)
    assert session.counters["failed_runs"] == 1


def test_a_cap_counts_what_a_plan_counts(toy: _runtime.Model) -> None:
    """The figures of a run in a fresh session are enough for a cap."""
    x = torch.randn(20_000, 4)
    free = _runtime.Session(toy)
    free(x, 0)
    c = free.counters
    assert c["output_used"] == x.numel() * 4 + int((x > 0).sum()) * 4 + 8 and c["state_bytes"] == 16
    need = c["arena_used"] + c["scratch_used"] + c["output_used"] + c["state_bytes"] + toy.constants_bytes
    session = _runtime.Session(toy, max_bytes=need)
    for _ in range(3):
        assert torch.equal(session(x, 0)[0], 2 * x + BIAS)
    session = _runtime.Session(toy, max_bytes=need - 1)
    with pytest.raises(MemoryError, match="cap of"):
        session(x, 0)
    assert torch.equal(session(x[:5], 0)[0], 2 * x[:5] + BIAS)


def test_memory_settles_under_random_shapes(session: _runtime.Session) -> None:
    generator = np.random.default_rng(0)
    for _ in range(300):
        session(torch.zeros(int(generator.integers(0, 3000)), 4), 0)
    settled = session.counters
    assert settled["growths"] < 30
    for _ in range(300):
        session(torch.zeros(int(generator.integers(0, 3000)), 4), 0)
    assert session.counters["arena_bytes"] == settled["arena_bytes"]
    assert settled["arena_bytes"] < 2.5 * (3000 * 32 + 64 * 64 * 8)


def test_plan(toy: _runtime.Model) -> None:
    expected = {
        "outputs": [("float32", (5, 4)), ("float32", None), ("int64", ())],
        "arena_bytes": 5 * 16 + 64 * 64 * 8,
        "scratch_bytes": 128 * toy.num_threads,
        "output_bytes": 5 * 16 + 8,
        "state_bytes": 16,
        "constants_bytes": 24,
        "total_bytes": 5 * 16 + 64 * 64 * 8 + 128 * toy.num_threads + 5 * 16 + 8 + 16,
        "peak_live_bytes": 80,
        "data_dependent": True,
        "num_launches": 2,
    }
    assert toy.plan(torch.zeros(5, 4), 0) == expected
    assert toy.plan((5, 4), 0) == expected
    assert toy.plan([(5, 4), ()]) == expected
    with pytest.raises(ValueError, match="dim 1: expected 4, got 3"):
        toy.plan((5, 3), 0)
    with pytest.raises(ValueError, match="size -5 of dim 0 is negative"):
        toy.plan((-5, 4), 0)


def test_descriptions(toy: _runtime.Model) -> None:
    assert toy.inputs == [
        {"name": "x", "dtype": "float32", "sizes": (-1, 4), "dims": ("n", "4")},
        {"name": "mode", "dtype": "int64", "sizes": (), "dims": ()},
    ]
    assert [v["name"] for v in toy.outputs] == ["y", "positive", "step"]
    assert toy.outputs[1]["dims"] == ("u0",)
    assert toy.states == [{"name": "step", "dtype": "int64", "bytes": 8}, {"name": "gate", "dtype": "int64", "bytes": 8}]
    assert toy.launches == ["gather", "scale", "hold", "step"]


def test_state(toy: _runtime.Model) -> None:
    first, second = _runtime.Session(toy), _runtime.Session(toy)
    x = torch.zeros(1, 4)
    steps = [first(x, 0)[2].item(), first(x, 0)[2].item(), second(x, 0)[2].item()]
    assert steps == [1, 2, 1]
    assert int.from_bytes(first.read_state("step"), "little") == 2
    first.write_state("step", (41).to_bytes(8, "little"))
    assert first(x, 0)[2].item() == 42
    first.reset_state()
    assert first.read_state("step") == bytes(8)
    with pytest.raises(ValueError, match="no state 'nothing'"):
        first.read_state("nothing")
    with pytest.raises(ValueError, match="expected 8 bytes, got 3"):
        first.write_state("step", b"abc")


def test_profile_and_counters(toy: _runtime.Model) -> None:
    session = _runtime.Session(toy, profile=True)
    x = torch.zeros(1000, 4)
    session(x, 0)
    session(x, 0)
    figures = {name: (count, ns) for name, count, ns in session.profile}
    assert [figures[name][0] for name in ("gather", "scale", "hold")] == [2, 2, 0]
    assert figures["scale"][1] > 0
    session.set_profile(False, reset=True)
    session(x, 0)
    assert all(count == 0 for _, count, _ in session.profile)
    assert (session.counters["runs"], session.counters["launches"]) == (3, 6)
    session.trim()
    assert session.counters["arena_bytes"] == 0


def test_concurrent_use_of_one_session_is_refused(toy: _runtime.Model) -> None:
    session = _runtime.Session(toy)
    gate = np.zeros(1, dtype=np.int64)
    session.write_state("gate", gate.ctypes.data.to_bytes(8, "little"))
    results: list[list[torch.Tensor]] = []
    x = torch.randn(3, 4)
    thread = threading.Thread(target=lambda: results.append(session(x, 5)))
    thread.start()
    refused = 0
    while refused == 0:  # until the thread has begun
        try:
            session.profile  # noqa: B018
        except RuntimeError as error:
            assert "session is in use" in str(error)
            refused += 1
    with pytest.raises(RuntimeError, match="session is in use"):
        session(x, 0)
    gate[0] = 1
    thread.join()
    assert torch.equal(results[0][0], 2 * x + BIAS)


def test_sessions_on_threads(toy: _runtime.Model) -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        session = _runtime.Session(toy)
        generator = np.random.default_rng(seed)
        for _ in range(50):
            x = torch.full((int(generator.integers(0, 5000)), 4), float(seed))
            y, positive, _ = session(x, 0)
            if not torch.equal(y, 2 * x + BIAS) or positive.numel() != (x.numel() if seed else 0):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_fork(one: _runtime.Model) -> None:
    session = _runtime.Session(one)
    x = torch.arange(100_000.0)
    assert torch.equal(session(x)[0], x + 1)  # the parent's threads run
    child = os.fork()
    if child == 0:
        # The exit status tells. NumPy compares, since torch's own threads do not survive a fork.
        ok = all(np.array_equal(session(x)[0].numpy(), x.numpy() + 1) for _ in range(20))
        os._exit(0 if ok else 1)
    deadline = time.monotonic() + 20
    done, status = 0, 1
    while done == 0 and time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0.01)
    if done == 0:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert done == child, "the child hangs"
    assert status == 0
    assert torch.equal(session(x)[0], x + 1)


def test_num_threads(build_toy: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = build_toy()
    assert 1 <= _runtime.Model.from_file(path).num_threads <= len(os.sched_getaffinity(0))  # less under a quota
    assert _runtime.Model.from_file(path, num_threads=3).num_threads == 3
    monkeypatch.setenv("DHLO_NUM_THREADS", "2")
    assert _runtime.Model.from_file(path, num_threads=3).num_threads == 2
    for bad in ("0", "two", "-1", "2x"):
        monkeypatch.setenv("DHLO_NUM_THREADS", bad)
        with pytest.raises(ValueError, match=f"DHLO_NUM_THREADS: expected a number from 1 to 1024, got '{bad}'"):
            _runtime.Model.from_file(path)
    monkeypatch.delenv("DHLO_NUM_THREADS")
    with pytest.raises(ValueError, match="num_threads"):
        _runtime.Model.from_file(path, num_threads=-1)


def test_from_address_keeps_its_owner(build_elf: Callable[..., Path]) -> None:
    import ctypes
    import weakref

    from dhlo.codegen.kernel_ir.abi import ABI_SYMBOL

    class Owner:
        def __init__(self) -> None:
            self.library = ctypes.CDLL(str(build_elf()))
            self.constants = _runtime.Buffer(24)
            memoryview(self.constants)[:] = BIAS.numpy().tobytes() + bytes(8)

    owner = Owner()
    address = ctypes.addressof(ctypes.c_char.in_dll(owner.library, ABI_SYMBOL))
    model = _runtime.Model.from_address(address, owner.constants.address, owner.constants.nbytes, owner)
    gone = weakref.ref(owner)
    del owner
    session = _runtime.Session(model)
    del model
    assert gone() is not None
    x = torch.randn(3, 4)
    assert torch.equal(session(x, 0)[0], 2 * x + BIAS)
    del session
    assert gone() is None
    with pytest.raises(ValueError, match="null"):
        _runtime.Model.from_address(0, 0, 0, None)


def test_buffer() -> None:
    large = _runtime.Buffer(5 << 20)
    assert large.address % (2 << 20) == 0
    array = np.frombuffer(memoryview(large), dtype=np.float32)
    array[:] = 3
    assert (large.nbytes, array.nbytes, array[-1]) == (5 << 20, 5 << 20, 3)
    assert _runtime.Buffer(0).nbytes == 0
    with pytest.raises(ValueError, match="negative"):
        _runtime.Buffer(-1)


# ------------------------------------------------------------------ interpreters
_LEAVES = """
import sys, threading, time
import numpy as np
from dhlo import _runtime

toy = _runtime.Model.from_file(sys.argv[1], num_threads=1)
mode = int(sys.argv[2])
def spin():
    for _ in range(500):
        pass
class Slow:
    def __dlpack__(self, **options):
        spin()
        return np.ones((3, 4), np.float32).__dlpack__(**options)
class SlowError(Exception):
    def __str__(self):
        spin()
        return "slow"
class Failing:
    def __dlpack__(self, **options):
        raise SlowError
def calls():
    session = _runtime.Session(toy, capsules=True)
    x = {9: Slow(), 10: Failing()}.get(mode, np.ones((3, 4), np.float32))
    while True:
        try:
            session(x, mode)
        except ValueError:
            assert mode == 10
for _ in range(4):
    threading.Thread(target=calls, daemon=True).start()
time.sleep(0.1)
"""


@pytest.mark.parametrize("mode", [0, 6, 9, 10])
def test_the_interpreter_ends_while_daemon_threads_call(build_toy: Callable[..., Path], mode: int) -> None:
    """Short calls, whose threads ask for Python's lock when it is gone, endless ones, and calls that are in Python code."""
    command = [sys.executable, "-c", _LEAVES, str(build_toy()), str(mode)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (0, "")


_INSIDE = """
import importlib.util
spec = importlib.util.spec_from_file_location("dhlo._runtime", {path!r})
try:
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
except ImportError as e:
    assert "subinterpreters" in str(e), e  # from Python 3.12 on Python says so itself
else:
    raise AssertionError("it was loaded")
"""


def test_subinterpreters_are_refused() -> None:
    code = (
        "try:\n    import _interpreters as interpreters\nexcept ImportError:\n    import _xxsubinterpreters as interpreters\n"
        f"failed = interpreters.run_string(interpreters.create(), {_INSIDE.format(path=_runtime.__file__)!r})\n"
        "assert failed is None, failed\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
