"""Attention of sequences whose tables begin with the same blocks, against its reference semantics."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from dhlo.compiler import Artifact
from dhlo.errors import ContractError
from dhlo.ir.dialect import build
from dhlo.ir.ops.paged import PagedAttention
from dhlo.model import CompiledModel
from tests.fuzz.guarded import guarded, isolated
from tests.programs import Module, Part, compare, mostly_true, plain, t, within

BLOCK, SLOTS = 16, 4096


def part(
    heads: tuple[int, int],
    depth: tuple[int, int],
    dtype: str = "f32",
    mask: str = "",
    sinks: bool = False,
    hidden: int | None = None,
    **given: Any,
) -> Part:
    """`hidden`: numbers that say which keys are hidden are any below it, and as many below 0."""
    attrs = {"block": BLOCK, "window": 0, "scale": 0.25, "softcap": 0.0, "causal": True, **given}
    args: list[Any] = [
        (t(dtype, 1, heads[0], "tokens", depth[0]), within(-1, 1)),
        (t(dtype, heads[1], SLOTS, depth[0]), within(-1, 1)),
        (t(dtype, heads[1], SLOTS, depth[1]), within(-1, 1)),
        (t("i32", "b", "m"), plain),
        (t("i32", "b + 1"), plain),
        (t("i32", "b"), plain),
    ]
    if mask:
        args.append((t(mask, 1, heads[0], "tokens", f"{BLOCK} * m"), mostly_true if mask == "i1" else within(-2, 2)))
    if sinks:
        args.append((t("f32", heads[0]), within(-3, 3)))
    if hidden is not None:
        args.append((t("i32", "tokens"), lambda d, shape, g: torch.randint(-hidden, hidden + 1, shape, generator=g).to(d.torch)))
    return Part(
        args,
        lambda *x: [build(PagedAttention, x, attrs).results[0]],
        tol={"f32": 1e-4, "bf16": 5e-2},
        atol={"f32": 1e-5, "bf16": 4e-2}[dtype],
        label=f"{heads} {depth} {dtype} mask {mask} {sinks} {hidden} {given}",
    )


PARTS = [
    part((6, 2), (20, 24)),
    part((2, 2), (16, 16), "bf16"),
    part((4, 1), (16, 16), window=200, sinks=True),
    part((3, 1), (16, 16), mask="f32", softcap=2.0),
    part((4, 2), (16, 16), mask="i1", causal=False, window=30),
    part((4, 2), (16, 16), hidden=(1 << 31) - 1),
    part((4, 1), (16, 16), hidden=0, window=200),
]

WINDOWS = [0, 0, 200, 0, 30, 0, 200]

# (tokens, keys before them, the beginnings that they have in common with others of such names: (name, blocks))
Sequence_ = tuple[int, int, Sequence[tuple[str, int]]]


def step(sequences: Sequence[Sequence_], seed: int) -> dict[str, torch.Tensor]:
    """Tables, starts and lengths; what nobody shares lies anywhere in the pools."""
    free = random.Random(seed).sample(range(SLOTS // BLOCK), SLOTS // BLOCK)
    known: dict[str, list[int]] = {}
    tables: list[list[int]] = []
    for new, past, beginnings in sequences:
        table: list[int] = []
        for name, blocks in beginnings:
            have = known.setdefault(name, [])
            have += [free.pop() for _ in range(blocks - len(have))]
            table += have[:blocks]
        need = -(-(new + past) // BLOCK)
        tables.append((table + [free.pop() for _ in range(need - len(table))])[:need])
    columns = max((len(x) for x in tables), default=0) + seed % 2
    i32 = {"dtype": torch.int32}
    return {
        "tables": torch.tensor([x + [-1] * (columns - len(x)) for x in tables], **i32).reshape(len(tables), columns),
        "starts": torch.tensor([0, *(n for n, _, _ in sequences)]).cumsum(0).int(),
        "lengths": torch.tensor([n + past for n, past, _ in sequences], **i32),
    }


PREFIX = [("a", 10)]  # of 160 keys
STEPS: dict[str, Sequence[Sequence_]] = {
    "none": [],
    "one": [(1, 200, PREFIX)],
    "of a block's rows or fewer": [(1, 160, PREFIX), (1, 161, PREFIX), (3, 197, PREFIX), (1, 175, PREFIX)],
    "of more rows": [(1 + k % 2, 160 + k, PREFIX) for k in range(17)],
    "too short": [(1, 127, PREFIX), (1, 127, PREFIX), (1, 20, [("b", 1)]), (1, 20, [("b", 1)])],
    "beside prompts": [
        (40, 160, PREFIX),
        (1, 170, PREFIX),
        (0, 0, []),
        (1, 180, PREFIX),
        (1, 180, PREFIX),
        (50, 0, []),
        (0, 165, PREFIX),
    ],
    "of a tree": [(1, 400, [("a", 10), (leaf, 12)]) for leaf in "xxxyyzz"],
    "that ends in a run": [(1, 30, []), (1, 0, []), *[(1, 300, [("b", 16)])] * 2, *[(2, 290, [("a", 15)])] * 3],
    "far apart": [(1, 200, [("a", 12)]), (1, 600, [("a", 12)]), (1, 210, [("a", 12)])],
    "long": [(1, 700 + k, [("a", 40)]) for k in range(3)],
}


@pytest.fixture(scope="module")
def compiled() -> tuple[Module, CompiledModel, Artifact]:
    module = Module(PARTS)
    return module, *module.compile()


def arguments(module: Module, sequences: Sequence[Sequence_], seed: int) -> list[torch.Tensor]:
    given = step(sequences, seed)
    tokens, (b, m) = int(given["starts"][-1]), given["tables"].shape
    drawn = module.draw({"tokens": tokens, "b": b, "m": m}, seed)
    ends = [sum(len(p.args) for p in PARTS[:k]) for k in range(len(PARTS))]
    for at, window in zip(ends, WINDOWS, strict=True):
        tables = given["tables"].clone()
        if window:  # blocks before it were given back
            for row, (_, past, _) in zip(tables, sequences, strict=True):
                row[: max(past - window + 1, 0) // BLOCK] = torch.randint(-1, 3, (1,), dtype=torch.int32)
        drawn[at + 3 : at + 6] = tables, given["starts"], given["lengths"]
    return drawn


def check(module: Module, model: Callable[..., Any], sequences: Sequence[Sequence_], seed: int) -> None:
    given = arguments(module, sequences, seed)
    for p, got, want in zip(PARTS, model(*given), module.interpret(given), strict=True):
        compare(got, want, p, p.label)


@pytest.mark.parametrize("name", STEPS)
def test_sequences_that_share(compiled: tuple[Module, CompiledModel, Artifact], name: str) -> None:
    module, model, _ = compiled
    for seed in range(2):
        check(module, model, STEPS[name], seed)


def test_drawn_at_random(compiled: tuple[Module, CompiledModel, Artifact]) -> None:
    draw = random.Random(1)
    for seed in range(4):
        sequences: list[Sequence_] = []
        for _ in range(draw.randrange(12)):
            blocks = draw.randrange(12)
            of = [(draw.choice("ab"), blocks)] if blocks else []
            sequences.append((draw.choice((0, 1, 1, 1, 2, 5, 30)), max(0, 16 * blocks + draw.randrange(-20, 60)), of))
        sequences.sort(key=lambda s: s[2])
        check(*compiled[:2], sequences, seed)


@pytest.mark.parametrize("threads", [1, 3])
def test_between_guard_pages(compiled: tuple[Module, CompiledModel, Artifact], threads: int) -> None:
    def run(note: Callable[[str], None]) -> None:
        torch.set_num_threads(1)
        with guarded(compiled[2], threads) as model:
            for name, sequences in STEPS.items():
                note(name)
                check(compiled[0], model, sequences, 1)

    isolated(run)


def launched(model: CompiledModel, given: Sequence[torch.Tensor]) -> int:
    """How many kernels ran for keys that sequences share."""
    session = model.session()
    with session.profile() as profile:
        session(*given)
    return sum(r.launches for r in profile.rows if "_runs" in r.kernel)


def test_when_a_kernel_reads_them(compiled: tuple[Module, CompiledModel, Artifact]) -> None:
    module, model, _ = compiled
    wanted = {"none": 0, "one": 0, "too short": 0, "of more rows": 6, "long": 6}  # but not behind the shortest window
    assert {name: launched(model, arguments(module, STEPS[name], 0)) for name in wanted} == wanted


def test_blocks_that_are_none(compiled: tuple[Module, CompiledModel, Artifact]) -> None:
    module, model, _ = compiled
    given = arguments(module, STEPS["of more rows"], 0)
    tables = given[3]
    good = tables[:, 4].clone()
    for bad in (-1, SLOTS // BLOCK, 2**31 - 1):
        tables[:, 4] = bad
        with pytest.raises(ContractError, match=f"index {bad} is out of range for size {SLOTS // BLOCK}"):
            model(*given)
    tables[:, 4] = good
    check(module, model, STEPS["of more rows"], 0)
