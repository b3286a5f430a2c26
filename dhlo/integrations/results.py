"""What a captured graph returns: what its program computes, and what is a view of that or of an argument."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dhlo.frontend.compat import aten
from dhlo.frontend.functionalize import shares_storage
from dhlo.integrations.internals import statically_known_true

__all__ = ["Result", "Results", "Returned"]


@dataclass(frozen=True)
class Result:
    """Where a result of the graph comes from: number `index` of what the program returns, or of the views, or else `constant`."""

    kind: str
    index: int = 0
    constant: Any = None


@dataclass(frozen=True)
class Returned:
    """A node that the program returns: `order` are its dims from the outermost in memory to the innermost, where eager doesn't have
    it row-major. So the program returns it permuted, and is row-major as all its results are."""

    node: Any
    order: list[int] | None


class Results:
    """How a graph's results are made: `of_graph` says where each comes from, the program returns `returned`, and `views` (None if
    there are none) makes the other ones of the arguments, followed by what the program returned.

    Results are views of arguments, and of one another, where eager's are. A result that is the only one in its memory has eager's
    strides if these are dense.
    """

    def __init__(self, gm: torch.fx.GraphModule, placeholders: Sequence[Any], new_content: Mapping[Any, Any]) -> None:
        """`new_content`: nodes of the final `copy_` with the placeholders that they change."""
        self._gm, self._placeholders, self._new_content = gm, placeholders, new_content
        results: Any = gm.graph.output_node().args[0]
        own = self._own(results)
        roots = self._roots([x for x in own if isinstance(x.meta["val"], torch.Tensor)])
        self.of_graph: list[Result] = []
        returned, viewed = dict[Any, Returned](), list[Any]()
        for x in results:
            if not isinstance(x, torch.fx.Node):
                self.of_graph.append(Result("constant", constant=x))
                continue
            if x in own:
                root = roots.get(x, x)
                made = returned.setdefault(root, Returned(root, _order(root.meta["val"])))
                if x is root and made.order is None:
                    self.of_graph.append(Result("program", list(returned).index(root)))
                    continue
            self.of_graph.append(Result("views", len(viewed)))
            viewed.append(x)
        self.returned = list(returned.values())
        self.views = self._made(viewed) if viewed else None

    def _own(self, results: Sequence[Any]) -> dict[Any, None]:
        """The results that the program makes."""
        bases = [n.meta["val"] for n in (*self._placeholders, *self._new_content) if _has_memory(n.meta["val"])]
        nodes = [x for x in results if isinstance(x, torch.fx.Node)]
        return dict.fromkeys(
            x
            for x in nodes
            if (
                not any(shares_storage(x.meta["val"], base) for base in bases)
                if _has_memory(x.meta["val"])
                else x not in self._placeholders
            )
        )

    def _roots(self, nodes: Sequence[Any]) -> dict[Any, Any]:
        """For those that share memory with others of them: the node whose memory it is, of which they can be made as views."""
        groups: dict[int, list[Any]] = {}
        for x in nodes:
            if _has_memory(x.meta["val"]):
                groups.setdefault(x.meta["val"].untyped_storage()._cdata, []).append(x)
        roots: dict[Any, Any] = {}
        for group in groups.values():
            root = _root(group[0]) if len(group) > 1 else None
            if root is not None and _has_dense_strides(root.meta["val"]) and all(self._is_view(x, root) for x in group):
                roots |= dict.fromkeys(group, root)
        return roots

    def _is_view(self, x: Any, root: Any) -> bool:
        """Is it made of the root alone, with sizes, but without other tensors?"""
        cone = _cone([x], {root, *self._placeholders})
        tensors = [n for n in cone if isinstance(n.meta.get("val"), torch.Tensor)]
        return _root(x) is root and all(_has_memory(n.meta["val"]) and _root(n) is root for n in tensors)

    def _made(self, outputs: Sequence[Any]) -> torch.fx.GraphModule:
        graph = torch.fx.Graph()
        known = {n: graph.placeholder(n.name) for n in self._placeholders}
        known |= {r.node: graph.placeholder(f"returned_{i}") for i, r in enumerate(self.returned)}
        for r in self.returned:
            if r.order is not None:
                inverse = sorted(range(len(r.order)), key=r.order.__getitem__)
                known[r.node] = graph.call_function(aten.permute.default, (known[r.node], inverse))
        needed = _cone(outputs, {*known, *self._new_content})
        for n in self._gm.graph.nodes:
            if n in self._new_content:
                known[n] = known[self._new_content[n]]
            elif n in needed:
                known[n] = graph.node_copy(n, known.__getitem__)
        graph.output([known[n] for n in outputs])
        return torch.fx.GraphModule(self._gm, graph)


def _cone(outputs: Sequence[Any], known: Collection[Any]) -> set[Any]:
    """The nodes that these are made of, down to those that are known."""
    cone, queue = set[Any](), list(outputs)
    while queue:
        n = queue.pop()
        if n not in cone and n not in known:
            cone.add(n)
            queue += n.all_input_nodes
    return cone


def _root(n: Any) -> Any:
    """The node that allocated a tensor's memory."""
    while True:
        makers = n.args[0].all_input_nodes if n.target is operator.getitem else n.all_input_nodes
        bases = [m for m in makers if _has_memory(m.meta.get("val")) and shares_storage(n.meta["val"], m.meta["val"])]
        if not bases:
            return n
        n = bases[0]


def _has_memory(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.layout == torch.strided


def _order(x: Any) -> list[int] | None:
    """The dims from the outermost in memory to the innermost, of a dense tensor that isn't row-major; else None."""
    if not _has_memory(x) or _row_major(x.shape, x.stride()):
        return None
    strides: list[Any] = [s if isinstance(s, int) else s.node.hint for s in x.stride()]
    if None in strides:
        return None
    order = sorted(range(x.dim()), key=lambda dim: -strides[dim])
    return order if _row_major([x.shape[d] for d in order], [x.stride()[d] for d in order]) else None


def _has_dense_strides(x: Any) -> bool:
    return _row_major(x.shape, x.stride()) or _order(x) is not None


def _row_major(sizes: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Are the strides those of a dense row-major tensor, at all sizes? Those of dims that have one element don't matter."""
    expected: Any = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if not statically_known_true(size == 1):
            if not statically_known_true(stride == expected):
                return False
            expected = expected * size
    return True
