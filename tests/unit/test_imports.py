"""Imports tell the truth about who depends on whom: no circles, and none that tools cannot see.

import-linter checks the layers, but sees neither a module reached by name (`import_module`) nor a
method that another module hangs onto a class (`setattr`). Those are found here, by reading the
sources; the few that stay are listed, each with its reason. So are circles between modules, with
imports inside functions and under TYPE_CHECKING counted like all others.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"
MODULES = {
    ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((SRC / "tilewright").rglob("*.py"))
}

COMPILED = {"tilewright.runtime._native"}  # modules whose source is not Python
KNOWN = MODULES.keys() | COMPILED

BY_NAME = {
    "tilewright": "public names are loaded when first used: a deployed model loads no compiler",
    "tilewright.tune": "public names are loaded when first used: workers of fleets start soon",
    "tilewright.cli.peers": "onnxruntime and OpenVINO, to measure against if they are there",
    "tilewright.graph": "graph.to_onnx, a public name: the front end that has it lies above",
    "tilewright.cli.ort": "its purpose: a program's own import of onnxruntime is answered by us",
    "tilewright.ort.installed": "onnxruntime's modules in Python, of whichever is installed",
}
INSTALLED = {
    "tilewright.sym.ops": "operators of Expr: decision 0009",
    "tilewright.sym.text": "the text of Expr: decision 0009",
    "tilewright.sym.extend": "bind and assume of Context: decision 0009",
    "tilewright.tensor.printer": "text and equality of Function: decision 0009",
    "tilewright.graph.printer": "text and equality of Module: decision 0009",
}


RELEVANT = (ast.Import, ast.ImportFrom, ast.Name, ast.Attribute, ast.Assign, ast.Call)


@cache
def nodes(name: str) -> tuple[ast.AST, ...]:
    """What of a module's source is looked at."""
    tree = ast.parse(MODULES[name].read_text())
    return tuple(node for node in ast.walk(tree) if isinstance(node, RELEVANT))


def called(name: str) -> Iterator[str]:
    """The functions that a module calls, by their last name, and those it takes by attribute."""
    for node in nodes(name):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)


def installs(node: ast.AST) -> bool:
    """Whether a statement hangs something onto a class of another place.

    `setattr(Class, ...)` in any spelling, and `Class.name = ...`: what begins with a capital.
    """
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr":
        return True
    targets = node.targets if isinstance(node, ast.Assign) else ()
    return any(
        isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Name)
        and target.value.id[0].isupper()
        and not target.value.id.isupper()
        for target in targets
    )


def users_of(*names: str) -> set[str]:
    return {module for module in MODULES if not set(names).isdisjoint(called(module))}


def test_modules_are_not_reached_by_name():
    found = users_of("import_module", "__import__", "exec_module", "run_module")
    assert found == BY_NAME.keys()


def test_sys_modules_is_not_looked_into():
    found = {
        module
        for module in MODULES
        for node in nodes(module)
        if isinstance(node, ast.Attribute)
        and node.attr == "modules"
        and isinstance(node.value, ast.Name)
        and node.value.id == "sys"
    }
    # They answer a program's imports of onnxruntime.
    assert found == {"tilewright.cli.ort", "tilewright.ort.installed"}


def test_classes_get_their_methods_where_they_are_defined():
    found = {module for module in MODULES for node in nodes(module) if installs(node)}
    assert found == INSTALLED.keys()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("setattr(Expr, 'add', add)", True),
        ("Expr.add = add", True),
        ("self.add = add", False),
        ("expr.Expr = add", False),
        ("object.__setattr__(self, 'add', add)", False),
    ],
)
def test_the_check_sees_what_it_should(text, expected):
    assert any(installs(node) for node in ast.walk(ast.parse(text))) == expected


# --------------------------------------------------------------------------- circles


def imported(name: str) -> Iterator[str]:
    """The modules of ours that a module imports, wherever it does."""
    for node in nodes(name):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in KNOWN)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, f"{name} has a relative import"
            parts = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from parts & KNOWN
            if node.module in MODULES and not parts <= KNOWN:
                yield node.module


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected parts of more than one module (Tarjan, without recursion)."""
    found: list[list[str]] = []
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []
    for root in graph:
        if root in number:
            continue
        work = [(root, iter(sorted(graph[root])))]
        number[root] = low[root] = len(number)
        path.append(root)
        while work:
            at, rest = work[-1]
            for other in rest:
                if other not in number:
                    number[other] = low[other] = len(number)
                    path.append(other)
                    work.append((other, iter(sorted(graph[other]))))
                    break
                if other in path:
                    low[at] = min(low[at], number[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[at])
                if low[at] == number[at]:
                    part = path[path.index(at) :]
                    del path[path.index(at) :]
                    if len(part) > 1:
                        found.append(sorted(part))
    return found


def test_no_modules_import_each_other_in_a_circle():
    graph = {name: set(imported(name)) & MODULES.keys() - {name} for name in MODULES}
    assert circles(graph) == []


def test_circles_are_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}) == [["a", "b", "c"]]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


# --------------------------------------------------------------------------- helpers of tests


def test_modules_that_tests_share_have_names_of_their_own():
    """Folders are put on the path: of two modules of one name, all would get the first imported."""
    root = SRC.parent
    paths = [path for top in ("tests", "bench", "tools") for path in (root / top).rglob("*.py")]
    folders = defaultdict(set)
    for path in paths:
        if not path.stem.startswith(("test_", "conftest", "__")):
            folders[path.stem].add(path.parent.relative_to(root))
    imported = {
        name
        for path in paths
        for name in re.findall(r"(?m)^ *(?:import|from) (\w+)", path.read_text())
    }
    assert not {name for name in imported if len(folders.get(name, ())) > 1}
