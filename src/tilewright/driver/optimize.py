"""Run the graph passes of a target's pipeline on a model.

graph = optimize(load_graph("model.onnx"), Target.parse("cpu"), Options())
"""

from __future__ import annotations

import functools
from typing import Any

from tilewright.base.collection import paused_collection
from tilewright.base.errors import UserError
from tilewright.base.passes import PassContext, run_passes
from tilewright.base.target import CPU, Target
from tilewright.driver.costs import KernelCosts, recorded_times
from tilewright.driver.kernels import KernelSetting
from tilewright.driver.options import Options
from tilewright.driver.pipelines import passes_of
from tilewright.driver.sizes import ranges_of
from tilewright.driver.workers import expect_jobs
from tilewright.frontends.open_model import open_model
from tilewright.graph import ir
from tilewright.graph.passes import FUSED
from tilewright.runtime import _native


def load_graph(model: Any) -> ir.Module:
    """The imported graph of a model in any format."""
    return open_model(model).graph


def staged_graph(model: Any, stage: str = ir.CANONICAL, precision: str = "f32") -> ir.Module:
    """A model's graph at a stage: as imported, canonical, or fused into kernels."""
    target, options = Target.parse(CPU), Options(precision=precision)
    passes = passes_of(target, precision)
    graph = load_graph(model)
    if stage == ir.IMPORTED:
        return graph
    chosen = [step for step in passes if stage == ir.FUSED or step not in FUSED]
    return run_passes(graph, chosen, pass_context(target, options))


def optimize(
    module: ir.Module, target: Target, options: Options, ctx: PassContext | None = None
) -> ir.Module:
    """The module after all passes of the target's pipeline, except those switched off."""
    passes = passes_of(target, options.precision)
    known = {step.__name__ for step in passes}
    for name in options.without:
        if name not in known:
            raise UserError(
                "TW6004", f"there is no pass {name}", help=f"known: {', '.join(sorted(known))}"
            )
    chosen = [step for step in passes if step.__name__ not in options.without]
    ctx = ctx or pass_context(target, options)
    if ctx.costs is not None:
        ctx.costs.ranges = ranges_of(module)
        # If estimates are not cached, kernels are not either: start compile workers early.
        operators = sum(node.op != "constant" for node in module.main.nodes)
        ctx.costs.missed = functools.partial(expect_jobs, operators)
    with paused_collection():
        return run_passes(module, chosen, ctx)


def pass_context(target: Target, settings: Options, **more: Any) -> PassContext:
    """The context of graph passes: the target, and costs of kernels there."""
    return PassContext(target=target, costs=kernel_costs(target, settings), **more)


def kernel_costs(target: Target, settings: Options) -> KernelCosts:
    """Costs of kernels on a target, with the times that tuning recorded."""
    setting = KernelSetting(target, settings.threads or _native.threads())
    times = recorded_times(settings.database)
    is_lowered = settings.precision == "bf16"
    return KernelCosts(setting, times, settings.cache, is_lowered=is_lowered)
