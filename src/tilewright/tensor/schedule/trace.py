"""Traces: the steps applied to a program, as data.

Each step has a primitive, its arguments and its results. Arguments refer to earlier results by name
(`l3` a loop, `b1` a block, `d2` a decision), so a trace replays on any program of the same
structure, with the same or other decisions. Text and JSON both round-trip.

    b0 = get_block(name='C')
    l0, l1, l2 = get_loops(block=b0)
    d0, d1 = sample_tile(loop=l0, n=2, max_innermost=64) @ [16, 8]
    l3, l4 = split(loop=l0, factors=[d0, d1])
"""

from __future__ import annotations

import ast
import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tilewright.base.errors import UserError
from tilewright.tensor.schedule.refs import BlockRef, Decision, LoopRef


@dataclass(frozen=True, slots=True)
class Name:
    """A reference to an earlier result, inside a step."""

    name: str

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Step:
    """One primitive: its arguments by keyword, the names of its results, its decision if any."""

    primitive: str
    arguments: tuple[tuple[str, Any], ...]
    results: tuple[str, ...]
    decision: tuple[int, ...] | None = None

    def __str__(self) -> str:
        arguments = ", ".join(f"{key}={value!r}" for key, value in self.arguments)
        left = f"{', '.join(self.results)} = " if self.results else ""
        right = "" if self.decision is None else f" @ {list(self.decision)}"
        return f"{left}{self.primitive}({arguments}){right}"


class Trace:
    """An immutable list of steps.

    Examples:
        >>> import tilewright as tw
        >>> from tilewright import te
        >>> A = te.placeholder((12, 20), name="A")
        >>> B = te.compute((12, 20), lambda i, j: A[i, j] + 1.0, name="B")
        >>> sch = tw.Schedule(te.function([A, B]))
        >>> _ = sch.split(sch.get_loops(sch.get_block("B"))[1], [None, 4])
        >>> print(sch.trace, end="")
        b0 = get_block(name='B')
        l0, l1 = get_loops(block=b0)
        l2, l3 = split(loop=l1, factors=[None, 4])
        >>> other = tw.Schedule(te.function([A, B]))
        >>> _ = sch.trace.apply(other)
        >>> other.function == sch.function
        True
    """

    __slots__ = ("steps",)

    def __init__(self, steps: Sequence[Step] = ()) -> None:
        self.steps = tuple(steps)

    def __len__(self) -> int:
        return len(self.steps)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trace):
            return False
        return str(self) == str(other)  # the text is exact, and nan in it is equal to itself

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        return "".join(f"{step}\n" for step in self.steps)

    def __repr__(self) -> str:
        return f"<Trace of {len(self.steps)} steps>"

    def with_decisions(self, decisions: Mapping[int, Sequence[int]]) -> Trace:
        """The trace with the decisions of some steps (by position) replaced."""
        return Trace(
            [
                replace(step, decision=tuple(decisions[at])) if at in decisions else step
                for at, step in enumerate(self.steps)
            ]
        )

    @property
    def decisions(self) -> dict[int, tuple[int, ...]]:
        """Position of each sampling step -> what it decided."""
        return {
            at: step.decision for at, step in enumerate(self.steps) if step.decision is not None
        }

    def apply(self, schedule: Any) -> None:
        """Replay every step on another schedule; all of it or, on a refusal, none."""
        before = schedule.checkpoint()
        values: dict[str, Any] = {}
        try:
            for step in self.steps:
                method = _method(schedule, step)
                arguments = {key: _resolve(value, values) for key, value in step.arguments}
                if step.decision is not None:
                    arguments["decision"] = list(step.decision)
                loops = arguments.pop("loops", ())  # of fuse and reorder, which take any number
                results = method(*loops, **arguments)
                _bind(step.results, results, values)
        except BaseException:
            schedule.restore(before)
            raise

    # ------------------------------------------------------------------ text and JSON

    def to_json(self) -> str:
        """A JSON list, one object per step."""
        rows = []
        for step in self.steps:
            row: dict[str, Any] = {
                "primitive": step.primitive,
                "arguments": {key: _to_data(value) for key, value in step.arguments},
                "results": list(step.results),
            }
            if step.decision is not None:
                row["decision"] = list(step.decision)
            rows.append(row)
        return json.dumps(rows)

    @staticmethod
    def from_json(text: str) -> Trace:
        """Reads what `to_json` wrote."""
        try:
            rows = json.loads(text)
            if not isinstance(rows, list):
                raise ValueError("not a list")
            steps = [
                Step(
                    row["primitive"],
                    tuple((key, _from_data(value)) for key, value in row["arguments"].items()),
                    tuple(row["results"]),
                    tuple(row["decision"]) if "decision" in row else None,
                )
                for row in rows
            ]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError("TW2190", f"not a trace in JSON: {error}") from error
        return Trace([_known(step) for step in steps])

    @staticmethod
    def parse(text: str) -> Trace:
        """Reads the text form back: `Trace.parse(str(trace)) == trace`."""
        return Trace([_known(_parse_line(line)) for line in text.splitlines() if line.strip()])


