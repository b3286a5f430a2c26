"""The buffer plan: no overlap at any sizes, and the bytes that any plan needs."""

from __future__ import annotations

import random

import pytest
import sympy

from dhlo.shape_infer.buffers import Buffer, plan_arena

N, M = sympy.symbols("n m", integer=True, nonnegative=True)


@pytest.mark.parametrize("seed", range(8))
def test_offsets_and_peak_at_any_sizes(seed: int) -> None:
    rng = random.Random(seed)
    buffers = []
    for k in range(rng.randint(1, 60)):
        first = rng.randrange(40)
        size = rng.choice([N * 64, M * 64, (N + M) * 64, sympy.Integer(128), N * M * 64])
        buffers.append(Buffer(f"b{k}", size, first, first + rng.choice([0, 1, 5, 40])))
    plan = plan_arena(buffers, [lambda name, t=t: t for t in (1, 8, 100)])
    for env in ({"n": 0, "m": 0}, {"n": 1, "m": 9}, {"n": 50, "m": 3}, {"n": 7, "m": 7}):
        size = {b: int(b.bytes.subs({N: env["n"], M: env["m"]})) for b in buffers}
        alive = max(sum(size[b] for b in buffers if b.first <= t <= b.last) for t in range(90))
        assert plan.peak_live(env) == alive
        for a in plan.arrangements:
            at, total = a.offsets(env)
            assert total >= alive
            for x in buffers:
                for y in buffers:
                    if x is not y and x.overlaps(y) and size[x] and size[y]:
                        assert at[x] + size[x] <= at[y] or at[y] + size[y] <= at[x]
