"""Find the pass that changes a model's answer, and a minimal model that reproduces it.

    finding = bisect(module, inputs, passes)
    finding.culprit      a pass, `schedule`, `code`, or "" where all agree
    finding.reproducer   a small model, with inputs that show the difference

The interpreter runs the model before any pass and after each one; the first pass that changes the
answer is the culprit. If no pass is, native code is compared without and with schedules. The
reproducer is found by delta debugging: nodes are removed, and the values they computed become
inputs, as long as the difference remains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tilewright.base.errors import TilewrightError
from tilewright.base.passes import Pass, PassContext, pass_name, run_passes
from tilewright.driver.compare import difference, is_close
from tilewright.graph.interp import interpret
from tilewright.graph.ir import Graph, Module, Node, Value
from tilewright.graph.visit import walk

CODE, SCHEDULE = "code", "schedule"  # culprits other than graph passes
Arrays = Sequence[Any]
Run = Callable[[Module, Arrays], Sequence[Any]]
Step = Callable[[Module], Module]
Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Finding:
    """The result of a bisection."""

    culprit: str
    difference: float = 0.0
    reason: str = ""  # the error message, if the culprit raises an error
    steps: tuple[tuple[str, float], ...] = ()  # difference after each pass that changed the program
    triggers: tuple[str, ...] = ()  # passes without which native code is right
    reproducer: Module | None = None
    inputs: Arrays = field(default=(), repr=False)


@dataclass(frozen=True)
class _Outcome:
    difference: float
    same: bool
    reason: str = ""


def _compared(run: Callable[[], Sequence[Any]], want: Sequence[Any]) -> _Outcome:
    """Compare a run with the expected outputs; an error counts as a difference."""
    try:
        got = run()
    except TilewrightError as error:
        return _Outcome(float("inf"), False, f"error[{error.code}]: {error.message}")
    pairs = list(zip(got, want, strict=True))
    off = max((difference(a, b) for a, b in pairs), default=0.0)
    return _Outcome(off, all(is_close(a, b) for a, b in pairs))


def bisect(
    module: Module,
    inputs: Arrays,
    passes: Sequence[Pass[Module]],
    *,
    native: Run | None = None,
    plain: Run | None = None,
    ctx: Callable[[], PassContext] = PassContext,
    trials: int = 300,
    report: Report = lambda stage, count, total: None,
) -> Finding:
    """The first pass that changes the answer, with a minimal reproducer.

    `native` compiles an optimized model and runs it; `plain` does the same without schedules.
    """
    want = interpret(module, *inputs)
    steps: list[tuple[str, float]] = []
    current = module
    for at, step in enumerate(passes):
        report(pass_name(step), at, len(passes))
        prefix = tuple(passes[: at + 1])
        try:
            after = run_passes(current, (step,), ctx())
        except TilewrightError as error:
            outcome = _Outcome(float("inf"), False, f"error[{error.code}]: {error.message}")
        else:
            if after is current:
                continue
            outcome = _compared(lambda after=after: interpret(after, *inputs), want)  # type: ignore[misc]
            current = after
        steps.append((pass_name(step), outcome.difference))
        if not outcome.same:
            shows = _pass_changes(prefix, ctx)
            found = Finding(pass_name(step), outcome.difference, outcome.reason, tuple(steps))
            return _with_reproducer(found, module, inputs, shows, trials, report)
    if native is None:
        return Finding("", steps=tuple(steps))
    return _bisect_native(
        module, current, inputs, want, passes, native, plain, ctx, tuple(steps), trials, report
    )


def _bisect_native(
    module: Module,
    optimized: Module,
    inputs: Arrays,
    want: Sequence[Any],
    passes: Sequence[Pass[Module]],
    native: Run,
    plain: Run | None,
    ctx: Callable[[], PassContext],
    steps: tuple[tuple[str, float], ...],
    trials: int,
    report: Report,
) -> Finding:
    report("native code", len(passes), len(passes))
    outcome = _compared(lambda: native(optimized, inputs), want)
    if outcome.same:
        return Finding("", outcome.difference, steps=steps)
    culprit = CODE
    if plain is not None and _compared(lambda: plain(optimized, inputs), want).same:
        culprit = SCHEDULE
    triggers = []
    for name in dict.fromkeys(name for name, _ in steps):
        report(f"without {name}", 0, len(steps))
        rest = [step for step in passes if pass_name(step) != name]
        if _compared(lambda rest=rest: native(run_passes(module, rest, ctx()), inputs), want).same:  # type: ignore[misc]
            triggers.append(name)
    found = Finding(culprit, outcome.difference, outcome.reason, steps, tuple(triggers))
    shows = _code_changes(passes, native, ctx)
    return _with_reproducer(found, module, inputs, shows, min(trials, 60), report)


# --------------------------------------------------------------------------- smaller models

Shows = Callable[[Module, Arrays], bool]


def _pass_changes(prefix: Sequence[Pass[Module]], ctx: Callable[[], PassContext]) -> Shows:
    """A test whether the last pass of `prefix` changes a model's answer."""

    def shows(module: Module, inputs: Arrays) -> bool:
        want = interpret(module, *inputs)
        before = run_passes(module, prefix[:-1], ctx())
        if not _compared(lambda: interpret(before, *inputs), want).same:
            return False  # an earlier pass is wrong: not the difference sought
        return not _compared(
            lambda: interpret(run_passes(before, prefix[-1:], ctx()), *inputs), want
        ).same

    return shows


