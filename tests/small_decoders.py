"""Small models whose answers are searched for, aligned or scanned step by step: more of `small_models.SMALL`."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

from tests.small_models import D, Small, small

__all__: list[str] = []

rn = torch.randn
TWO = {0: D, 1: D}


def ri(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape)


def zero() -> torch.Tensor:
    return torch.zeros((), dtype=torch.int64)


class Llama(nn.Module):
    """Complex rotary embedding; keys and values are buffers that are written from a given position on."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(100, 32), nn.RMSNorm(32)
        self.q, self.k, self.v, self.o = (nn.Linear(32, n, bias=False) for n in (32, 16, 16, 32))
        angles = torch.outer(torch.arange(128), 1 / 10000 ** (torch.arange(0, 8, 2) / 8))
        self.turns = torch.polar(torch.ones_like(angles), angles)
        self.register_buffer("keys", torch.zeros(4, 64, 2, 8))
        self.register_buffer("values", torch.zeros(4, 64, 2, 8))

    def forward(self, tokens, start):
        b, n = tokens.shape
        start = start.item()
        torch._check(start >= 0)
        torch._check(start + n <= 64)
        turns = self.turns.narrow(0, start, n).view(1, n, 1, 4)
        turned = lambda t: torch.view_as_real(torch.view_as_complex(t.reshape(*t.shape[:-1], -1, 2)) * turns).flatten(3)
        x = self.embed(tokens)
        h = self.norm(x)
        q, k = turned(self.q(h).view(b, n, 4, 8)), turned(self.k(h).view(b, n, 2, 8))
        self.keys[:b].narrow(1, start, n).copy_(k)
        self.values[:b].narrow(1, start, n).copy_(self.v(h).view(b, n, 2, 8))
        k, v = (c[:b].narrow(1, 0, start + n).repeat_interleave(2, dim=2).transpose(1, 2) for c in (self.keys, self.values))
        scores = q.transpose(1, 2) @ k.transpose(2, 3) / math.sqrt(8)
        seen = torch.arange(start + n)[None] <= torch.arange(n)[:, None] + start
        y = scores.masked_fill(~seen, float("-inf")).softmax(-1) @ v
        return x + self.o(y.transpose(1, 2).reshape(b, n, 32))


@small
def llama() -> Small:
    args = lambda b, n, at: (ri(100, b, n), torch.tensor(at))
    return Llama(), args, (TWO, None), ((2, 5, 3), (1, 1, 9), (3, 7, 0), (4, 60, 4))


class Tacotron(nn.Module):
    """Location-sensitive attention over the text, one frame after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.pre = nn.LSTMCell(32, 16), nn.LSTMCell(16, 16), nn.Linear(8, 16)
        self.query, self.memory, self.place = nn.Linear(16, 12), nn.Linear(16, 12), nn.Conv1d(1, 12, 5, padding=2)
        self.score, self.out = nn.Linear(12, 1), nn.Linear(32, 8)

    def forward(self, memory, frames):
        b, t, _ = memory.shape
        keys = self.memory(memory)

        def step(carry, frame):
            h, c, g, d, total, context = carry
            h, c = self.first(torch.cat([self.pre(frame).relu(), context], -1), (h, c))
            e = self.query(h)[:, None] + keys + self.place(total[:, None]).transpose(1, 2)
            w = self.score(e.tanh()).squeeze(-1).softmax(-1)
            context = (w[:, None] @ memory).squeeze(1)
            g, d = self.second(h, (g, d))
            return (h, c, g, d, total + w, context), self.out(torch.cat([g, context], -1))

        zeros = [torch.zeros(b, 16) for _ in range(5)]
        carry, out = scan(step, (*zeros[:4], torch.zeros(b, t), zeros[4]), frames)
        return out, carry[4]


@small
def tacotron() -> Small:
    return Tacotron(), lambda b, t, u: (rn(b, t, 16), rn(u, b, 8)), (TWO, TWO), ((2, 7, 5), (1, 2, 1), (3, 11, 9))


class Speculation(nn.Module):
    """Which drafted tokens stay, and what follows the first that doesn't."""

    def forward(self, drafted, wanted, tokens, chance):
        _, k, v = drafted.shape
        of = lambda p: p.gather(2, tokens[..., None]).squeeze(2)
        stay = (chance < (of(wanted[:, :k]) / of(drafted)).clamp(max=1.0)).int().cumprod(1).sum(1)
        at = stay[:, None, None].expand(-1, 1, v).long()
        rest = (wanted.gather(1, at) - F.pad(drafted, (0, 0, 0, 1)).gather(1, at)).squeeze(1).clamp(min=0)
        rest = rest / rest.sum(-1, keepdim=True).clamp(min=1e-9)
        text = torch.where(torch.arange(k + 1)[None] < stay[:, None], F.pad(tokens, (0, 1)), -1)
        return text.scatter(1, stay[:, None].long(), rest.argmax(-1)[:, None]), stay, rest


