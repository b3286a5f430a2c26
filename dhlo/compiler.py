"""From imported programs to object code: passes, lowering, host program, machine code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from dhlo.cache import compiler_version
from dhlo.callspec import CallSpec, write_call
from dhlo.codegen.backends.artifact import Artifact
from dhlo.codegen.backends.cpu.debug_info import with_line_tables
from dhlo.codegen.backends.cpu.descriptor import Code, Collective, Descriptor, Entry, State
from dhlo.codegen.backends.cpu.llvm import code_features, compile_common, compile_object, lower_common, lower_to_llvm_ir
from dhlo.codegen.families.constants import Constants, States
from dhlo.codegen.families.family import Family
from dhlo.codegen.families.kernel import Checks
from dhlo.codegen.families.lowering import Lowering
from dhlo.codegen.families.registry import lower_groups
from dhlo.codegen.families.schedule import schedule_launches
from dhlo.codegen.host.operations import emit_host_program
from dhlo.codegen.host.program import HOST_PROGRAM, HostProgram
from dhlo.codegen.host.shared import share_host_program
from dhlo.codegen.kernel_ir.abi import DTYPES
from dhlo.codegen.kernel_ir.builder import KernelModule
from dhlo.codegen.kernel_ir.split import Part, split_module
from dhlo.codegen.target import Target, parse_targets
from dhlo.custom import registered_fusions
from dhlo.describe import describe_arena, describe_groups, shaping_place
from dhlo.frontend.program import Program
from dhlo.ir.collectives import collectives_of, process_groups
from dhlo.ir.dialect import attr
from dhlo.ir.function import bodies, grown_dims, hints_of, updates_of, walk
from dhlo.ir.ops.control import Group
from dhlo.ir.ops.extern import Extern
from dhlo.ir.ops.host import Arena
from dhlo.ir.paging import paging_of
from dhlo.ir.places import Place, place_of
from dhlo.ir.symbols import is_static, spell
from dhlo.ir.types import TensorType, from_mlir
from dhlo.options import Options
from dhlo.passes.quantise_caches import check_caches, quantised_caches
from dhlo.passes.quantise_weights import check_weights, quantised_weights, without_report
from dhlo.passes.round_activations import check_activations, rounded_products
from dhlo.pipeline import BUFFERS, LOWER_GROUPS, PASSES, SCHEDULE_LAUNCHES, STAGES, Pass, Stage, run_passes, verify, with_custom
from dhlo.sharing import share_weights
from dhlo.source import code_digest, source_of, write_source

__all__ = [
    "Artifact",
    "PRODUCER",
    "compile_program",
    "compile_programs",
    "lower_programs",
    "plan_program",
    "plan_programs",
    "renumber",
]

PRODUCER = "dhlo 0.1.0"


def compile_program(
    program: Program, options: Options, progress: Callable[[str], None] = lambda _: None, targets: Sequence[Target] = ()
) -> Artifact:
    """Compiles an imported program for `targets`, by default those of the options. `progress` is told what is being done.

    Raises CompileError where there is no such target, or one lacks what the program needs.
    """
    return compile_programs({"": program}, options, progress, targets)


def compile_programs(
    programs: Mapping[str, Program],
    options: Options,
    progress: Callable[[str], None] = lambda _: None,
    targets: Sequence[Target] = (),
) -> Artifact:
    """Compiles programs, by name, as entries of one model: equal constants are stored once, states of one name are one, and so
    are equal kernels. Raises the errors of `compile_program`, and CompileError where a state differs between entries."""
    targets = targets or parse_targets(options.target)
    # Passes of users are Python, which no file holds.
    updatable = options.updatable and not options.passes and not registered_fusions()
    source = source_of(programs, targets, winograd=options.winograd) if updatable else None
    lowered = lower_programs(programs, options, targets, progress)
    entries, low = lowered.entries, lowered.low
    if source is not None:
        source.code, source.compiler = lowered.code_digest(), compiler_version()
    described = []
    for entry in entries:
        with entry.program.context:
            described.append(entry.described(options.name, options.debug_info))
    constants = low.constants
    states = [
        State(name, offset, size, init, DTYPES[str(low.weights[name].dtype)[6:]], list(low.weights[name].shape))
        for name, offset, size, init in low.states.rows
    ]
    descriptor = Descriptor(options.name, PRODUCER, [], described, constants.bytes, states, low.states.block_bytes)
    progress("generate code")
    debug_info = _places(entries) if options.debug_info else None
    llvm_ir, objects, parts = _objects(entries, targets, descriptor, debug_info)
    metadata, kept = [e.metadata for e in described], write_source(source) if source is not None else b""
    return Artifact(objects, low.constants, lowered.planned, metadata, llvm_ir, parts, kept)


@dataclass
class LoweredPrograms:
    """Programs with kernels, constants and host programs, before machine code is made of them."""

    entries: list[_Entry]

    @property
    def low(self) -> Lowering:
        return self.entries[0].levels[0].planned.low

    @property
    def constants(self) -> Constants:
        return self.low.constants

    @property
    def planned(self) -> str:
        """The planned modules."""
        return "\n".join([str(level.planned.module) for entry in self.entries for level in entry.levels])

    def code_digest(self) -> str:
        """Of all that machine code and its description are made of: where it is equal, constants of one go with code of another."""
        texts = [repr(self.low.states.rows), str(self.constants.bytes)]
        for entry in self.entries:
            with entry.program.context:
                texts += [repr(list(entry.checks)), *(without_report(level.planned.module) for level in entry.levels)]
        modules = [level.planned.low.module for level in self.entries[0].levels]
        for module in [*modules, *(e.shared[0] for e in self.entries if e.shared is not None)]:
            texts += sorted(s.text() for s in (*module.globals.values(), *module.functions.values()))
        return code_digest(texts)


def lower_programs(
    programs: Mapping[str, Program], options: Options, targets: Sequence[Target], progress: Callable[[str], None] = lambda _: None
) -> LoweredPrograms:
    """Runs all passes, lowers the groups and writes the host programs of a model's entries. Raises the errors of
    `compile_programs`."""
    planned = plan_programs(programs, options, progress, targets)
    progress("lower")
    entries = []
    for number, (name, levels) in enumerate(planned.items()):
        with programs[name].context:
            renumber(programs[name])
            symbol = f"{HOST_PROGRAM}.{number}" if number else HOST_PROGRAM
            hosts = [emit_host_program(x.low, x.module, x.block, x.groups, symbol) for x in levels]
            shared = share_host_program(hosts)
            entries.append(_Entry(name, programs[name], [_Lowered(*x) for x in zip(levels, hosts, strict=True)], shared))
    return LoweredPrograms(entries)


@dataclass
class Planned:
    """A program planned for one target: its module, with kernels for its groups, whose families know their numbers."""

    target: Target
    module: Any
    low: Lowering
    groups: list[Family]

    @property
    def block(self) -> Any:
        return bodies(self.module)[0]


@dataclass
class _Lowered:
    """A planned program and its host program."""

    planned: Planned
    host: HostProgram

    @property
    def segments(self) -> int:
        """Of the arena, and one of each of what came before."""
        return max((attr(op, "segment") for op in walk(self.planned.block) if isinstance(op, Arena)), default=0) + 2


@dataclass
class _Entry:
    """A program's code for all targets. `shared` is the module of the one host program of all of them, if there is one."""

    name: str
    program: Program
    levels: list[_Lowered]
    shared: tuple[KernelModule, Target] | None

    @property
    def checks(self) -> Checks:
        return self.levels[0].planned.low.checks

    def described(self, model: str, debug_info: bool) -> Entry:
        """The entry for the descriptor; what features its code needs isn't known yet."""
        program, planned = self.program, self.levels[0].planned
        updates, grows = updates_of(planned.block), grown_dims(planned.block)
        inputs = [(s.name, s.type) for s in program.inputs if s.type is not None]
        returns = [v for i, v in enumerate(list(planned.block.operations)[-1].operands) if i not in updates]
        outputs = _output_names(program, [from_mlir(v) for v in returns])
        paging, groups = paging_of(planned.block), process_groups(planned.block)
        collectives = [_collective(op) for op in collectives_of(planned.block)]
        updated = sorted((t, grows.get(t, -1)) for t in updates.values() if isinstance(t, int))
        metadata = {
            "name": model,
            "entry": self.name,
            "inputs": _values(program, inputs),
            "outputs": _values(program, outputs),
            "updated": [t for t, _ in updated],
            "paging": None if paging is None else asdict(paging),
            "process_groups": groups,
            **_metadata(program, self.levels, 1 if self.shared is not None else len(self.levels), debug_info),
        }
        code = [Code(x.host.fn.name, x.host.launches, x.segments) for x in self.levels]
        checks, symbols = planned.low.checks, _symbols(program)
        described = (inputs, outputs, checks, updated, program.user_names, symbols, paging, groups, collectives)
        return Entry(self.name, metadata, code, *described)


