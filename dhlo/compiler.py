"""From an imported program to object code: passes, lowering, host program, machine code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dhlo.cache import StoredConstants
from dhlo.callspec import CallSpec, updates_of, write_call
from dhlo.codegen.backends.cpu.descriptor import Descriptor
from dhlo.codegen.backends.cpu.llvm import code_features, compile_object, lower_to_llvm_ir
from dhlo.codegen.families.constants import Constants
from dhlo.codegen.families.family import Family
from dhlo.codegen.families.lowering import Lowering
from dhlo.codegen.families.registry import lower_groups
from dhlo.codegen.host.operations import emit_host_program
from dhlo.codegen.host.program import HostProgram
from dhlo.codegen.kernel_ir.split import split_module
from dhlo.codegen.target import Target, parse_target
from dhlo.frontend.program import Program
from dhlo.ir.dialect import attr
from dhlo.ir.function import bodies, grown_dims, walk
from dhlo.ir.function import updates_of as updates_in
from dhlo.ir.ops.control import Group
from dhlo.ir.ops.extern import Extern
from dhlo.ir.ops.host import Alloc, Arena
from dhlo.ir.symbols import is_static, spell
from dhlo.ir.types import TensorType, from_mlir
from dhlo.options import Options
from dhlo.pipeline import BUFFERS, LOWER_GROUPS, PASSES, Pass, Stage, run_passes
from dhlo.shape_infer.cost import group_cost

__all__ = ["Artifact", "PRODUCER", "compile_program", "plan_program", "renumber"]

PRODUCER = "dhlo 0.1.0"


@dataclass
class Artifact:
    """A compiled program: object files, the constants they use, and texts for looking at."""

    objects: list[bytes]
    constants: Constants | StoredConstants
    planned: str  # the planned module
    metadata: dict[str, Any]
    llvm_ir: list[str]  # what the objects were made of, before optimisation
    target: Target

    @property
    def code_bytes(self) -> int:
        return sum(map(len, self.objects))


def compile_program(
    program: Program, options: Options, progress: Callable[[str], None] = lambda _: None, target: Target | None = None
) -> Artifact:
    """Compiles an imported program for `target`, by default that of the options. `progress` is told what is being done.

    Raises CompileError where there is no such target, or it lacks what the program needs.
    """
    target = target or parse_target(options.target)
    low, families = plan_program(program, options, progress, target)
    with program.context, _deep_recursion(program.module):
        progress("lower")
        block = bodies(program.module)[0]
        steps = [_Sited(family) for family in families]
        renumber(program)
        host = emit_host_program(low, program.module, block, steps)
        updates, grows = updates_in(block), grown_dims(block)
        names = [s.name for s in program.inputs if s.type is not None]
        types = [s.type for s in program.inputs if s.type is not None]
        returns = [v for i, v in enumerate(list(block.operations)[-1].operands) if i not in updates]
        outputs = _output_names(program, [from_mlir(v) for v in returns])
        inputs = list(zip(names, types, strict=True))
        metadata = {
            "name": options.name,
            "inputs": _values(program, inputs),
            "outputs": _values(program, outputs),
            **_metadata(program, block, host.launches, low, steps),
        }
        descriptor = Descriptor(
            options.name,
            PRODUCER,
            metadata,
            inputs,
            outputs,
            low.checks,
            host.launches,
            low.constants.bytes,
            max((attr(op, "segment") for op in walk(block) if isinstance(op, Arena)), default=0) + 2,
            low.states.rows,
            low.states.block_bytes,
            updated=sorted((t, grows.get(t, -1)) for t in updates.values() if isinstance(t, int)),
            names=program.user_names,
        )
        planned = str(program.module)
    progress("generate code")
    llvm_ir, objects = _objects(low, descriptor, target)
    return Artifact(objects, low.constants, planned, metadata, llvm_ir, target)


def plan_program(
    program: Program, options: Options, progress: Callable[[str], None], target: Target
) -> tuple[Lowering, list[Family]]:
    """Runs all passes, and lowers the groups for `target`: the program's module is the planned one afterwards. Returns the kernels
    and the groups' families, by number."""

    def after(stage: Pass | Stage, module: Any) -> None:
        progress(f"pass {stage.name}")
        if options.dump is not None:
            options.dump(stage.name, str(module))

    with program.context, _deep_recursion(program.module):
        run_passes(program.module, program.weights, PASSES, after)
        states = [m.target for m in program.mutations if m.kind == "buffer"]
        low = Lowering(program.weights, target, {n: program.weights[n] for n in states})
        families = lower_groups(low, bodies(program.module)[0])
        after(LOWER_GROUPS, program.module)
        run_passes(program.module, program.weights, BUFFERS, after)
    return low, families


