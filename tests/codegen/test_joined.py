"""Tensors that are written part by part and shifted: their code stays small, their values are PyTorch's."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.export import Dim, export

import dhlo


class Regions(nn.Module):
    """Nine regions of a plane, numbered and rolled: each part reads the plane before it at four places."""

    def forward(self, x: Tensor) -> Tensor:
        plane = torch.zeros_like(x)
        parts = (slice(0, -4), slice(-4, -2), slice(-2, None))
        for n, (rows, columns) in enumerate((r, c) for r in parts for c in parts):
            plane[rows, columns] = n
        plane = torch.roll(plane, (-1, -2), (0, 1))
        return (plane[:, None] - plane[:, :, None]) * x[:, None]


def test_regions_of_a_plane() -> None:
    texts: dict[str, str] = {}
    program = export(Regions(), (torch.randn(8, 9),), dynamic_shapes=({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},))
    compiled = dhlo.compile(program, dump=lambda name, text: texts.__setitem__(name, text))
    groups = texts["fuse"].split('"dhlo.group"')[1:]
    assert 1 < len(groups) < 9
    assert max(g.count('"dhlo.concat"') for g in groups) <= 8
    for shape in ((8, 9), (6, 7), (20, 6), (17, 33)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), Regions()(x))