def _collective(op: Any) -> Collective:
    dtype = from_mlir(op.results[0]).dtype.code
    return Collective(op.what, attr(op, "group"), dtype, op.reduction, op.root, str(place_of(op)))


def plan_program(program: Program, options: Options, progress: Callable[[str], None], targets: Sequence[Target]) -> list[Planned]:
    """Runs all passes, and lowers the groups for each target. What doesn't depend on it is shared by all: equal constants and
    checks. The program's own module is the planned one of the first target afterwards."""
    return plan_programs({"": program}, options, progress, targets)[""]


def plan_programs(
    programs: Mapping[str, Program], options: Options, progress: Callable[[str], None], targets: Sequence[Target]
) -> dict[str, list[Planned]]:
    """The same of programs that are to be entries of one model, whose constants, states and kernels are one set."""

    def after(name: str, stage: Pass | Stage, module: Any) -> None:
        progress(f"pass {stage.name}" + (f" of {name}" if name else ""))
        if options.dump is not None:
            options.dump(f"{name}.{stage.name}" if name else stage.name, str(module))

    passes = with_custom(PASSES, (*registered_fusions(), *options.passes))
    for name, program in programs.items():
        with program.context:
            process_groups(bodies(program.module)[0])
            if options.dump is not None:
                after(name, STAGES[0], program.module)
            run_passes(program.module, program.weights, passes, partial(after, name), verified=True)
    modules = [program.module for program in programs.values()]
    check_weights(modules)
    check_activations(modules)
    check_caches({name: program.module for name, program in programs.items()})
    weights, initial = share_weights(programs)
    constants = Constants()
    states = States(initial, constants)
    kernels = [KernelModule(target) for target in targets]
    out = dict[str, list[Planned]]()
    for name, program in programs.items():
        checks = Checks()
        with program.context:
            modules = [program.module, *(program.module.operation.clone() for _ in targets[1:])]
            for target, module, made in zip(targets, modules, kernels, strict=True):
                low = Lowering(weights, made, states, constants, checks, winograd=options.winograd)
                families = lower_groups(low, bodies(module)[0])
                after(name, LOWER_GROUPS, module)
                run_passes(module, weights, BUFFERS, partial(after, name), verified=True)
                schedule_launches(low, bodies(module)[0], families)
                verify(module, f"stage {SCHEDULE_LAUNCHES.name} left an invalid module")
                after(name, SCHEDULE_LAUNCHES, module)
                out.setdefault(name, []).append(Planned(target, module, low, families))
    return out


