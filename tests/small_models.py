"""Small models of many kinds, written for the tests: a module, its arguments as a function of sizes, dynamic dims, and sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch._higher_order_ops.while_loop import while_loop
from torch.export import Dim

__all__ = ["SMALL", "Small"]

D = Dim.DYNAMIC
rn = torch.randn
Small = tuple[nn.Module, Callable[..., tuple[Any, ...]], Any, Sequence[tuple[int, ...]]]  # sizes: the first to export
SMALL: dict[str, Callable[[], Small]] = {}


def small(f: Callable[[], Small]) -> Callable[[], Small]:
    SMALL[f.__name__] = f
    return f


def _convs(i: int, o: int) -> nn.Module:
    layer = lambda i: (nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(4, o), nn.SiLU())
    return nn.Sequential(*layer(i), *layer(o))


class UNet(nn.Module):
    """Diffusion's: group norm, time embedding, skips, crops to the skip's size."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.middle, self.up2, self.up1 = (
            _convs(i, o) for i, o in ((3, 8), (8, 16), (16, 16), (32, 16), (24, 8))
        )
        self.up, self.out, self.time = nn.ConvTranspose2d(16, 16, 2, 2), nn.Conv2d(8, 4, 1), nn.Linear(16, 16)

    def forward(self, x, t):
        angles = t[:, None] * torch.exp(-torch.arange(8) * 0.5)
        e = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        m = self.middle(F.avg_pool2d(b, 2) + e[:, :, None, None])
        m = self.up(self.up2(torch.cat([F.interpolate(m, size=b.shape[2:], mode="nearest"), b], 1)))
        m = F.pad(m, [0, a.shape[3] - m.shape[3], 0, a.shape[2] - m.shape[2]])
        return self.out(self.up1(torch.cat([m, a], 1)))


@small
def unet() -> Small:
    dims = ({0: D, 2: D, 3: D}, {0: D})
    return UNet(), lambda b, h, w: (rn(b, 3, h, w), torch.rand(b) * 10), dims, ((2, 16, 24), (1, 17, 23), (3, 8, 8), (1, 32, 31))


class Recogniser(nn.Module):
    """Convolutions, and greedy CTC decoding with repeats and blanks removed."""

    def __init__(self) -> None:
        super().__init__()
        first, second = nn.Conv1d(8, 16, 5, padding=2), nn.Conv1d(16, 16, 5, padding=2, groups=4)
        self.convs, self.out = nn.Sequential(first, nn.BatchNorm1d(16), nn.ReLU(), second, nn.Tanh()), nn.Linear(16, 11)

    def forward(self, x, n):
        y = self.out(self.convs(x).transpose(1, 2)).log_softmax(-1)
        best = y.argmax(-1)
        keep = (best != 0) & (torch.arange(x.shape[2]) < n[:, None])
        keep = keep & torch.cat([torch.ones_like(keep[:, :1]), best[:, 1:] != best[:, :-1]], 1)
        to = (keep.cumsum(1) - 1).where(keep, x.shape[2])
        return y, torch.zeros(x.shape[0], x.shape[2] + 1, dtype=torch.int64).scatter(1, to, best)[:, :-1], keep.sum(1)


@small
def ctc() -> Small:
    args = lambda b, t: (rn(b, 8, t), torch.randint(1, t + 1, (b,)))
    return Recogniser(), args, ({0: D, 2: D}, {0: D}), ((3, 20), (1, 9), (2, 33))