@small
def speculation() -> Small:
    args = lambda b, k, v: (rn(b, k, v).softmax(-1), rn(b, k + 1, v).softmax(-1), ri(v, b, k), torch.rand(b, k))
    three = {0: D, 1: D, 2: D}
    return Speculation(), args, (three, three, TWO, TWO), ((2, 4, 20), (1, 1, 5), (3, 7, 33))


class Beams(nn.Module):
    """A step of beam search: finished beams stay, the best of all continuations follow, with a penalty of their length."""

    def forward(self, logits, scores, text, finished):
        b, k, v = logits.shape
        stays = torch.where(torch.arange(v) == 0, 0.0, float("-inf"))
        more = scores[..., None] + torch.where(finished[..., None], stays, logits.log_softmax(-1))
        best, at = more.view(b, k * v).topk(k, dim=1)
        beam, token = at // v, at % v
        text = torch.cat([text.gather(1, beam[..., None].expand(-1, -1, text.shape[2])), token[..., None]], 2)
        fair = best / ((5.0 + text.shape[2]) / 6.0) ** 0.6
        return best, text, finished.gather(1, beam) | (token == 0), beam + torch.arange(b)[:, None] * k, fair.argmax(1)


@small
def beams() -> Small:
    args = lambda b, v, t: (rn(b, 3, v), rn(b, 3), ri(v, b, 3, t), torch.rand(b, 3) > 0.6)
    return Beams(), args, ({0: D, 2: D}, {0: D}, {0: D, 2: D}, {0: D}), ((2, 20, 5), (1, 7, 1), (3, 33, 8))


class Alignment(nn.Module):
    """CTC's forward recursion."""

    def forward(self, logs, target, count):
        t, b, _ = logs.shape
        size, never = target.shape[1], -1e30
        labels = torch.zeros(b, 2 * size + 1, dtype=torch.long)
        labels[:, 1::2] = target
        skips = torch.zeros_like(labels, dtype=torch.bool)
        skips[:, 2:] = (labels[:, 2:] != 0) & (labels[:, 2:] != labels[:, :-2])
        emitted = logs.gather(2, labels[None].expand(t, -1, -1))

        def step(a, x):
            one, two = (F.pad(a, (k, 0), value=never)[:, :-k] for k in (1, 2))
            y = torch.stack([a, one, torch.where(skips, two, never)]).logsumexp(0) + x
            return y, y.clone()

        last, _ = scan(step, torch.where(torch.arange(2 * size + 1) < 2, emitted[0], never), emitted[1:])
        return -torch.logaddexp(last.gather(1, 2 * count[:, None]), last.gather(1, 2 * count[:, None] - 1))


@small
def alignment() -> Small:
    def args(t: int, b: int, n: int) -> tuple[Any, ...]:
        return rn(t, b, 11).log_softmax(-1), torch.randint(1, 11, (b, n)), torch.randint(1, n + 1, (b,))

    return Alignment(), args, (TWO, TWO, {0: D}), ((9, 2, 3), (4, 1, 1), (20, 3, 7))