PRIMITIVES = frozenset(  # what a step may name; methods of Schedule
    (
        "add_unit_loop",
        "annotate",
        "bind",
        "blockize",
        "cache_read",
        "reindex_read",
        "cache_write",
        "compute_at",
        "compute_inline",
        "crop",
        "decide",
        "decompose_reduction",
        "double_buffer",
        "fuse",
        "get_block",
        "get_child_blocks",
        "get_consumers",
        "get_loops",
        "get_output_blocks",
        "get_producers",
        "merge_windows",
        "pad",
        "parallel",
        "prefetch",
        "reorder",
        "reverse_compute_at",
        "reverse_compute_inline",
        "rfactor",
        "rfactor_at",
        "sample_choice",
        "sample_tile",
        "set_scope",
        "software_pipeline",
        "specialize",
        "split",
        "storage_align",
        "tensorize",
        "transform_layout",
        "unannotate",
        "unroll",
        "vectorize",
    )
)


def _known(step: Step) -> Step:
    if step.primitive not in PRIMITIVES:
        raise UserError("TW2191", f"the trace has an unknown step: {step}")
    return step


def _method(schedule: Any, step: Step) -> Callable[..., Any]:
    """The method of a step, with arguments checked against its signature."""
    name = _known(step).primitive
    words = {key for key, _ in step.arguments if key != "loops"}
    if step.decision is not None:
        words.add("decision")
    known, needed, takes_more = _parameters(schedule.__class__, name)
    if not needed <= words or not (takes_more or words <= known):
        raise UserError("TW2191", f"the trace has a step with other arguments: {step}")
    found: Callable[..., Any] = getattr(schedule, name)
    return found


@cache
def _parameters(cls: type[object], name: str) -> tuple[frozenset[str], frozenset[str], bool]:
    """The parameters of a method, those without a default, and whether it takes any others."""
    params = dict(inspect.signature(getattr(cls, name)).parameters)
    params.pop("self", None)
    open_ended = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [key for key, p in params.items() if p.default is p.empty and p.kind not in open_ended]
    takes_more = any(p.kind is p.VAR_KEYWORD for p in params.values())
    return frozenset(params), frozenset(needed), takes_more