def renumber(program: Program) -> None:
    """Results that are new content of state or of an argument are not outputs of the binary; the others move up."""
    updates = [m.index for m in program.mutations]

    def number(i: int) -> int:
        return i - sum(k < i for k in updates)

    program.outputs = [s if s.index is None else replace(s, index=number(s.index)) for s in program.outputs]


_Places = tuple[dict[str, Place], dict[str, list[Place]]]


def _places(entries: Sequence[_Entry]) -> _Places:
    """Where the first group that may launch each kernel comes from; and, by host program, the group of each launch site."""
    kernels, programs = dict[str, Place](), dict[str, list[Place]]()
    for entry in entries:
        with entry.program.context:
            for made in entry.levels:
                groups = [shaping_place(op) for op in walk(made.planned.block) if isinstance(op, Group)]
                sites = [Place()] * len(made.host.launches)
                for place, (first, end) in zip(groups, made.host.launches_of, strict=True):
                    sites[first:end] = [place] * (end - first)
                    for kernel in made.host.launches[first:end]:
                        kernels.setdefault(kernel, place)
                programs[made.host.symbol] = programs[made.host.fn.name] = sites
    return kernels, programs


def _objects(
    entries: Sequence[_Entry], targets: Sequence[Target], descriptor: Descriptor, debug_info: _Places | None
) -> tuple[list[str], list[bytes], list[Target]]:
    """LLVM IR and object code of every part and the target that it is for, made on two threads: MLIR and LLVM run without
    Python's lock. With `debug_info` instructions have lines of the user's source. The descriptor and its metadata, which are told
    what features the code of each target uses, are added to the first part."""
    modules = [level.planned.low.module for level in entries[0].levels]  # all entries' kernels and host programs
    parts = [(part, target) for module, target in zip(modules, targets, strict=True) for part in split_module(module, 4)]
    parts += [(Part(e.shared[0].text()), e.shared[1]) for e in entries if e.shared is not None]
    for n, target in enumerate(targets):
        used = {f for part, t in parts if t is target for f in code_features(part.text, t)}
        features = ",".join([*target.features, *sorted(used - set(target.features))])
        for entry in descriptor.entries:
            entry.metadata["levels"][n]["cpu_features"] = features
        descriptor.levels.append((target.name, features))

    def make(part: Part, target: Target) -> tuple[str, bytes]:
        text = (lower_common if part.common else lower_to_llvm_ir)(part.text, target)
        if debug_info is not None:
            text = with_line_tables(text, *debug_info, PRODUCER)
        if part is parts[0][0]:
            text += descriptor.text(text)
        return text, (compile_common if part.common else compile_object)(text, target)

    made_for = [target for _, target in parts]
    with ThreadPoolExecutor(2) as pool:
        texts, objects = zip(*pool.map(make, *zip(*parts, strict=True)), strict=True)
    return list(texts), list(objects), made_for


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


