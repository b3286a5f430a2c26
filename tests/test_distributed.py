"""Collective operations: in the IR, and of compiled programs whose processes are threads with gloo's groups between them."""

from __future__ import annotations

import copy
import datetime
import gc
import json
import pickle
import random
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._C._distributed_c10d as c10d
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch.export import Dim, ExportedProgram, export
from transformers import LlamaConfig, LlamaForCausalLM

import dhlo
from dhlo import interp
from dhlo.distributed import Communicator, _wait
from dhlo.errors import CancelledError, CompileError, ContractError, DeadlineError
from dhlo.frontend import import_program
from dhlo.integrations.caches import exportable_attention
from dhlo.integrations.decoder import step_program
from dhlo.ir.context import context
from dhlo.model import CompiledModel
from dhlo.pipeline import PASSES, run_passes
from dhlo.texts import read_module
from tests.sequences import PAGE, Pools, feed, of_eager
from tests.tensor_parallel import pretended, shard

C = torch.ops._c10d_functional
SIZE = 2


def exported(f: Callable[[torch.Tensor], Any], size: int = SIZE) -> ExportedProgram:
    class Program(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return f(x)

    with pretended(size):
        return export(Program(), (torch.randn(4, 6),), dynamic_shapes=({0: Dim("rows", max=100)},))


def together(size: int, f: Callable[[int, Any], Any], seconds: float = 20) -> list[Any]:
    """What `f(rank, process group)` gives or raises, in so many threads at once."""
    store, found = dist.HashStore(), [None] * size

    def one(rank: int) -> None:
        try:
            group = dist.ProcessGroupGloo(store, rank, size, datetime.timedelta(seconds=seconds))
            found[rank] = f(rank, group)
        except Exception as e:
            found[rank] = e

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return found


def all_kinds(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    n, w = x.shape[0], SIZE
    total = C.wait_tensor(C.all_reduce(x * 2, "sum", "0"))
    mean = C.wait_tensor(C.all_reduce(x.transpose(0, 1), "avg", "0"))
    product = C.wait_tensor(C.all_reduce(x, "product", "0"))
    every = C.wait_tensor(C.all_gather_into_tensor(x[:, 1:3], w, "0"))
    most = C.wait_tensor(C.reduce_scatter_tensor(torch.cat([x, -x]), "max", w, "0"))
    least = C.wait_tensor(C.all_reduce((x * 10).to(torch.int64), "min", "0"))
    last = C.wait_tensor(C.broadcast(x.exp(), 1, "0"))
    swapped = C.wait_tensor(C.all_to_all_single(torch.cat([x, x + 1]), [n] * w, [n] * w, "0"))
    return total, mean + 1, product, every, most, least, last, swapped


def of_all_kinds(xs: list[torch.Tensor], rank: int) -> tuple[torch.Tensor, ...]:
    """The same computed where all that each process has is at hand."""
    a, b = xs
    most = torch.maximum(torch.cat([a, -a]), torch.cat([b, -b]))
    n = len(a)
    return (
        (a + b) * 2,
        (a + b).transpose(0, 1) / 2 + 1,
        a * b,
        torch.cat([a[:, 1:3], b[:, 1:3]]),
        most[rank * n : rank * n + n],
        torch.minimum((a * 10).to(torch.int64), (b * 10).to(torch.int64)),
        b.exp(),
        torch.cat([a, b]) + rank,
    )


@pytest.fixture(scope="module")
def program() -> ExportedProgram:
    return exported(all_kinds)


@pytest.fixture(scope="module")
def model(program: ExportedProgram) -> CompiledModel:
    return dhlo.compile(program)


@pytest.fixture(scope="module")
def summing() -> CompiledModel:
    return dhlo.compile(exported(lambda x: C.wait_tensor(C.all_reduce(x, "sum", "0")) + 1))


# ---------------------------------------------------------------------------------------------------- what is computed
def test_every_operation(model: CompiledModel, program: ExportedProgram) -> None:
    imported = import_program(program)
    sizes, g = (1, 0, 5, 100), torch.Generator().manual_seed(0)
    given = {n: [torch.randn(n, 6, generator=g) for _ in range(SIZE)] for n in sizes}

    def one(rank: int, group: Any) -> list[Any]:
        mine = copy.copy(model)
        mine.bind_process_group(group)
        with imported.context:
            meant = [interp.run(imported.module, [given[n][rank]], {}, world=Communicator(group)) for n in sizes]
        return [
            (mine(given[n][rank]), mine.run((given[n][rank],), timeout=60), oracle) for n, oracle in zip(sizes, meant, strict=True)
        ]

    for rank, found in enumerate(together(SIZE, one)):
        assert not isinstance(found, Exception), found
        for n, (got, limited, oracle) in zip(sizes, found, strict=True):
            want = of_all_kinds(given[n], rank)
            torch.testing.assert_close(got, want)
            torch.testing.assert_close(limited, want)
            torch.testing.assert_close(tuple(oracle), want)


def test_groups_end_with_what_calls_them() -> None:
    """Their threads end when the last session does, and not when memory happens to be searched for cycles, or the process ends."""
    group = dist.ProcessGroupGloo(dist.HashStore(), 0, 1, datetime.timedelta(seconds=20))
    x, y, seen = torch.ones(3), torch.zeros(3), weakref.ref(group)
    world = Communicator(group)
    world.exchange("all_reduce", "0", x, y, how="sum", root=0, splits=[])
    session = world.native
    gc.disable()
    try:
        del group, world
        assert seen() is not None and torch.equal(x, y)
        del session
        assert seen() is None
    finally:
        gc.enable()


def test_dropping_groups_doesnt_wait_for_operations_that_were_given_up() -> None:
    x, y = torch.ones(3), torch.zeros(3)
    groups = together(2, lambda rank, group: group)
    world, seen = Communicator(groups[0]), weakref.ref(groups[0])
    with pytest.raises(DeadlineError):
        world.exchange("all_reduce", "0", x, y, how="sum", root=0, splits=[], timeout_ns=1)
    groups[0] = None
    del world
    assert seen() is not None  # else this waited
    groups[1].allreduce([x], c10d.AllreduceOptions()).wait()
    end = time.monotonic() + 20
    while seen() is not None and time.monotonic() < end:
        time.sleep(0.02)
    assert seen() is None


def test_rows_may_be_shared_unevenly() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        n = x.shape[0]
        return C.wait_tensor(C.all_to_all_single(x, [1, n - 1], [1, n - 1], "0"))

    compiled = dhlo.compile(exported(f))

    def one(rank: int, group: Any) -> Any:
        mine = copy.copy(compiled)
        mine.bind_process_group({"0": group})
        return mine(torch.full((2, 6), float(rank)))

    a, b = together(SIZE, one)
    assert a[:, 0].tolist() == b[:, 0].tolist() == [0.0, 1.0]
    with pytest.raises(ContractError, match="rows"):
        compiled.plan([[0, 6]])


def test_rows_that_cant_be_shared_are_refused() -> None:
    class Halves(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return C.wait_tensor(C.reduce_scatter_tensor(x, "avg", SIZE, "0"))

    with pretended(SIZE):
        compiled = dhlo.compile(export(Halves(), (torch.randn(8, 6),), dynamic_shapes=({0: Dim.DYNAMIC},)))
    assert compiled.plan([[10, 6]])["outputs"] == [("float32", (5, 6))]
    with pytest.raises(ContractError, match="2 processes must be able to share the rows evenly"):
        compiled.plan([[7, 6]])


def test_a_program_knows_its_groups(model: CompiledModel) -> None:
    assert "does collective operations in:\n  0: 2 processes" in model.signature
    assert model.plan([[7, 6]])["outputs"][3] == ("float32", (14, 2))  # plans take nobody else


def test_the_interpreter_is_alone_by_default() -> None:
    text = """func.func @main(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
        %0 = "dhlo.all_reduce"(%x) {group = "g", size = SIZE : i64, how = "sum"} : (tensor<2x3xf32>) -> tensor<2x3xf32>
        %1 = "dhlo.broadcast_from"(%0) {group = "g", size = 0 : i64, from_ = 0 : i64} : (tensor<2x3xf32>) -> tensor<2x3xf32>
        return %1 : tensor<2x3xf32>
    }"""
    x = torch.randn(2, 3)
    with context():
        assert torch.equal(interp.run(read_module(text.replace("SIZE", "1"), "test"), [x], {})[0], x)
        with pytest.raises(ContractError, match="'g' must have 4 processes, not 1"):
            interp.run(read_module(text.replace("SIZE", "4"), "test"), [x], {})


# ---------------------------------------------------------------------------------------------------- what passes leave alone
def test_operations_stay_in_order() -> None:
    """None is erased, merged with its equal or moved before another, whatever reads it first."""
    text = """func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
        %a = "dhlo.all_reduce"(%x) {group = "g", size = 2 : i64, how = "sum"} : (tensor<4xf32>) -> tensor<4xf32>
        %b = "dhlo.all_reduce"(%x) {group = "g", size = 2 : i64, how = "sum"} : (tensor<4xf32>) -> tensor<4xf32>
        %e = "dhlo.exp"(%y) : (tensor<4xf32>) -> tensor<4xf32>
        %c = "dhlo.all_reduce"(%e) {group = "h", size = 2 : i64, how = "max"} : (tensor<4xf32>) -> tensor<4xf32>
        %d = "dhlo.all_reduce"(%y) {group = "g", size = 2 : i64, how = "min"} : (tensor<4xf32>) -> tensor<4xf32>
        %n = "dhlo.neg"(%d) : (tensor<4xf32>) -> tensor<4xf32>
        %s = "dhlo.add"(%n, %b) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
        %w = "dhlo.broadcast_from"(%y) {group = "g", size = 2 : i64, from_ = 1 : i64} : (tensor<4xf32>) -> tensor<4xf32>
        return %s, %n : tensor<4xf32>, tensor<4xf32>
    }"""
    with context():
        module = read_module(text, "test")
        run_passes(module, {}, PASSES)
        main = module.body.operations[0].regions[0].blocks[0]
        found = [op for op in main.operations if op.operation.name in ("dhlo.all_reduce", "dhlo.broadcast_from")]
        how = [op.operation.attributes["how"].value for op in found[:-1]]
    assert how == ["sum", "sum", "max", "min"] and found[-1].operation.name == "dhlo.broadcast_from"


@pytest.mark.parametrize(
    ("op", "problem"),
    [
        ('"dhlo.all_reduce"(%x) {group = "g", size = 2 : i64, how = "xor"}', "no reduction"),
        ('"dhlo.all_reduce"(%x) {group = "", size = 2 : i64, how = "sum"}', "no group"),
        ('"dhlo.all_reduce"(%x) {group = "g", size = -1 : i64, how = "sum"}', "-1 processes"),
        ('"dhlo.all_gather"(%x) {group = "g", size = 0 : i64}', "0 processes"),
        ('"dhlo.reduce_scatter"(%x) {group = "g", size = 3 : i64, how = "sum"}', "evenly"),
        ('"dhlo.broadcast_from"(%x) {group = "g", size = 2 : i64, from_ = 2 : i64}', "no process 2"),
        ('"dhlo.all_to_all"(%x) {group = "g", size = 2 : i64, gives = ["1"], takes = ["2", "2"]}', "as many"),
    ],
)
def test_malformed_operations_are_refused(op: str, problem: str) -> None:
    body = f"%y = {op} : (tensor<4xf32>) -> tensor<4xf32> return %y : tensor<4xf32>"
    text = f"func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{ {body} }}"
    with context(), pytest.raises(CompileError, match=problem):
        read_module(text, "test")


# ---------------------------------------------------------------------------------------------------- what is refused
def test_unsupported_reductions_are_named() -> None:
    with pytest.raises(CompileError, match=r"'bxor' isn't supported[\s\S]*test_distributed.py:\d+[\s\S]*avg, sum"):
        dhlo.compile(exported(lambda x: C.all_reduce(x.to(torch.int32), "bxor", "0")))
    with pytest.raises(CompileError, match="no average of int64"):
        dhlo.compile(exported(lambda x: C.all_reduce(x.to(torch.int64), "avg", "0")))
    with pytest.raises(CompileError, match="'strangers', whose size isn't known"):
        dhlo.compile(exported(lambda x: C.all_reduce(x, "avg", "strangers")))


def test_groups_have_one_size() -> None:
    with pytest.raises(CompileError, match="'0' can't have 2 and 3 processes"):
        dhlo.compile(exported(lambda x: C.all_gather_into_tensor(C.all_gather_into_tensor(x, 2, "0"), 3, "0")))


def test_a_model_without_its_processes_is_refused(summing: CompiledModel) -> None:
    mine = copy.copy(summing)
    x = torch.ones(1, 6)
    for call in (mine.session, lambda: mine(x)):
        with pytest.raises(ContractError, match=r"process group '0', and the session has no communicator.*bind_process_group"):
            call()
    for groups, problem in (({"other": 1}, "expected a torch.distributed.ProcessGroup"), (7, "ProcessGroup")):
        with pytest.raises(TypeError, match=problem):
            mine.bind_process_group(groups)  # type: ignore[arg-type]
    with pytest.raises(ContractError, match="no process group '0'"):
        mine.bind_process_group()
    alone = dist.ProcessGroupGloo(dist.HashStore(), 0, 1, datetime.timedelta(seconds=5))
    with pytest.raises(ContractError, match="no process group '0': there are other"):
        mine.bind_process_group({"other": alone})
    again = pickle.loads(pickle.dumps(mine))
    again.bind_process_group(alone)  # any number of processes can sum
    assert torch.equal(again(x), x + 1)


def test_a_group_of_another_size_is_refused(model: CompiledModel) -> None:
    alone = dist.ProcessGroupGloo(dist.HashStore(), 0, 1, datetime.timedelta(seconds=5))
    with pytest.raises(ContractError, match="'0' must have 2 processes, as when it was exported, not 1"):
        copy.copy(model).bind_process_group(alone)


# ---------------------------------------------------------------------------------------------------- failures
def failing(model: CompiledModel, late: Callable[[CompiledModel], Any], seconds: float = 20) -> tuple[Any, Any]:
    """Process 1 runs `late` while 0 waits for it: what both say."""

    def one(rank: int, group: Any) -> Any:
        mine = copy.copy(model)
        mine.bind_process_group(group)
        return late(mine) if rank else mine(torch.ones(1, 6))

    first, second = together(SIZE, one, seconds)
    return first, second


def test_nobody_waits_for_ever(summing: CompiledModel) -> None:
    """A process that refuses its arguments takes no part; the other gives up when its group does."""
    first, second = failing(summing, lambda m: m(torch.ones(1, 7)), seconds=1)
    assert isinstance(second, ContractError)
    assert getattr(first, "status", None) == "host" and "all_reduce of process group '0' at" in str(first), first


def test_timeouts_and_cancellation_end_a_wait(summing: CompiledModel) -> None:
    x, done = torch.ones(1, 6), threading.Event()

    def one(rank: int, group: Any) -> Any:
        if rank:
            done.wait(20)
            return None
        mine = copy.copy(summing)
        mine.bind_process_group(group)
        found: list[Any] = []
        token = dhlo.CancelToken()
        for how in ({"timeout": 0.1}, {"cancel": token}, {}):
            if how:
                mine.bind_process_group(group)
            if "cancel" in how:
                threading.Timer(0.1, token.cancel).start()
            try:
                found.append(mine.run((x,), **how))
            except Exception as e:
                found.append(e)
        done.set()
        return found

    late, cancelled, after = together(SIZE, one)[0]
    assert isinstance(late, DeadlineError) and isinstance(cancelled, CancelledError)
    assert "out of step" in str(after) and getattr(after, "status", None) == "host"


def test_a_failed_operation_says_why(summing: CompiledModel) -> None:
    class Broken(dist.ProcessGroup):
        def __init__(self) -> None:
            super().__init__(0, 2)

        def allreduce(self, *_: Any) -> Any:
            raise RuntimeError("the cable is out")

    mine = copy.copy(summing)
    mine.bind_process_group(Broken())
    with pytest.raises(
        RuntimeError, match=r"all_reduce of process group '0' at .*: the communicator failed.*the cable is out"
    ) as e:
        mine(torch.ones(1, 6))
    assert str(e.value.__cause__) == "the cable is out"


def test_an_operation_that_ends_as_its_wait_does_has_not_failed() -> None:
    class Work:
        waits = 0

        def wait(self, *timeout: Any) -> None:
            self.waits += 1
            if timeout:
                raise RuntimeError("Operation timed out!")

        def is_completed(self) -> bool:
            return self.waits > 1

    work = Work()
    _wait(work, 0, lambda: False)
    assert work.waits == 3


# ---------------------------------------------------------------------------------------------------- sessions, entries, others
def test_entries_and_copies_of_sessions_do_operations(tmp_path: Path) -> None:
    class Counts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.total += C.wait_tensor(C.all_reduce(x.sum(0), "sum", "0"))
            return self.total * 1

    class Tells(Counts):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return C.wait_tensor(C.broadcast(self.total + x, 0, "0"))

    with pretended(SIZE):
        args, rows = (torch.zeros(2, 3),), ({0: Dim("rows")},)
        programs = {"counts": Counts(), "tells": Tells()}
        compiled = dhlo.compile({name: export(m, args, dynamic_shapes=rows) for name, m in programs.items()})
    assert compiled["tells"].process_groups == {"0": 2}

    def one(rank: int, group: Any) -> list[Any]:
        mine = copy.copy(compiled)
        mine.bind_process_group(group)
        session = mine.session()
        first = session["counts"](torch.full((2, 3), 1.0 + rank))
        with session.trace(tmp_path / f"{rank}.json"):
            told = session["tells"](torch.full((1, 3), 10.0 * rank))
        twin = session.copy()
        return [
            first[0].item(),
            told[0, 0].item(),
            twin["tells"](torch.ones(1, 3))[0, 0].item(),
            mine["tells"](torch.ones(1, 3))[0, 0].item(),
        ]

    assert together(SIZE, one) == [[6.0, 6.0, 7.0, 1.0]] * SIZE
    events = json.loads((tmp_path / "0.json").read_text())["traceEvents"]
    assert ["broadcast"] == [e["name"] for e in events if e.get("cat") == "collective"]


def test_operands_may_be_views_states_and_weights() -> None:
    """An operation that reads what is overwritten later reads it before; others read it afterwards."""

    def total(x: torch.Tensor) -> torch.Tensor:
        return C.wait_tensor(C.all_reduce(x, "sum", "0"))

    class Reads(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("rows", torch.arange(12.0).reshape(4, 3))
            self.weight = torch.nn.Parameter(torch.randn(3, 3), requires_grad=False)

        def forward(self, x: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, ...]:
            old = total(self.rows)
            self.rows.index_copy_(0, at, x)
            new, sums = total(self.rows[1:3]), total(x)
            return old, new, total(self.weight.t()), total(x[:, :1].expand(-1, 4)), total(x.t()[1:]), sums, sums, sums.view(-1)

    rows, given = {0: Dim("rows", min=1, max=4)}, [(torch.randn(n, 3), torch.randperm(4)[:n]) for n in (1, 2, 4)]
    model = Reads()
    with pretended(1):
        compiled = dhlo.compile(export(model, (torch.randn(2, 3), torch.tensor([1, 3])), dynamic_shapes=(rows, rows)))
    compiled.bind_process_group(dist.ProcessGroupGloo(dist.HashStore(), 0, 1, datetime.timedelta(seconds=5)))
    held = model.rows.clone()
    for x, at in given:
        old = held.clone()
        held[at] = x
        want = (old, held[1:3], model.weight.t(), x[:, :1].expand(-1, 4), x.t()[1:], x, x, x.reshape(-1))
        torch.testing.assert_close(compiled(x, at), want)


def test_torch_compile_takes_the_groups_of_the_process() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return fc.all_reduce(x * 2, "sum", dist.group.WORLD) + 1

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with torch.no_grad():
            assert torch.equal(torch.compile(f, backend="dhlo", dynamic=True)(torch.ones(5)), torch.full((5,), 3.0))
    finally:
        dist.destroy_process_group()
        torch.compiler.reset()


# ---------------------------------------------------------------------------------------------------- tensor parallelism
def llama() -> Any:
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=8,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).eval()


def processes(folder: Path, size: int) -> None:
    """A model's shards, each compiled here as a file of its own, run by processes that only load them."""
    model = llama()
    inputs = [(torch.randint(0, 96, (batch, length)),) for batch, length in ((1, 1), (2, 7), (3, 40), (5, 2))]
    torch.save(inputs, folder / "inputs.pt")
    for rank in range(size):
        with pretended(size, rank), exportable_attention():
            part = shard(model, rank, size)
            dynamic = ({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},)
            program = export(Logits(part), (torch.zeros(2, 5, dtype=torch.int64),), dynamic_shapes=dynamic)
            dhlo.compile(program).save(folder / f"rank{rank}.so")
    command = [sys.executable, "-m", "tests.tensor_parallel", str(folder)]
    running = [subprocess.Popen([*command, str(rank), str(size)], stderr=subprocess.PIPE, text=True) for rank in range(size)]
    for p in running:
        _, said = p.communicate(timeout=120)
        assert p.returncode == 0, said
    with torch.no_grad():
        want = [model(*args).logits for args in inputs]
    for rank in range(size):
        torch.testing.assert_close(torch.load(folder / f"outputs{rank}.pt"), want, rtol=1e-4, atol=2e-5)


class Logits(torch.nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, use_cache=False).logits


def steps_over_pools(size: int) -> None:
    """Steps over packed tokens of many sequences, each process with the pools of its heads."""
    model, compiled = llama(), []
    for rank in range(size):
        with pretended(size, rank):
            compiled.append(dhlo.compile(step_program(shard(model, rank, size)), pages={"keys*": PAGE, "values*": PAGE}))
    sequences = [torch.randint(0, 96, (n,)) for n in (61, 1, 5, 33)]

    def one(rank: int, group: Any) -> list[torch.Tensor]:
        compiled[rank].bind_process_group(group)
        return feed(Pools(compiled[rank], 12), sequences, random.Random(0))

    for logits in together(size, one):
        for got, want in zip(logits, of_eager(model, sequences), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=2e-5)


def test_shards_of_two_processes(tmp_path: Path) -> None:
    processes(tmp_path, 2)


@pytest.mark.slow
def test_shards_of_four_processes(tmp_path: Path) -> None:
    processes(tmp_path, 4)


def test_sharded_steps_over_pools() -> None:
    steps_over_pools(2)


@pytest.mark.slow
def test_steps_over_pools_of_four() -> None:
    steps_over_pools(4)


def test_tokens_of_a_step_arent_scattered() -> None:
    """Sequence parallelism deals out tokens, which are of many sequences where caches are pools."""

    class Scattered(torch.nn.Module):
        def forward(self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, ...]:
            k, v = torch.cat([keys, x], 2), torch.cat([values, x + 1], 2)
            y = torch.nn.functional.scaled_dot_product_attention(x, k, v)
            every = C.wait_tensor(C.all_gather_into_tensor(y.permute(2, 0, 1, 3).contiguous(), SIZE, "0"))
            return every, k, v

    x, past = torch.randn(2, 2, 3, 16), torch.randn(2, 2, 5, 16)
    cache = {0: Dim("b"), 2: Dim("past")}
    with pretended(SIZE):
        program = export(Scattered(), (x, past, past + 1), dynamic_shapes=({0: cache[0], 2: Dim("n")}, cache, cache))
    with pytest.raises(CompileError, match="tokens of a sequence meet in dhlo.all_gather, along dim 0"):
        dhlo.compile(program, pages={"keys": PAGE, "values": PAGE})
