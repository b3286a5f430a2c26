"""The benchmark of products with small weights: its programs, several in a process, and its report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import quantised
from benchmarks.experts import table
from benchmarks.quantised_peers import Several, _rounded
from dhlo.bench.ceilings import Ceilings
from dhlo.bench.peers import PEERS


@pytest.mark.parametrize("part", quantised.PARTS)
def test_programs_of_every_part(part: str) -> None:
    """Each call gives what its own program gives, at every shape."""
    if part in ("experts", "experts_bf16"):
        pytest.importorskip("transformers.integrations.moe")
    subject = quantised.subject(part, tiny=True)
    assert isinstance(subject, Several)
    programs = quantised.parts(tiny=True)[part].programs
    assert subject.labels == [label for w in programs for label in w.labels]
    with torch.no_grad():
        peer = PEERS["several_eager"](subject, 1)
        wanted = [torch.utils._pytree.tree_leaves(w.module()(*w.arguments(s))) for w in programs for s in w.shapes]
        for i, want in enumerate(wanted):
            got = peer.tensors(peer.call(peer.prepare(subject.arguments(i))))
            assert len(got) == len(want)
            for x, y in zip(got, want, strict=True):
                torch.testing.assert_close(x, y)


def test_table_of_mixtures(tmp_path: Path) -> None:
    """The best of the others counts, whatever form of the program it is of; those with codes beside the same codes only."""

    def keep(part: str, **peers: float) -> None:
        facts = {p: {"median_ms": [t, 2 * t]} for p, t in peers.items()}
        labels = ["experts_few 1", "experts_few 5"]
        result = {"part": part, "labels": labels, "peers": facts | {"inductor": {"error": "no"}}}
        (tmp_path / f"{part}_t2.json").write_text(json.dumps(result))

    with pytest.raises(FileNotFoundError, match="2 threads"):
        table(tmp_path, 2)
    keep("experts", dhlo=4.0, dhlo_int8=1.0, eager=8.0)
    keep("experts_loop", dhlo=1.0, eager=7.0, ort=9.0, ort_int8=2.0, ort_int4=0.1)
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table(tmp_path, 2)]
    assert lines[2] == ["few 1", "4", "7 eager, loop", "1.75", "1", "2 ort_int8, loop", "2.00"]
    assert lines[3][0] == "few 5" and len(lines) == 4


def test_symmetric_codes_of_other_peers() -> None:
    w = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)
    w[2] = 0
    for bits, group in ((8, 64), (4, 16)):
        codes, scale = _rounded(w, bits, group)
        assert codes.dtype == np.int8 and abs(codes).max() <= 1 << bits - 1
        back = codes.reshape(5, -1, group) * scale[..., None]
        assert (abs(back - w.reshape(back.shape)) <= scale[..., None] * 0.501).all()


def test_report_compares_like_with_like() -> None:
    """Times over our f32, and the best other of the same bits; the share of bandwidth counts stored bytes."""

    def facts(*times: float) -> dict[str, object]:
        return {"median_ms": list(times), "errors": [0.0] * len(times)}

    peers = {"dhlo": facts(4.0), "dhlo_int8": facts(1.0), "dhlo_int4": facts(0.5), "ort_int8": facts(2.0), "ort_int4": facts(0.4)}
    result = {"part": "rows", "labels": ["linear_1000x1000 1"], "peers": peers | {"openvino": {"error": "no"}}, "threads": 1}
    part = quantised.Part([], [], {"linear_1000x1000": 1000 * 1000})
    lines = quantised._report(result, part, Ceilings(1, 1, 1, 2, 2, 2)).splitlines()
    int8, int4 = (lines[i + 1].split() for i, line in enumerate(lines) if line.startswith(("dhlo_int8", "dhlo_int4")))
    assert int8[2:5] == ["0.250", "2.00", "ort_int8"] and int8[5:8] == ["1.0", "GB/s", "50.0%"]
    assert int4[2:5] == ["0.125", "0.80", "ort_int4"]
    assert lines[-1] == "openvino fails: no"
