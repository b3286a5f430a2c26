"""Vectors of elements that lie a few apart in memory."""

from __future__ import annotations

from collections.abc import Sequence

from dhlo.codegen.kernel_ir.builder import Fn, V

__all__ = ["interleave", "load_spaced"]


def interleave(fn: Fn, parts: Sequence[V]) -> list[V]:
    """The first lane of each part, the second lane of each, and so on, as as many vectors."""
    if len(parts) == 1:
        return list(parts)
    n, count = parts[0].lanes, len(parts)
    out = []
    for k in range(count):
        wanted = [divmod(k * n + j, count) for j in range(n)]  # (lane, part)
        v = fn.shuffle(parts[0], parts[1], [lane + (n if part == 1 else 0) for lane, part in wanted])
        for number in range(2, count):
            v = fn.shuffle(v, parts[number], [n + lane if part == number else j for j, (lane, part) in enumerate(wanted)])
        out.append(v)
    return out


def load_spaced(fn: Fn, p: V, step: int, elem: str) -> V:
    """A vector of every `step`-th element from p on, out of whole vectors, the last of which ends with the last element."""
    n = fn.lanes
    reach = (n - 1) * step + 1
    out: V | None = None
    for k in range(step):
        start = min(k * n, reach - n)
        v = fn.load(fn.gep(p, start, elem), fn.vec(elem))
        lanes = [n + lane * step - start if lane * step // n == k else lane for lane in range(n)]
        out = fn.shuffle(v if out is None else out, v, lanes)
    assert out is not None
    return out