def _resolve(value: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(value, Name):
        if value.name not in values:
            raise UserError("TW2191", f"the trace uses {value.name} before anything gives it")
        return values[value.name]
    if isinstance(value, list):
        return [_resolve(item, values) for item in value]
    return value


def _bind(names: Sequence[str], results: Any, values: dict[str, Any]) -> None:
    if not names:
        return
    items = list(results) if isinstance(results, (list, tuple)) else [results]
    if len(items) != len(names):
        raise UserError(
            "TW2191", f"the trace expects {len(names)} results, this program gives {len(items)}"
        )
    values.update(zip(names, items, strict=True))


def _to_data(value: Any) -> Any:
    if isinstance(value, Name):
        return {"ref": value.name}
    if isinstance(value, list):
        return [_to_data(item) for item in value]
    return value


def _from_data(value: Any) -> Any:
    if isinstance(value, dict):
        return Name(value["ref"])
    if isinstance(value, list):
        return [_from_data(item) for item in value]
    return value


def _parse_line(line: str) -> Step:
    try:
        (stmt,) = ast.parse(line.strip()).body
        results: list[str] = []
        if isinstance(stmt, ast.Assign):
            (target,) = stmt.targets
            items = target.elts if isinstance(target, ast.Tuple) else [target]
            assert all(isinstance(item, ast.Name) for item in items)
            results = [item.id for item in items if isinstance(item, ast.Name)]
            value = stmt.value
        else:
            assert isinstance(stmt, ast.Expr)
            value = stmt.value
        decision = None
        if isinstance(value, ast.BinOp):  # call @ [decision]
            assert isinstance(value.op, ast.MatMult)
            decision = tuple(ast.literal_eval(value.right))
            value = value.left
        assert isinstance(value, ast.Call)
        assert isinstance(value.func, ast.Name)
        assert not value.args  # every argument has its name
        assert all(word.arg is not None for word in value.keywords)
        arguments = tuple((str(word.arg), _from_ast(word.value)) for word in value.keywords)
        return Step(value.func.id, arguments, tuple(results), decision)
    except (SyntaxError, ValueError, TypeError, AssertionError) as error:
        raise UserError(
            "TW2190",
            f"not a line of a trace: {line.strip()}",
            help="a line reads: results = primitive(argument=value, ...)",
        ) from error


def _from_ast(node: ast.expr) -> Any:
    if isinstance(node, ast.Name):
        return float(node.id) if node.id in ("inf", "nan") else Name(node.id)
    if isinstance(node, ast.List):
        return [_from_ast(item) for item in node.elts]
    if isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Name):
        assert isinstance(node.op, ast.USub)
        assert node.operand.id == "inf"
        return -math.inf
    return ast.literal_eval(node)


class Recorder:
    """Names results as they are recorded, and turns live references back into names."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._names: dict[object, str] = {}
        self._kept: list[object] = []  # decisions are known by identity: keep them alive
        self._counts = {"l": 0, "b": 0, "d": 0}

    def copy(self) -> Recorder:
        other = Recorder()
        other.steps = list(self.steps)
        other._names = dict(self._names)
        other._kept = list(self._kept)
        other._counts = dict(self._counts)
        return other

    def record(
        self,
        primitive: str,
        arguments: Mapping[str, Any],
        results: Any,
        decision: Sequence[int] | None = None,
    ) -> None:
        named = tuple((key, self._name_of(value)) for key, value in arguments.items())
        items = [] if results is None else results
        items = list(items) if isinstance(items, (list, tuple)) else [items]
        outputs = tuple([self._new_name(item) for item in items])
        taken = None if decision is None else tuple(int(value) for value in decision)
        self.steps.append(Step(primitive, named, outputs, taken))

    def _key(self, value: Any) -> object:
        return ("decision", id(value)) if isinstance(value, Decision) else value

    def _new_name(self, value: Any) -> str:
        letter = {LoopRef: "l", BlockRef: "b", Decision: "d"}[type(value)]
        name = f"{letter}{self._counts[letter]}"
        self._counts[letter] += 1
        self._names[self._key(value)] = name
        self._kept.append(value)
        return name

    def _name_of(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._name_of(item) for item in value]
        if isinstance(value, (LoopRef, BlockRef, Decision)):
            name = self._names.get(self._key(value))
            if name is not None:
                return Name(name)
            if isinstance(value, Decision):
                return int(value)
            raise UserError("TW2192", f"{value!r} does not come from this schedule")
        if hasattr(value, "item"):  # a NumPy number
            value = value.item()
        if not isinstance(value, (str, int, float, type(None))):
            raise UserError("TW2192", f"{value!r} cannot be kept in a trace")
        return value
