"""Legal and hostile calls through the C interface in guarded memory: each right or a clean error, and the session works afterwards.

A few thousand calls by default, always the same; `--fuzz-seconds 600` makes others, and the slow test a hundred thousand.
"""

from __future__ import annotations

import ctypes
import time
from collections import Counter
from collections.abc import Callable

import pytest
import torch

from tests.fuzz.calls import compiled, fuzz
from tests.fuzz.cases import CASES, random_case
from tests.fuzz.guarded import GuardDamage, Memory, Placed, isolated

CALLS = 200


@pytest.mark.parametrize("name", CASES)
def test_calls(name: str) -> None:
    made = compiled(CASES[name])
    assert made is not None
    counts = fuzz(CASES[name], made, 0, 0, CALLS)
    assert sum(counts.values()) == CALLS and counts["ok"] > CALLS // 5 and counts["invalid argument"] > 0, counts


def _random_calls(seed: int, calls: int, seconds: float = float("inf")) -> Counter[str]:
    case = random_case(seed)
    made = compiled(case)
    return Counter(fuzz(case, made, seed, 0, calls, seconds) if made is not None else {})


def test_calls_of_random_programs(request: pytest.FixtureRequest) -> None:
    seconds = request.config.getoption("--fuzz-seconds")
    if not seconds:
        counts = sum((_random_calls(seed, 100) for seed in range(5)), Counter())
        assert counts["ok"] > 100, counts
        return
    ends, seed = time.monotonic() + seconds, int(time.time())
    counts = Counter()
    while (left := ends - time.monotonic()) > 0:
        counts += _random_calls(seed, 1000, left)
        name = list(CASES)[seed % len(CASES)]
        made = compiled(CASES[name])
        assert made is not None
        counts += Counter(fuzz(CASES[name], made, seed, 0, 1000, ends - time.monotonic()))
        seed += 1
    print(dict(counts))


@pytest.mark.slow
def test_a_hundred_thousand_calls() -> None:
    counts: Counter[str] = Counter()
    for name, case in CASES.items():
        made = compiled(case)
        assert made is not None, name
        counts += Counter(fuzz(case, made, 1, 0, 3000))
    seed = 1000
    while sum(counts.values()) < 100_000:
        counts += _random_calls(seed, 500)
        seed += 1
    assert counts["ok"] > 40_000, counts


# ---------------------------------------------------------------------------------------------------- the guards themselves
@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("nbytes", [0, 1, 100, 4096, 5000])
def test_a_touch_outside_is_a_crash_that_says_where(nbytes: int, at_end: bool) -> None:
    def touch(note: Callable[[str], None]) -> None:
        memory = Memory(nbytes, 1, at_end=at_end, label="the block")
        note("a touch")
        ctypes.string_at(memory.address + (nbytes if at_end else -1), 1)

    where = r"end \+0" if at_end else "start -1"
    with pytest.raises(AssertionError, match=rf"died of SIGSEGV in: a touch\nsignal 11: a read of .*the block, from its ({where})"):
        isolated(touch)


def test_a_write_to_what_is_read_only_is_a_crash() -> None:
    def write(note: Callable[[str], None]) -> None:
        p = Placed.of(torch.ones(3), label="weights")
        p.freeze()
        ctypes.memset(p.memory.address, 0, 4)

    with pytest.raises(AssertionError, match="a write of .*weights"):
        isolated(write)


@pytest.mark.parametrize("offset", [-1, 100])
def test_a_write_to_a_pad_is_found(offset: int) -> None:
    memory = Memory(100, 64)
    ctypes.memset(memory.address + offset, 0, 1)
    with pytest.raises(GuardDamage, match=f"byte {offset} was written"):
        memory.close()


def test_a_child_that_is_stuck_or_raises_is_reported() -> None:
    def wait(note: Callable[[str], None]) -> None:
        note("a long call")
        time.sleep(60)

    with pytest.raises(AssertionError, match="no progress for 1 s: died of SIGKILL in: a long call"):
        isolated(wait, stuck=1)

    def fail(note: Callable[[str], None]) -> None:
        note("a bad call")
        raise ValueError("no")

    with pytest.raises(AssertionError, match="ValueError: no\n\nin: a bad call"):
        isolated(fail)


@pytest.mark.parametrize("strides", [[5, 1], [1, 3], [-5, -1], [0, 1], [7, 2], [1, 1]])
def test_tensors_are_placed_with_any_strides(strides: list[int]) -> None:
    x = torch.arange(15.0).reshape(3, 5)
    p = Placed.of(x, strides)
    if 0 not in strides and strides != [1, 1]:
        assert torch.equal(p.value(), x)
    assert p.data is not None
    at = [ctypes.c_float.from_address(p.data + 4 * (i * strides[0] + j * strides[1])).value for i in range(3) for j in range(5)]
    assert torch.equal(torch.tensor(at).reshape(3, 5), p.value())
    p.memory.close()