class Quantised(nn.Module):
    """A VQ-VAE: nearest codes by argmin, and their perplexity."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode, self.codes = nn.Conv2d(3, 8, 4, 2, 1), nn.ConvTranspose2d(8, 3, 4, 2, 1), nn.Embedding(32, 8)

    def forward(self, x):
        z = self.encode(x)
        rows, c = z.permute(0, 2, 3, 1).reshape(-1, 8), self.codes.weight
        i = ((rows**2).sum(1, True) - 2 * rows @ c.t() + (c**2).sum(1)).argmin(1)
        q = self.codes(i).view(z.shape[0], z.shape[2], z.shape[3], 8).permute(0, 3, 1, 2)
        p = F.one_hot(i, 32).float().mean(0)
        return self.decode(z + (q - z).detach()), i, (-(p * (p + 1e-9).log()).sum()).exp()


@small
def vqvae() -> Small:
    return Quantised(), lambda b, h, w: (rn(b, 3, h, w),), ({0: D, 2: D, 3: D},), ((2, 16, 24), (1, 6, 10), (3, 8, 32))


class Detector(nn.Module):
    """Anchors, the ten best boxes, and suppression by overlap, with as many results as there are."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, 1), nn.ReLU())
        self.classes, self.boxes = nn.Conv2d(16, 15, 1), nn.Conv2d(16, 12, 1)

    def forward(self, x):
        f = self.base(x)
        b, _, h, w = f.shape
        flat = lambda y, k: y.view(b, 3, k, h, w).permute(0, 3, 4, 1, 2).reshape(b, -1, k)
        scores, deltas = flat(self.classes(f), 5).sigmoid(), flat(self.boxes(f), 4)
        gy, gx = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        grid = torch.stack([gx, gy], -1).reshape(-1, 1, 2).expand(-1, 3, 2).reshape(1, -1, 2).float() * 4
        box = torch.cat([grid + deltas[..., :2], grid + deltas[..., :2] + deltas[..., 2:].exp()], -1)
        score, label = scores.max(-1)
        score, k = score.topk(10, dim=1)
        box, label = box.gather(1, k[..., None].expand(-1, -1, 4)), label.gather(1, k)
        low = torch.maximum(box[:, :, None, :2], box[:, None, :, :2])
        high = torch.minimum(box[:, :, None, 2:], box[:, None, :, 2:])
        inter, area = (high - low).clamp(min=0).prod(-1), (box[..., 2:] - box[..., :2]).prod(-1)
        over = inter / (area[:, :, None] + area[:, None] - inter) > 0.5
        keep = ~(torch.triu(over, 1) & (label[:, :, None] == label[:, None])).any(1) & (score > 0.5)
        n = keep.nonzero()
        return box, score, label, keep, box[n[:, 0], n[:, 1]], n


@small
def detection() -> Small:
    return Detector(), lambda b, h, w: (rn(b, 3, h, w),), ({0: D, 2: D, 3: D},), ((2, 32, 24), (1, 16, 20), (3, 33, 47))


class Recommender(nn.Module):
    """DLRM's: bags of categories, dot products of all pairs, attention over a padded history."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(100, 8, mode="mean", include_last_offset=True)
        self.tables = nn.ModuleList(nn.Embedding(20, 8) for _ in range(3))
        self.bottom, self.top = nn.Linear(5, 8), nn.Linear(8 + 10, 1)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, dense, categories, bag, offsets, history):
        x = self.bottom(dense).relu()
        t = torch.stack([x, self.bag(bag, offsets), *(e(categories[:, i]) for i, e in enumerate(self.tables))], 1)
        h = self.tables[0](history)
        a, _ = self.attention(x[:, None], h, h, key_padding_mask=history == 0)
        i, j = torch.tril_indices(5, 5, -1)
        return torch.sigmoid(self.top(torch.cat([x + a[:, 0], (t @ t.transpose(1, 2))[:, i, j]], 1)))


@small
def recommender() -> Small:
    def args(b: int, n: int, t: int) -> tuple[Any, ...]:
        offsets = torch.cat([torch.tensor([0]), torch.randint(0, n + 1, (b - 1,)).sort()[0], torch.tensor([n])])
        history = torch.randint(0, 20, (b, t))
        history[:, 0] = 1
        return rn(b, 5), torch.randint(0, 20, (b, 3)), torch.randint(0, 100, (n,)), offsets, history

    return Recommender(), args, ({0: D}, {0: D}, {0: D}, {0: D}, {0: D, 1: D}), ((3, 9, 4), (1, 1, 1), (5, 20, 7), (2, 0, 3))


class GraphAttention(nn.Module):
    """Softmax over each node's edges by scatter_reduce, messages by index_add, a mean over each graph."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.edge, self.out = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)), nn.Linear(16, 1), nn.Linear(8, 3)

    def forward(self, x, edges, graph):
        source, to = edges
        n = x.shape[0]
        degree = torch.zeros(n).index_add(0, to, torch.ones_like(to, dtype=torch.float32)).clamp(min=1)
        for layer in self.layers:
            h = layer(x)
            w = F.leaky_relu(self.edge(torch.cat([h[source], h[to]], 1))).squeeze(1)
            e = (w - torch.full((n,), -1e9).scatter_reduce(0, to, w, "amax")[to]).exp()
            a = e / torch.zeros(n).scatter_add(0, to, e)[to]
            x = (x + torch.zeros_like(h).index_add(0, to, h[source] * a[:, None]) / degree[:, None]).relu()
        mean = torch.zeros(4, 8).scatter_reduce(0, graph[:, None].expand(-1, 8), x, "mean", include_self=False)
        return self.out(mean), x


