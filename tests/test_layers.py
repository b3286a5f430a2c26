"""The layout of the compiler: which package may import which, and that imports never lead in a circle."""

from __future__ import annotations

import ast
import functools
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

import dhlo

ROOT = Path(dhlo.__file__).parent

# By package, from the bottom up: what it may import besides itself and what everything may. A module of the package `dhlo`
# itself that isn't listed belongs to the tools and the API on top of the compiler.
EVERYWHERE = {"dhlo.errors", "dhlo._runtime", "dhlo.options", "dhlo.torch_version"}
IR = {"dhlo.ir"}
FACTS = IR | {"dhlo.shape_infer"}
KERNEL_IR = FACTS | {"dhlo.codegen.target", "dhlo.codegen.kernel_ir"}
FAMILIES = KERNEL_IR | {"dhlo.codegen.elementwise", "dhlo.codegen.families"}
FILES = {"dhlo.container", "dhlo.schema", "dhlo.model_file"}
MAY_IMPORT: dict[str, set[str]] = {
    "dhlo.ir": set(),
    "dhlo.shape_infer": IR,
    "dhlo.passes": FACTS,
    "dhlo.frontend": IR,
    "dhlo.interp": IR,
    "dhlo.texts": FACTS,
    "dhlo.pipeline": {*FAMILIES, "dhlo.frontend", "dhlo.passes", "dhlo.codegen.host", "dhlo.codegen.backends"},
    "dhlo.codegen.target": IR,
    "dhlo.codegen.kernel_ir": IR | {"dhlo.codegen.target"},
    "dhlo.codegen.elementwise": KERNEL_IR,
    "dhlo.codegen.families": FAMILIES,
    "dhlo.codegen.host": FAMILIES,
    "dhlo.codegen.backends": FAMILIES | FILES | {"dhlo.codegen.host", "dhlo.header"},
    "dhlo.container": set(),
    "dhlo.header": {"dhlo.codegen.kernel_ir"},
    "dhlo.schema": set(),
    "dhlo.model_file": {"dhlo.codegen.kernel_ir", "dhlo.container", "dhlo.schema"},
}


def modules() -> dict[str, Path]:
    """Every Python module of the installed package; some of its folders are links to others."""
    found: dict[str, Path] = {}
    for folder, inner, files in os.walk(ROOT, followlinks=True):
        inner[:] = [d for d in inner if not d.startswith(("__", "."))]
        for f in (Path(folder) / f for f in files if f.endswith((".py", ".pyi"))):
            parts = ("dhlo", *f.relative_to(ROOT).with_suffix("").parts)
            found[".".join(p for p in parts if p != "__init__")] = f
    return found


MODULES = modules()


@functools.cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


def imports(tree: ast.Module, known: Iterable[str], *, typing: bool = True) -> dict[str, int]:
    """The modules among `known` that a module imports anywhere in it, and the first line that does; `typing`: with those
    that only the type checker sees."""
    found: dict[str, int] = {}
    unseen = {
        id(x)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for part in node.body
        for x in ast.walk(part)
    }
    for node in ast.walk(tree):
        if not typing and id(node) in unseen:
            continue
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert not node.level, "imports are absolute"
            inner = [f"{node.module}.{a.name}" for a in node.names]
            names = [n if n in known else node.module for n in inner]
        for n in names:
            if n in known:
                found.setdefault(n, node.lineno)
    return found


def package(module: str) -> str:
    """What a module belongs to: a package of the layout, or for a module of `dhlo` itself, that module."""
    parts = module.split(".")
    return ".".join(parts[:3] if parts[1:2] == ["codegen"] else parts[:2])


