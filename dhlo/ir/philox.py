"""Philox 4x32-10, the counter-based random number generator (Salmon et al., SC 2011): its constants, and its words in torch."""

from __future__ import annotations

import torch

__all__ = ["KEY_STEPS", "LOW", "MULTIPLIERS", "ROUNDS", "word"]

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
LOW = 0xFFFFFFFF


def word(position: torch.Tensor, seed: int, draw: int, number: int) -> torch.Tensor:
    """Word `number` (0 to 3, as i32) of the blocks whose counters are (position, draw), i64, and whose key is the seed."""
    c = [
        position & LOW,
        (position >> 32) & LOW,
        torch.full_like(position, draw & LOW),
        torch.full_like(position, (draw >> 32) & LOW),
    ]
    keys = [seed & LOW, (seed >> 32) & LOW]
    for r in range(ROUNDS):
        if r:
            keys = [(k + step) & LOW for k, step in zip(keys, KEY_STEPS, strict=True)]
        p = [x * m for x, m in zip((c[0], c[2]), MULTIPLIERS, strict=True)]  # wraps like unsigned products
        lo, hi = [x & LOW for x in p], [(x >> 32) & LOW for x in p]
        c = [hi[1] ^ c[1] ^ keys[0], lo[1], hi[0] ^ c[3] ^ keys[1], lo[0]]
    return ((c[number] ^ 0x80000000) - 0x80000000).to(torch.int32)