@small
def graph_attention() -> Small:
    args = lambda n, e: (rn(n, 8), torch.randint(0, n, (2, e)), torch.randint(0, 4, (n,)))
    return GraphAttention(), args, ({0: D}, {1: D}, {0: D}), ((7, 20), (2, 2), (30, 5), (9, 0))


class PointCloud(nn.Module):
    """Features of each point's four neighbours, then of the whole cloud."""

    def __init__(self) -> None:
        super().__init__()
        self.near, self.own, self.out = nn.Linear(6, 16), nn.Linear(19, 16), nn.Linear(32, 5)

    def forward(self, p):
        d = ((p[:, :, None] - p[:, None]) ** 2).sum(-1)
        k = d.topk(4, dim=-1, largest=False)[1]
        near = p.gather(1, k.reshape(p.shape[0], -1, 1).expand(-1, -1, 3)).view(p.shape[0], -1, 4, 3)
        f = torch.cat([p[:, :, None].expand_as(near), near - p[:, :, None]], -1)
        h = self.own(torch.cat([self.near(f).relu().amax(2), p], -1)).relu()
        return self.out(torch.cat([h, h.amax(1, keepdim=True).expand_as(h)], -1))


@small
def point_cloud() -> Small:
    return PointCloud(), lambda b, n: (rn(b, n, 3),), ({0: D, 1: D},), ((2, 9), (1, 4), (3, 33))


class Experts(nn.Module):
    """Each expert takes the rows that chose it, which may be none."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(4))

    def forward(self, x):
        w, k = self.gate(x).softmax(-1).topk(2, -1)
        y = torch.zeros_like(x)
        for i, e in enumerate(self.experts):
            r, c = torch.where(k == i)
            y = y.index_add(0, r, e(x[r]) * w[r, c][:, None])
        return y


@small
def experts() -> Small:
    return Experts(), lambda n: (rn(n, 8),), ({0: D},), ((9,), (1,), (40,), (0,))


class WaveNet(nn.Module):
    """Dilated causal convolutions with weight norm, gated."""

    def __init__(self) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.first, self.last = nn.Conv1d(1, 8, 1), nn.Conv1d(8, 16, 1)
        self.dilated = nn.ModuleList(norm(nn.Conv1d(8, 16, 2, dilation=2**k)) for k in range(4))
        self.mix = nn.ModuleList(nn.Conv1d(8, 8, 1) for _ in range(4))

    def forward(self, x):
        h, skip = self.first(x), torch.zeros(())
        for k, (dilated, mix) in enumerate(zip(self.dilated, self.mix, strict=True)):
            a, b = dilated(F.pad(h, (2**k, 0))).chunk(2, 1)
            z = mix(a.tanh() * b.sigmoid())
            skip, h = skip + z, h + z
        return self.last(skip.relu())


@small
def wavenet() -> Small:
    return WaveNet(), lambda b, t: (rn(b, 1, t),), ({0: D, 2: D},), ((2, 20), (1, 1), (3, 77))


class Pyramid(nn.Module):
    """Features of several scales, each enlarged to the next; adaptive pools, pixel shuffle."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Conv2d(3 if k == 0 else 8, 8, 3, 2, 1) for k in range(3))
        self.side, self.norm = nn.ModuleList(nn.Conv2d(8, 8, 1) for _ in range(3)), nn.InstanceNorm2d(8, affine=True)

    def forward(self, x):
        scales = []
        for c in self.down:
            x = F.mish(self.norm(c(x)))
            scales.append(x)
        out = [self.side[2](scales[2])]
        for k in (1, 0):
            size = scales[k].shape[-2:]
            out.append(self.side[k](scales[k]) + F.interpolate(out[-1], size=size, mode="bilinear", align_corners=False))
        return [F.adaptive_avg_pool2d(y, (2, 3)) for y in out] + [F.pixel_shuffle(out[-1], 2)]