def circle(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """The nodes of one circle, in order; nothing if there is none."""
    done: set[str] = set()
    for start in graph:
        path: list[str] = []
        todo: list[tuple[str, bool]] = [(start, False)]
        while todo:
            node, leave = todo.pop()
            if leave:
                path.pop()
                done.add(node)
            elif node in path:
                return [*path[path.index(node) :], node]
            elif node not in done:
                path.append(node)
                todo.append((node, True))
                todo += [(n, False) for n in graph.get(node, ())]
    return []


def test_a_circle_is_found() -> None:
    assert circle({"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": []}) == []
    assert circle({"a": ["b"], "b": ["c"], "c": ["d", "b"], "d": []}) == ["b", "c", "b"]


def test_imports_of_every_kind_are_found() -> None:
    tree = ast.parse(
        "import dhlo.a\nfrom dhlo.p import m, x\nif TYPE_CHECKING:\n    from dhlo.t import T\ndef f():\n    from dhlo import late"
    )
    known = ["dhlo", "dhlo.a", "dhlo.p", "dhlo.p.m", "dhlo.t", "dhlo.late"]
    assert imports(tree, known) == {"dhlo.a": 1, "dhlo.p.m": 2, "dhlo.p": 2, "dhlo.t": 4, "dhlo.late": 6}
    assert "dhlo.t" not in imports(tree, known, typing=False)


def test_the_layout_is_of_packages_that_exist() -> None:
    assert set(MAY_IMPORT) | EVERYWHERE <= set(map(package, MODULES))


@pytest.mark.parametrize("name", MAY_IMPORT)
def test_imports_follow_the_layout(name: str) -> None:
    wrong = [
        f"{MODULES[m]}:{line}: {m} imports {other}"
        for m in MODULES
        if package(m) == name
        for other, line in imports(tree_of(m), MODULES).items()
        if package(other) not in MAY_IMPORT[name] | EVERYWHERE | {name}
    ]
    assert not wrong, "\n".join(wrong)


def test_packages_import_each_other_in_one_direction() -> None:
    graph: dict[str, set[str]] = {}
    for m in MODULES:
        if m != "dhlo":  # which is the API's names
            graph.setdefault(package(m), set()).update(package(n) for n in imports(tree_of(m), MODULES) if package(n) != package(m))
    # a session and its model are one another's types
    graph["dhlo.session"].discard("dhlo.model")
    assert not circle(graph)


def rows_of_the_docs() -> dict[str, int]:
    """The row of each package in the table of docs/architecture.md, counted from the top."""
    page = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text()
    table = page.partition("## Where what lives")[2].partition("\n\n|")[2].partition("\n\n")[0]
    out: dict[str, int] = {}
    for number, line in enumerate(table.splitlines()[2:]):
        for name in re.findall(r"`([^`]+)`", line.split("|")[1]):
            out[package("dhlo." + name.removeprefix("dhlo/").removesuffix(".py").rstrip("/").replace("/", "."))] = number
    return out


def test_imports_go_down_the_table_of_the_docs() -> None:
    rows = rows_of_the_docs()
    assert set(map(package, MODULES)) - EVERYWHERE - {"dhlo", "dhlo.__main__", "dhlo.codegen"} <= set(rows)
    wrong = [
        f"{MODULES[m]}:{line}: {m} imports {other}"
        for m in MODULES
        for other, line in imports(tree_of(m), MODULES).items()
        if package(m) in rows and rows.get(package(other), rows[package(m)]) < rows[package(m)]
    ]
    assert not wrong, "\n".join(wrong)


def test_kernel_families_import_each_other_in_one_direction() -> None:
    graph: dict[str, set[str]] = {}
    for m in MODULES:
        parts = m.split(".")
        if parts[:3] == ["dhlo", "codegen", "families"] and MODULES[".".join(parts[:4])].name == "__init__.py" and len(parts) > 4:
            others = [n.split(".") for n in imports(tree_of(m), MODULES) if n.startswith("dhlo.codegen.families.")]
            graph.setdefault(parts[3], set()).update(o[3] for o in others if len(o) > 4 and o[3] != parts[3])
    assert len(graph) > 10
    assert not circle(graph)


def test_modules_import_each_other_in_one_direction() -> None:
    graph = {m: set(imports(tree_of(m), MODULES, typing=False)) for m in MODULES if m != "dhlo"}
    assert not circle(graph)
