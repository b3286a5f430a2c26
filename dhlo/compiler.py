"""From an imported program to object code: passes, lowering, host program, machine code."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from dhlo.callspec import CallSpec, write_call
from dhlo.codegen.backends.artifact import Artifact
from dhlo.codegen.backends.cpu.descriptor import Descriptor
from dhlo.codegen.backends.cpu.llvm import code_features, compile_object, lower_to_llvm_ir
from dhlo.codegen.families.family import Family
from dhlo.codegen.families.lowering import Lowering
from dhlo.codegen.families.registry import lower_group
from dhlo.codegen.host.contract import Argument, Contract
from dhlo.codegen.host.layout import lay_out, walk
from dhlo.codegen.host.program import HostProgram
from dhlo.codegen.kernel_ir.split import split_module
from dhlo.codegen.target import Target, parse_target
from dhlo.frontend.growing import grown_dims
from dhlo.frontend.program import Program
from dhlo.ir.dialect import attr
from dhlo.ir.ops.control import Group
from dhlo.ir.ops.extern import Extern
from dhlo.ir.symbols import is_static, spell
from dhlo.ir.types import TensorType, from_mlir
from dhlo.options import Options
from dhlo.passes.separate_state import separate_state
from dhlo.pipeline import PASSES, Pass, run_passes
from dhlo.shape_infer.cost import group_cost

__all__ = ["Artifact", "PRODUCER", "compile_program", "renumber"]

PRODUCER = "dhlo 0.1.0"


def compile_program(
    program: Program, options: Options, progress: Callable[[str], None] = lambda _: None, target: Target | None = None
) -> Artifact:
    """Compiles an imported program for `target`, by default that of the options. `progress` is told what is being done.

    Raises CompileError where there is no such target, or it lacks what the program needs.
    """
    target = target or parse_target(options.target)
    with program.context:

        def after(p: Pass, module: Any) -> None:
            progress(f"pass {p.name}")
            if options.dump is not None:
                options.dump(p.name, str(module))

        states = [m.target for m in program.mutations if m.kind == "buffer"]
        updates = _updates(program)
        separate_state(program.module, updates)
        run_passes(program.module, program.weights, PASSES, after)
        progress("lower")
        main = program.module.body.operations[0]
        block = main.operation.regions[0].blocks[0]
        low = Lowering(program.weights, target, {n: program.weights[n] for n in states})
        steps = {op.operation: _Sited(lower_group(low, op)) for op in walk(block) if isinstance(op, Group)}
        ranges = {n: (r.lo, r.hi) for n, r in program.symbols.items()}
        layout = lay_out(block, steps, ranges, updates)
        renumber(program)
        names = [s.name for s in program.inputs if s.type is not None]
        types = [s.type for s in program.inputs if s.type is not None]
        grows = grown_dims(block)
        args = [Argument(n, t, grows.get(k), f"cap{k}") for k, (n, t) in enumerate(zip(names, types, strict=True))]
        returns = [v for i, v in enumerate(list(block.operations)[-1].operands) if i not in updates]
        contract = Contract(args, ranges, low.checks, program.user_names)
        host = HostProgram(low, args, list(block.arguments), contract, layout, steps, returns)
        host.emit_run(block)
        outputs = _output_names(program, [from_mlir(v) for v in returns])
        inputs = list(zip(names, types, strict=True))
        metadata = {
            "name": options.name,
            "inputs": _values(program, inputs),
            "outputs": _values(program, outputs),
            **_metadata(program, block, layout, low, steps),
        }
        descriptor = Descriptor(
            options.name,
            PRODUCER,
            metadata,
            inputs,
            outputs,
            low.checks,
            layout.launches,
            low.constants.bytes,
            max(s for s, _ in layout.plans) + 2,
            low.states.rows,
            low.states.block_bytes,
            updated=sorted((t, grows.get(t, -1)) for t in updates.values() if isinstance(t, int)),
            names=program.user_names,
        )
        planned = str(program.module)
    progress("generate code")
    llvm_ir, objects = _objects(low, descriptor, target)
    return Artifact(objects, low.constants, planned, metadata, llvm_ir, target)


def renumber(program: Program) -> None:
    """Results that are new content of state or of an argument are not outputs of the binary; the others move up."""
    updates = [m.index for m in program.mutations]

    def number(i: int) -> int:
        return i - sum(k < i for k in updates)

    program.outputs = [s if s.index is None else replace(s, index=number(s.index)) for s in program.outputs]


def _updates(program: Program) -> dict[int, str | int]:
    """By result number: the state, or the number of the argument, whose new content it is."""
    arguments = {s.name: k for k, s in enumerate(s for s in program.inputs if s.type is not None)}
    return {m.index: m.target if m.kind == "buffer" else arguments[m.target] for m in program.mutations}


class _Sited:
    """A group's family that remembers which of the host program's launches are its own."""

    def __init__(self, family: Family) -> None:
        self._family, self.launches = family, [0, 0]

    @property
    def workspace(self) -> Any:
        return self._family.workspace

    def emit(self, host: HostProgram) -> None:
        first = len(host.layout.launches)
        self._family.emit_launch(host)
        self.launches = [first, len(host.layout.launches)]


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
            "dtype": t.dtype.torch_name,
            "sizes": [int(s) if is_static(s) else -1 for s in t.shape],
            "dims": [spell(s, program.user_names) for s in t.shape],
        }
        for n, t in values
    ]


def _metadata(program: Program, block: Any, layout: Any, low: Lowering, steps: dict[Any, _Sited]) -> dict[str, Any]:
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
                    "launches": steps[op.operation].launches,
                }
            )
    call = CallSpec.of(program.inputs, program.outputs, program.in_spec, program.out_spec, program.mutations)
    return {
        "producer": PRODUCER,
        "call": write_call(call),
        "launches": list(layout.launches),
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
            {"name": b.name, "bytes": str(b.bytes), "first": b.first, "last": b.last}
            for _, plan in layout.plans
            for b in plan.buffers
        ],
    }
