"""The fusion pass: gathers ops into `dhlo.group`s, each of which becomes one kernel (or one family's launches).

Works on proven shape relations only. Anchors (reductions, products, attention, convolutions) collect the elementwise work after
them; everything whose elements can be computed on demand is pulled into its consumers, or becomes a loop nest of its own where
that would repeat too much work. What a group stores is what others read.
"""

from __future__ import annotations

from dhlo.ir.dialect import Kind
from dhlo.ir.handles import Block, Module
from dhlo.ir.ops.control import new_symbols
from dhlo.ir.symbols import symbols_of
from dhlo.ir.types import from_mlir
from dhlo.passes.fuse.epilogues import grow_epilogues
from dhlo.passes.fuse.graph import Graph, kind_of
from dhlo.passes.fuse.groups import build_groups
from dhlo.passes.fuse.loops import make_loops
from dhlo.passes.fuse.reductions import grow_reductions

__all__ = ["fuse"]


def fuse(module: Module) -> None:
    """Rewrites every function (and the regions of control-flow ops) of the module into groups."""
    for f in module.body.operations:
        for block in f.operation.regions[0].blocks:
            _fuse_block(block, {s for v in block.arguments for e in from_mlir(v).shape for s in symbols_of(e)})


def _fuse_block(block: Block, known: set[str]) -> None:
    """`known` are the symbols that have a value where the block begins."""
    defined = set(known)
    for op in list(block.operations):
        if kind_of(op) is Kind.CONTROL:
            for region in op.regions:
                for inner in region.blocks:
                    _fuse_block(inner, defined)
        defined |= set(new_symbols(op, defined))
    g = Graph(block, known)
    grow_epilogues(g)
    grow_reductions(g)
    make_loops(g)
    build_groups(g, block)
