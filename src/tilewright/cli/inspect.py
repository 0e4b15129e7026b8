"""tilewright inspect MODEL"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from tilewright.base.errors import UserError
from tilewright.base.target import CUDA
from tilewright.cli import common
from tilewright.cli.common import Dims, Json, Model, Precision, Target, Threads, Without
from tilewright.cli.records import skipped_note
from tilewright.runtime.cuda import is_available
from tilewright.runtime.module import Module

if TYPE_CHECKING:
    from tilewright.driver.lowering import Program

MEASURED_RUNS = 10

STAGES = ("imported", "canonical", "fused")


@common.command
def inspect(
    model: Model,
    target: Target = "cpu",
    threads: Threads = 0,
    precision: Precision = "f32",
    without: Without = None,
    kernel: Annotated[str, typer.Option(help="Print the scheduled program of a kernel.")] = "",
    graph: Annotated[bool, typer.Option("--graph", help="Print the lowered model.")] = False,
    placement: Annotated[
        bool, typer.Option("--placement", help="Print the device of each node.")
    ] = False,
    nodes: Annotated[bool, typer.Option("--nodes", help="List each kernel's nodes.")] = False,
    schedules: Annotated[
        bool,
        typer.Option("--schedules", help="Kernels' rules, plans, predicted and actual times."),
    ] = False,
    choices: Annotated[
        bool, typer.Option("--choices", help="Alternatives of graph passes, with costs.")
    ] = False,
    dims: Dims = None,
    onnx: Annotated[
        Path | None, typer.Option("--onnx", help="Write a stage as ONNX, for Netron.")
    ] = None,
    stage: Annotated[str, typer.Option(help=f"For --onnx: {', '.join(STAGES)}.")] = "fused",
    json: Json = False,
) -> None:
    """Show a model's inputs, outputs, passes, kernels, memory plan, placement and fallbacks."""
    if onnx is not None:
        _write_stage(model, onnx, stage, precision)
        return
    module = common.read_module(model, target, threads, precision, without)
    from tilewright.tune.database import default_path

    if note := skipped_note(default_path()):
        common.console.print(note, style="yellow", markup=False)
    if kernel or graph or placement:
        if kernel:
            print(_kernel_text(module, kernel))
        elif graph:
            print(_graph_text(module))
        else:
            print(getattr(module, "placement", None) or _inside(module).placement)
        return
    if schedules:
        rows = describe_schedules(module, measured_us(module, dims))
        common.print_json(rows) if json else common.output().print(_schedules(rows))
        return
    if choices:
        rows = describe_choices(module)
        common.print_json(rows) if json else common.output().print(_choices(rows))
        return
    report = describe_module(module)
    if json:
        common.print_json(report)
    else:
        _show(report, nodes)


def _write_stage(model: Path, to: Path, stage: str, precision: str) -> None:
    if stage not in STAGES:
        raise typer.BadParameter(f"known: {', '.join(STAGES)}", param_hint="--stage")
    from tilewright.driver.optimize import staged_graph
    from tilewright.frontends.onnx.export import write_onnx

    source = common.source_of(model)
    with common.progress(f"writing {to}"):
        write_onnx(staged_graph(source, stage, precision), to, model.stem)
    common.output().print(f"wrote {to}")


def _inside(module: Module) -> Any:
    """The compiler's data about a module."""
    inside = getattr(module, "inside", None)
    if inside is None:
        raise UserError(
            "TW6033", "a saved library has no programs", help="inspect the model it was made from"
        )
    return inside


def _graph_text(module: Module) -> str:
    """The lowered graph, and the parts that the interpreter runs."""
    parts = getattr(module, "parts", None)
    return str(_inside(module).program.module) + ("" if parts is None else str(parts.module))


def _kernel_text(module: Module, name: str) -> str:
    texts = {kernel.name: kernel.text for kernel in _inside(module).program.kernels.values()}
    matches = [text for kernel, text in texts.items() if kernel.startswith(name)]
    if not matches:
        raise UserError("TW6035", f"there is no kernel {name}", help=f"known: {', '.join(texts)}")
    return "\n".join(matches)


def _can_run(module: Module) -> bool:
    """Whether a module runs on this machine."""
    if not hasattr(module, "profile"):
        return False
    return _inside(module).target.kind != CUDA or is_available()