def _code_changes(
    passes: Sequence[Pass[Module]], native: Run, ctx: Callable[[], PassContext]
) -> Shows:
    """A test whether native code differs from the interpreter, after all passes."""

    def shows(module: Module, inputs: Arrays) -> bool:
        want = interpret(module, *inputs)
        after = run_passes(module, passes, ctx())
        return not _compared(lambda: native(after, inputs), want).same

    return shows


def _with_reproducer(
    found: Finding, module: Module, inputs: Arrays, shows: Shows, trials: int, report: Report
) -> Finding:
    small, arrays = reduce_model(module, inputs, shows, trials=trials, report=report)
    return replace(found, reproducer=small, inputs=arrays)


def reduce_model(
    module: Module,
    inputs: Arrays,
    shows: Shows,
    *,
    trials: int = 300,
    report: Report = lambda stage, count, total: None,
) -> tuple[Module, Arrays]:
    """Remove nodes, in ever smaller groups, as long as the model still `shows` the difference."""
    nodes = [node for node in module.main.nodes if node.op != "constant"]
    values = _all_values(module, inputs)
    best: tuple[Module, Arrays] = module, inputs
    budget = trials
    size = max(1, len(nodes) // 2)
    while True:
        progressed = False
        start = 0
        while start < len(nodes) and budget > 0:
            remaining = nodes[:start] + nodes[start + size :]
            budget -= 1
            report(f"{len(nodes)} nodes", trials - budget, trials)
            candidate = _try_part(module, remaining, values, shows) if remaining else None
            if candidate is None:
                start += size
            else:
                nodes, best, progressed = remaining, candidate, True
        if budget <= 0 or (size == 1 and not progressed):
            return best
        size = max(1, min(size, len(nodes)) // 2)


def _all_values(module: Module, inputs: Arrays) -> dict[Value, Any]:
    """Every value of the main graph, computed from these inputs."""
    graph = module.main
    values = dict.fromkeys([*graph.params, *(v for node in graph.nodes for v in node.outputs)])
    whole = replace(graph, results=tuple(values))
    arrays = interpret(replace(module, graphs={**module.graphs, "main": whole}), *inputs)
    return dict(zip(values, arrays, strict=True))


def _try_part(
    module: Module, nodes: list[Node], values: dict[Value, Any], shows: Shows
) -> tuple[Module, Arrays] | None:
    """A submodel that still shows the difference; None if it does not, or is invalid."""
    part = part_of(module, nodes)
    arrays = [values[param] for param in part.main.params]
    try:
        return (part, arrays) if shows(part, arrays) else None
    except TilewrightError:
        return None


def part_of(module: Module, nodes: list[Node]) -> Module:
    """A submodel of some nodes: values from outside become inputs, values used outside become
    outputs."""
    graph = module.main
    constants = {node.output: node for node in graph.nodes if node.op == "constant"}
    produced = {value for node in nodes for value in node.outputs}
    read = dict.fromkeys(value for node in nodes for value in _inputs(node))
    read_inside = {value for node in nodes for value in _inputs(node)}
    read_outside = set(graph.results)
    chosen = set(map(id, nodes))
    for node in graph.nodes:
        if id(node) not in chosen:
            read_outside.update(_inputs(node))
    results = tuple(
        value
        for node in nodes
        for value in node.outputs
        if value in read_outside or value not in read_inside
    )
    heads = tuple(constants[value] for value in read if value in constants)
    params = tuple(value for value in read if value not in produced and value not in constants)
    main = Graph(graph.name, params, (*heads, *nodes), results, loc=graph.loc)
    kept = {node["data"] for node in walk(main) if node.op == "constant"}
    data = {name: array for name, array in module.constants.items() if name in kept}
    graphs = {**module.graphs, "main": main}
    return replace(module, graphs=graphs, constants=data, outputs=(), states=())


def _inputs(node: Node) -> Iterator[Value]:
    return (value for value in node.inputs if value is not None)