@small
def pyramid() -> Small:
    return Pyramid(), lambda b, h, w: (rn(b, 3, h, w),), ({0: D, 2: D, 3: D},), ((2, 32, 40), (1, 17, 31), (3, 64, 24))


class Greedy(nn.Module):
    """Decodes inside the program: a loop that writes its own answer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell, self.out = nn.Embedding(20, 8), nn.LSTMCell(8, 8), nn.Linear(8, 20)

    def forward(self, h, n):
        rows = h.shape[0]

        def body(i, token, h, c, text):
            h, c = self.cell(self.embed(token), (h, c))
            token = self.out(h).argmax(-1)
            return i + 1, token, h, c, text.scatter(1, i.expand(rows, 1), token[:, None])

        zeros = lambda *shape: torch.zeros(*shape, dtype=torch.int64)
        start = (zeros(()), zeros(rows), h, torch.zeros_like(h), zeros(rows, 16))
        return while_loop(lambda i, *_: (i < n) & (i < 16), body, start)


@small
def greedy() -> Small:
    return Greedy(), lambda b, n: (rn(b, 8), torch.tensor(n)), ({0: D}, None), ((3, 6), (1, 0), (2, 20))


class Flow(nn.Module):
    """Coupling layers with fixed permutations, and the log density."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 8)) for _ in range(3))
        self.orders = [torch.randperm(8) for _ in range(3)]

    def forward(self, x):
        total = torch.zeros(())
        for net, order in zip(self.nets, self.orders, strict=True):
            a, b = x[:, order].chunk(2, 1)
            s, t = net(a).chunk(2, 1)
            x, total = torch.cat([a, b * s.tanh().exp() + t], 1), total + s.tanh().sum(1)
        return x, total - 0.5 * (x**2 + math.log(2 * math.pi)).sum(1)


@small
def flow() -> Small:
    return Flow(), lambda b: (rn(b, 8),), ({0: D},), ((3,), (1,), (20,))


class Transport(nn.Module):
    """Sinkhorn's iteration between two sets of points."""

    def forward(self, a, b):
        cost = torch.cdist(a, b)
        k, n, m = (-2 * cost).exp(), a.shape[0], b.shape[0]
        u, v = torch.ones(n) / n, torch.ones(m) / m
        for _ in range(5):
            u = 1 / (n * (k @ v))
            v = 1 / (m * (k.t() @ u))
        p = u[:, None] * k * v
        return p, (p * cost).sum(), torch.einsum("ij,jk->ik", p, b)


@small
def transport() -> Small:
    return Transport(), lambda n, m: (rn(n, 3), rn(m, 3)), ({0: D}, {0: D}), ((5, 6), (1, 1), (9, 20))