def measured_us(module: Module, dims: list[str] | None) -> dict[str, float]:
    """The minimal time of each kernel in microseconds, on random inputs; empty for another machine,
    or where random inputs cannot be made."""
    if not _can_run(module):
        return {}
    inputs = common.make_inputs(module.inputs, None, dims, 0)
    try:
        module(*inputs)
    except UserError as error:
        shapes = ", ".join(str(list(each.shape)) for each in inputs)
        common.console.print(
            f"no times: inputs of {shapes} are refused: {error}\nOther sizes: --dim NAME=SIZE",
            style="yellow",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        return {}
    from tilewright.driver.compiled import kernel_calls

    called = {c["label"]: c["kernel"] for c in kernel_calls(_inside(module).program)}
    found: dict[str, float] = {}
    with common.progress("measuring") as move:
        for run in range(MEASURED_RUNS):
            move("runs", run, MEASURED_RUNS)
            for total in module.profile(*inputs).kernels():
                name, fastest = called.get(total.kernel, total.kernel), total.min_ns / 1e3
                found[name] = min(fastest, found.get(name, fastest))
    return found


def describe_schedules(module: Module, measured: Mapping[str, float]) -> list[dict[str, Any]]:
    """The rules and plans of all kernels, slowest first."""
    sizes = variant_sizes(_inside(module).program)
    rows = [
        {
            "kernel": kernel.name,
            "measured_us": measured.get(kernel.name),
            "predicted_us": sum(each.predicted_ns for each in kernel.decisions) / 1e3,
            "decisions": [
                {"block": each.block, "rule": each.rule, "plan": each.plan, "terms": each.terms}
                for each in kernel.decisions
            ],
            "refusals": [f"{each.block}: {each.rule}: {each.reason}" for each in kernel.refusals],
            "fell_back": kernel.fell_back,
            "tuned": kernel.tuned,
            "sizes": sizes.get(kernel.name, ""),
        }
        for kernel in _inside(module).program.kernels.values()
    ]
    return sorted(rows, key=lambda row: -(row["measured_us"] or row["predicted_us"]))


def variant_sizes(program: Program) -> dict[str, str]:
    """The sizes for which variants of kernels run; earlier ones take precedence."""
    from tilewright.graph.visit import walk

    found = {}
    for node in walk(program.module.main):
        pairs = zip(node.get("variants", ()), node.get("limits", ()), strict=True)
        for name, (size, most) in pairs if node.op == "kernel" else ():
            found[name] = f"{node['sizes'][size]} <= {most}"
    return found


def describe_choices(module: Module) -> list[dict[str, Any]]:
    """The alternatives that graph passes chose between, without duplicates, with costs."""
    rows: dict[Any, dict[str, Any]] = {}
    for each in module.choices:
        row = {
            "pass": each.step,
            "what": each.what,
            "chosen": each.chosen,
            "us": {price.name: price.ns / 1e3 for price in each.prices},
            "source": next((price.source for price in each.prices), ""),
            "nodes": [],
        }
        key = (each.step, each.what, each.chosen, each.prices)
        rows.setdefault(key, row)["nodes"].append(each.node)
    return list(rows.values())


def describe_module(module: Module) -> dict[str, Any]:
    """All data for JSON."""
    report: dict[str, Any] = {
        "inputs": common.describe(module.inputs),
        "outputs": common.describe(module.outputs),
        "fallbacks": list(module.fallbacks),
    }
    if module.manifest is not None:
        saved = module.manifest["model"]
        memory = {"arena_bytes": saved["arena_bytes"], "weights_bytes": saved["weights_bytes"]}
        return report | {
            "target": module.manifest["target"],
            "kernels": saved["kernels"],
            "memory": [memory],
        }
    from tilewright.driver.accelerate import AcceleratedModule
    from tilewright.driver.compiled import kernel_calls, products_of

    inside = _inside(module)
    images = {kernel.name: len(kernel.image) for kernel in inside.program.kernels.values()}
    kernels = [
        dict(one) | {"code_bytes": images[one["kernel"]]} for one in kernel_calls(inside.program)
    ]
    if isinstance(module, AcceleratedModule):
        report |= {"accelerator": {"cycles": module.cycles, "layers": module.report()}}
    return report | {
        "placement": inside.placement.counts(),
        "products": products_of(inside.placement.graph),
        "timings_s": module.timings,
        "kernels": kernels,
        "memory": [_memory(inside)],
    }


def _memory(inside: Any) -> dict[str, Any]:
    plan = inside.plan
    return {
        "values": len(plan.slots),
        "arena_bytes": plan.arena_bytes,  # None: dynamic
        "lower_bound_bytes": plan.floor_bytes(),
        "outputs_in_place": len(plan.outputs),
        "sized_at_run_time": len(plan.late),
        "weights_bytes": sum(w.nbytes for w in inside.program.module.constants.values()),
    }


# --------------------------------------------------------------------------- tables


def _show(report: dict[str, Any], nodes: bool) -> None:
    out = common.output()
    table = Table("", "name", "type", "shape")
    for word in ("inputs", "outputs"):
        for one in report[word]:
            shape = ", ".join(map(str, one["shape"]))
            table.add_row(word[:-1], one["name"], one["type"], f"({shape})")
    out.print(table)
    if "timings_s" in report:
        out.print(_timings(report["timings_s"]))
    out.print(_kernels(report["kernels"], nodes))
    table = Table("memory", "bytes or number", title="memory plan", title_justify="left")
    for plan in report["memory"]:
        for key, value in plan.items():
            table.add_row(key.replace("_", " "), "at run time" if value is None else f"{value:,}")
        arena, floor = plan.get("arena_bytes"), plan.get("lower_bound_bytes")
        if arena and floor:
            table.add_row("arena / lower bound", f"{arena / floor:.3f}")
    out.print(table)
    if "accelerator" in report:
        out.print(_layers(report["accelerator"]))
    for device, count in report.get("placement", {}).items():
        out.print(f"{device}: {count} nodes")
    if any(report.get("products", {}).values()):
        counts = ", ".join(f"{count} of {kind}" for kind, count in report["products"].items())
        out.print(f"GEMMs and convolutions: {counts}")
    out.print(f"fallbacks: {', '.join(report['fallbacks']) or 'none'}")


def _layers(report: dict[str, Any]) -> Table:
    """Cycles of every layer on the accelerator."""
    table = Table("layer", "cycles", "bytes", "of peak", "plan")
    for row in report["layers"]:
        figures = (f"{row['cycles']:,}", f"{row['bytes']:,}", f"{row['share']:.1%}")
        table.add_row(row["op"], *figures, row["plan"])
    table.add_row("all", f"{report['cycles']:,}", "", "", "", style="bold")
    return table


def _timings(timings: dict[str, dict[str, float]]) -> Table:
    table = Table("stage or pass", "ms")
    for name, seconds in timings.get("stages", {}).items():
        table.add_row(name, f"{seconds * 1e3:.1f}", style="bold")
        if name == "passes":
            for step, spent in timings.get("passes", {}).items():
                table.add_row(f"  {step}", f"{spent * 1e3:.1f}")
    return table


def _kernels(calls: list[dict[str, Any]], nodes: bool) -> Table:
    """A row per kernel, or per call with the model's nodes that it computes."""
    if nodes:
        table = Table("kernel", "label", "nodes of the model")
        for call in calls:
            table.add_row(call["kernel"], call["label"], ", ".join(call["nodes"]))
        return table
    counts = Counter(call["kernel"] for call in calls)
    first = {call["kernel"]: call for call in reversed(calls)}
    table = Table("kernel", "calls", "code bytes", "nodes of the first call")
    for name, count in counts.items():
        size = first[name].get("code_bytes")
        shown = ", ".join(first[name]["nodes"][:3])
        table.add_row(name, str(count), "" if size is None else f"{size:,}", shown)
    return table


def _choices(rows: list[dict[str, Any]]) -> Table:
    table = Table("pass", "what", "chosen", "us of each", "source", "nodes of the model")
    for row in rows:
        priced = "\n".join(f"{name} {us:.1f}" for name, us in row["us"].items())
        nodes = [name for name in row["nodes"] if name]
        more = f" and {len(row['nodes']) - 3} more" if len(row["nodes"]) > 3 else ""
        shown = ", ".join(nodes[:3]) + more
        table.add_row(row["pass"], row["what"], row["chosen"], priced, row["source"], shown)
    return table


def _schedules(rows: list[dict[str, Any]]) -> Table:
    table = Table("kernel", "us", "expected", "block", "rule", "plan", show_lines=True)
    for row in rows:
        taken = row["decisions"] or [{"block": "", "rule": "plain loops", "plan": ""}]
        plans = [each["plan"] for each in taken]
        refused = [f"refused: {text}" for text in row["refusals"]]
        table.add_row(
            "\n".join(filter(None, [row["kernel"], "(tuned)" * row["tuned"], row["sizes"]])),
            "" if row["measured_us"] is None else f"{row['measured_us']:.1f}",
            f"{row['predicted_us']:.1f}",
            "\n".join(each["block"] for each in taken),
            "\n".join(each["rule"] for each in taken),
            "\n".join([*plans, *refused]),
            style="yellow" if row["fell_back"] else "",
        )
    return table
