"""What a model file says of its groups and its arena, for tools that look at it without running it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dhlo.codegen.families.family import Family
from dhlo.ir.dialect import attr, defining
from dhlo.ir.function import argument_names, walk
from dhlo.ir.memory import buffers_of, memory_of
from dhlo.ir.ops.control import Group
from dhlo.ir.ops.host import Alloc, Arrange, Packed
from dhlo.ir.ops.movement import State, Weight
from dhlo.ir.places import Place, place_of
from dhlo.ir.symbols import SYMBOL_NAME, parse, spell
from dhlo.ir.types import from_mlir
from dhlo.passes.assign_buffers import steps

__all__ = ["describe_arena", "describe_groups", "shaping_place"]


def _shaping(group: Any) -> Any:
    """The op that a group is best known by: its last that isn't computed where it is read."""
    ops = list(group.operation.regions[0].blocks[0].operations)[:-1]
    return next((x for x in reversed(ops) if not x.kind.pullable), ops[-1])


def shaping_place(group: Any) -> Place:
    """Where that op comes from."""
    return place_of(_shaping(group))


def describe_groups(block: Any, names: Mapping[str, str], families: Sequence[Sequence[Family]]) -> dict[str, Any]:
    """The `sources` (lines of the user's files) and `groups` of a planned function.

    Of a group: its anchor and ops with the number of each one's line (-1: unknown), the module and the line that it is best known
    by, its step, what it reads (groups by number; constants, states and arguments by name), results, arithmetic and bytes.
    `names` are the user's of symbols, `families` the groups' by number, one for each target.
    """
    sources: dict[str, int] = {}
    groups = [op for op in walk(block) if isinstance(op, Group)]
    step_of = {op.operation: n for n, op in enumerate(steps(block))}
    number_of = {op.operation: n for n, op in enumerate(groups)}
    arguments = list(block.arguments)
    spelled = argument_names(block)

    def line(op: Any) -> int:
        place = place_of(op)
        return sources.setdefault(str(place), len(sources)) if place.file else -1

    def reads(op: Any, ops: Sequence[Any]) -> list[int | str]:
        inside, found = {x.operation for x in ops}, dict[int | str, None]()
        work = [v for x in ops for v in x.operands]
        while work:
            v = work.pop(0)
            made = defining(v)
            if made is None:
                found |= {f"argument {spelled[arguments.index(v)]}": None} if v in arguments else {}
            elif isinstance(made, Group):
                found |= {number_of[made.operation]: None}
            elif isinstance(made, (Weight, State, Packed)):
                found |= {f"{'state' if isinstance(made, State) else 'constant'} {attr(made, 'name_')}": None}
            elif made.operation not in inside and made.kind.pullable:
                work += made.operands
        return list(found)

    def described(op: Any) -> dict[str, Any]:
        ops = list(op.operation.regions[0].blocks[0].operations)[:-1]
        shaping = _shaping(op)
        made = families[attr(op, "number")]
        cost = made[0].cost()
        variants = {kernel: flops for f in made for kernel, flops in f.cost().variants.items()}
        return {
            "anchor": attr(op, "anchor"),
            "module": place_of(shaping).module,
            "source": line(shaping),
            "step": step_of[op.operation],
            "ops": [x.OPERATION_NAME for x in ops],
            "lines": [line(x) for x in ops],
            "reads": reads(op, ops),
            "results": [SYMBOL_NAME.sub(lambda m: names.get(m[0], m[0]), str(from_mlir(v))) for v in op.results],
            "flops": spell(cost.flops, names),
            "bytes": spell(cost.bytes, names),
            "weight_bytes": spell(cost.weight_bytes, names),
            "variants": {kernel: spell(flops, names) for kernel, flops in variants.items()},
        }

    return {"groups": [described(op) for op in groups], "sources": list(sources)}


def describe_arena(block: Any, names: Mapping[str, str]) -> dict[str, Any]:
    """The `arena` of a planned function: its buffers by number, each in a segment, with the steps that it lives in and the group
    whose `results` or `workspace` it holds (-1: an op's that isn't a group's); and the `arrangements` that a call chooses from, of
    the segment's buffers in an order in which each lies behind those before it that live at the same time."""
    owners: dict[int, tuple[int, str]] = {}
    for number, op in enumerate(x for x in walk(block) if isinstance(x, Group)):
        places = [memory_of(v) for v in op.results]
        owners |= {p["buffer"]: (number, "results") for p in places if "buffer" in p}
        owners |= {b: (number, "workspace") for b in buffers_of(op, "workspace_memory")}
    buffers: dict[int, dict[str, Any]] = {}
    for op in walk(block):
        if isinstance(op, Alloc):
            number = attr(op, "buffer")
            group, use = owners.get(number, (-1, "results"))
            buffers[number] = {
                "name": attr(op, "name_"),
                "bytes": spell(parse(attr(op, "bytes")), names),
                "first": attr(op, "first"),
                "last": attr(op, "last"),
                "segment": attr(op, "segment"),
                "group": group,
                "use": use,
            }
    return {
        "arena": [buffers[n] for n in sorted(buffers)],
        "arrangements": [
            {"segment": attr(op, "segment"), "order": attr(op, "order")} for op in walk(block) if isinstance(op, Arrange)
        ],
    }