class Tags(nn.Module):
    """A conditional random field: the best tags by Viterbi, and the partition function."""

    def __init__(self) -> None:
        super().__init__()
        self.moves, self.first, self.last = nn.Parameter(rn(5, 5)), nn.Parameter(rn(5)), nn.Parameter(rn(5))

    def forward(self, scores, mask):
        scores, mask = scores.transpose(0, 1), mask.transpose(0, 1)
        start, rest, end = self.first + scores[0], (scores[1:], mask[1:]), mask.long().sum(0) - 1
        ways = lambda c, e: c[:, :, None] + self.moves + e[:, None]

        def forth(c, x):
            best, at = ways(c, x[0]).max(1)
            return torch.where(x[1][:, None], best, c), at

        def total(c, x):
            y = torch.where(x[1][:, None], ways(c, x[0]).logsumexp(1), c)
            return y, y.clone()

        def back(tag, x):
            tag = torch.where(x[1] < end, x[0].gather(1, tag[:, None]).squeeze(1), tag)
            return tag, tag.clone()

        best, at = scan(forth, start, rest)
        steps = torch.arange(at.shape[0])[:, None].expand(-1, scores.shape[1])
        _, tags = scan(back, (best + self.last).argmax(1), (at, steps), reverse=True)
        return best, tags, (scan(total, start, rest)[0] + self.last).logsumexp(1)


@small
def tags() -> Small:
    args = lambda b, t: (rn(b, t, 5), torch.arange(t)[None] < torch.randint(1, t + 1, (b, 1)))
    return Tags(), args, (TWO, TWO), ((3, 7), (1, 3), (4, 20))


class Transducer(nn.Module):
    """RNN-T: each step either emits or moves on, at most three letters a frame."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell, self.join = nn.Embedding(12, 8), nn.GRUCell(8, 8), nn.Linear(16, 12)

    def forward(self, frames):
        def body(i, k, n, token, h, text):
            g = self.cell(self.embed(token[None]), h)
            y = self.join(torch.cat([frames.index_select(0, i[None])[0], g[0]])).argmax()
            emits = (y != 0) & (k < 3)
            text = torch.where((torch.arange(64) == n) & emits, y, text)
            move = lambda a, b: torch.where(emits, a, b)
            return move(i, i + 1), move(k + 1, 0), n + emits.long(), move(y, token), move(g, h), text

        start = (zero(), zero(), zero(), zero(), torch.zeros(1, 8), torch.zeros(64, dtype=torch.int64))
        return while_loop(lambda i, k, n, *_: (i < frames.shape[0]) & (n < 64), body, start)[2:]


@small
def transducer() -> Small:
    return Transducer(), lambda t: (rn(t, 8),), ({0: D},), ((6,), (1,), (25,))


class Kalman(nn.Module):
    """A filter: a system of equations at each step."""

    def __init__(self) -> None:
        super().__init__()
        moves = torch.eye(4)
        moves[0, 2] = moves[1, 3] = 1.0
        self.register_buffer("moves", moves)

    def forward(self, seen):
        b, m, h = seen.shape[1], self.moves, torch.eye(4)[:2]

        def step(carry, z):
            x, p = carry
            x, p = x @ m.t(), m @ p @ m.t() + 0.1 * torch.eye(4)
            gain = torch.linalg.solve(h @ p @ h.t() + torch.eye(2), h @ p).transpose(-2, -1)
            x = x + (gain @ (z - x @ h.t())[..., None])[..., 0]
            return (x, p - gain @ h @ p), x.clone()

        (_, p), xs = scan(step, (torch.zeros(b, 4), torch.eye(4).repeat(b, 1, 1)), seen)
        return xs, p


@small
def kalman() -> Small:
    return Kalman(), lambda t, b: (rn(t, b, 2),), (TWO,), ((5, 2), (1, 1), (20, 3))