def renumber(program: Program) -> None:
    """Results that are new content of state or of an argument are not outputs of the binary; the others move up."""
    updates = [m.index for m in program.mutations]

    def number(i: int) -> int:
        return i - sum(k < i for k in updates)

    program.outputs = [s if s.index is None else replace(s, index=number(s.index)) for s in program.outputs]


@contextmanager
def _deep_recursion(module: Any) -> Iterator[None]:
    """Values are computed by recursion over what they are made of: room for the longest chain that the module can hold."""
    ops = sum(1 for f in module.body.operations for block in f.operation.regions[0].blocks for _ in block.operations)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, 1000 + 20 * ops))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


class _Sited:
    """A group's family that remembers which of the host program's launches are its own."""

    def __init__(self, family: Family) -> None:
        self._family, self.launches = family, [0, 0]

    @property
    def workspace(self) -> Any:
        return self._family.workspace

    def emit(self, host: HostProgram) -> None:
        first = len(host.launches)
        self._family.emit_launch(host)
        self.launches = [first, len(host.launches)]


def _objects(low: Lowering, descriptor: Descriptor, target: Target) -> tuple[list[str], list[bytes]]:
    """LLVM IR and object code of every part, made on two threads: MLIR and LLVM run without Python's lock. The descriptor, which
    is told what features the code uses, is added to the first part."""
    with ThreadPoolExecutor(2) as pool:
        texts = list(pool.map(partial(lower_to_llvm_ir, target=target), split_module(low.module, 4)))
        used = {f for text in texts for f in code_features(text, target)}
        descriptor.metadata["cpu_features"] = ",".join([*target.features, *sorted(used - set(target.features))])
        texts[0] += descriptor.text()
        return texts, list(pool.map(partial(compile_object, target=target), texts))


def _output_names(program: Program, types: list[TensorType]) -> list[tuple[str, TensorType]]:
    names = {s.index: s.name for s in program.outputs if s.index is not None}
    return [(names.get(i, f"output{i}"), t) for i, t in enumerate(types)]


def _values(program: Program, values: list[tuple[str, TensorType]]) -> list[dict[str, Any]]:
    """Inputs or outputs as the runtime describes them."""
    return [
        {
            "name": n,
            "dtype": str(t.dtype.torch).removeprefix("torch."),
            "sizes": [int(s) if is_static(s) else -1 for s in t.shape],
            "dims": [spell(s, program.user_names) for s in t.shape],
        }
        for n, t in values
    ]


def _metadata(program: Program, block: Any, launches: list[str], low: Lowering, steps: list[_Sited]) -> dict[str, Any]:
    """What tools show of a model; of a group also its arithmetic and bytes and its launches, as [first, end)."""
    groups = []
    for op in walk(block):
        if isinstance(op, Group):
            ops = [x.OPERATION_NAME for x in op.operation.regions[0].blocks[0].operations][:-1]
            cost = group_cost(op)
            groups.append(
                {
                    "anchor": attr(op, "anchor"),
                    "ops": ops,
                    "results": [str(from_mlir(v)) for v in op.results],
                    "flops": spell(cost.flops, program.user_names),
                    "bytes": spell(cost.bytes, program.user_names),
                    "weight_bytes": spell(cost.weight_bytes, program.user_names),
                    "launches": steps[attr(op, "number")].launches,
                }
            )
    updates = updates_of(program.inputs, program.mutations)
    call = CallSpec(program.inputs, program.outputs, program.in_spec, program.out_spec, updates)
    return {
        "producer": PRODUCER,
        "call": write_call(call),
        "launches": list(launches),
        "constants_bytes": low.constants.bytes,
        "state_bytes": low.states.block_bytes,
        "externs": {
            attr(op, "symbol"): attr(op, "library")
            for g in walk(block)
            if isinstance(g, Group)
            for op in g.operation.regions[0].blocks[0].operations
            if isinstance(op, Extern)
        },
        "symbols": {program.user_names.get(n, n): [r.lo, r.hi] for n, r in program.symbols.items()},
        "states": {
            n: {"dtype": str(low.weights[n].dtype)[6:], "shape": list(low.weights[n].shape), "bytes": size}
            for n, _, size, _ in low.states.rows
        },
        "checks": [{"kind": k.lower(), "input": i, "text": t} for k, i, t in low.checks],
        "groups": groups,
        "arena": [
            {"name": attr(op, "name_"), "bytes": attr(op, "bytes"), "first": attr(op, "first"), "last": attr(op, "last")}
            for op in walk(block)
            if isinstance(op, Alloc)
        ],
    }