def _symbols(program: Program) -> dict[str, tuple[int | None, int | None]]:
    """Ranges of the program's sizes, by the user's names."""
    return {program.user_names.get(n, n): (r.lo, r.hi) for n, r in program.symbols.items()}


def _metadata(program: Program, made: Sequence[_Lowered], host_programs: int, debug_info: bool) -> dict[str, Any]:
    """What tools show of a model. Of a group: its arithmetic and bytes; of each level: the kernels, the launches of each group as
    [first, end), and the arena."""
    first = made[0].planned
    low, groups = first.low, [op for op in walk(first.block) if isinstance(op, Group)]
    call = CallSpec.of(program.inputs, program.outputs, program.in_spec, program.out_spec, program.mutations)
    return {
        "producer": PRODUCER,
        "call": write_call(call),
        "constants_bytes": low.constants.bytes,
        "state_bytes": low.states.block_bytes,
        "externs": {
            attr(op, "symbol"): attr(op, "library")
            for g in groups
            for op in g.operation.regions[0].blocks[0].operations
            if isinstance(op, Extern)
        },
        "hints": {program.user_names.get(n, n): value for n, value in hints_of(first.module).items()},
        "symbols": {name: list(bounds) for name, bounds in _symbols(program).items()},
        "states": {
            n: {"dtype": str(low.weights[n].dtype)[6:], "shape": list(low.weights[n].shape), "bytes": size}
            for n, _, size, _ in low.states.rows
        },
        "checks": [{"kind": k.lower(), "input": i, "text": t} for k, i, t in low.checks],
        "quantised": quantised_weights(first.module),
        "rounded_products": rounded_products(first.module),
        "caches": quantised_caches(first.module),
        "host_programs": host_programs,
        "debug_info": debug_info,
        **describe_groups(first.block, program.user_names, list(zip(*(m.planned.groups for m in made), strict=True))),
        "levels": [
            {
                "name": m.planned.target.name,
                "cpu_features": "",  # known when there is code
                "launches": list(m.host.launches),
                "groups": m.host.launches_of,
                **describe_arena(m.planned.block, program.user_names),
            }
            for m in made
        ],
    }
