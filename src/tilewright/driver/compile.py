"""`compile`: import, optimize, lower, schedule, emit, load.

module = compile("model.onnx", target="cpu", threads=2)
outputs = module(x, y)
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.base.errors import UserError
from tilewright.base.target import ACCEL, CPU, CUDA, Target
from tilewright.codegen.build import can_run
from tilewright.driver.build import build_accelerated, build_module
from tilewright.driver.compiled import CompiledModule
from tilewright.driver.device_module import DeviceModule
from tilewright.driver.optimize import optimize, pass_context
from tilewright.driver.options import Options, check_options, reading_records
from tilewright.driver.pipelines import check_precision, precision_for
from tilewright.driver.sizes import (
    Dynamic,
    check_size_names,
    size_names,
    sizes_to_measure,
    with_sizes,
)
from tilewright.driver.tuning.helping_choices import choices_tuned
from tilewright.frontends.open_model import Opened, open_model
from tilewright.graph import ir
from tilewright.runtime import cuda
from tilewright.runtime.device_states import DeviceStates
from tilewright.runtime.module import Module
from tilewright.runtime.pool import checked_threads
from tilewright.runtime.stateful import StatefulModule


def compile(
    model: Any,
    target: str | Target = "cpu",
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    threads: int = 0,
    precision: str = "f32",
    dynamic: Dynamic | bool | None = None,
    **options: Any,
) -> Module:
    """Compile a model: a path, an ONNX or PyTorch model, or a graph module.

    `dynamic` gives ranges for dynamic dimensions by name, `{"batch": (1, 64)}`, or fixes them to a
    number. A PyTorch model is traced with the example inputs `args` and `kwargs`; for it `dynamic`
    also says which axes are dynamic, `{"x": {0: "batch"}}`, or `True` for all. The result takes and
    returns tensors in the structure of the model's own inputs and outputs.

    Tuning records in the database are used if there are any; `tune=Budget(minutes=5)` makes them
    first.

    Further options:

    - `without`: names of passes to disable;
    - `schedule=False`: unscheduled loop nests;
    - `packing=False`, `in_place=False`: do not prepack weights, do not compute in place;
    - `chains=True`: on a GPU, join consecutive GEMVs into one kernel; by default only where
      tuning has measured it to be faster;
    - `cache=False`: neither read nor write the kernel cache on disk;
    - `progress`: a function called with a stage, the work done and the total work;
    - `tune`, `database`, `sizes`, `search`, `cost_model`, `fleet`, `allow_blas`, `tuning`: options
      of the tuner, see the tuning guide.

    Examples:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> from tilewright import graph
        >>> program = graph.parse("graph @main(%x: f32[n, 4]) { %y = relu(%x) return %y }")
        >>> model = tw.compile(program, threads=1)
        >>> (y,) = model(np.array([[-1, 2, -3, 4]], np.float32))
        >>> np.asarray(y)
        array([[0., 2., 0., 4.]], dtype=float32)
    """
    chosen = Target.parse(target)
    check_options(options)
    settings = Options(threads=checked_threads(threads), precision=precision, **options)
    check_target(chosen, precision)
    if settings.tune is not None:  # report unknown or missing components before any work
        from tilewright.tune.cost.choose import choose
        from tilewright.tune.search import strategy

        choose(settings.cost_model)
        strategy(settings.search)
    if chosen.kind == CUDA:
        cuda.start_driver()
    with reading_records(settings) as read:
        laps = [time.perf_counter()]
        again = functools.partial(
            compile, target=chosen, threads=threads, precision=precision, **options
        )
        opened = open_model(model, args, kwargs, dynamic, again)
        return compile_opened(opened, chosen, read, laps)


def check_target(chosen: Target, precision: str) -> None:
    """Check that models can be compiled for a target with this precision."""
    if chosen.kind not in (CPU, CUDA, ACCEL):
        raise UserError(
            "TW6002", f"models compile for CPUs, CUDA and accelerators so far, not for {chosen}"
        )
    check_precision(chosen, precision)


def compile_opened(opened: Opened, chosen: Target, settings: Options, laps: list[float]) -> Module:
    """Compile an imported model; `laps` holds the time when the import began."""
    graph = with_sizes(opened.graph, opened.dynamic)
    check_size_names(settings.sizes, size_names(opened.graph))
    settings = replace(
        settings,
        precision=precision_for(graph, chosen, settings.precision),
        sizes={**sizes_to_measure(opened.dynamic), **settings.sizes},
    )
    laps.append(time.perf_counter())
    host = chosen
    reasons: Mapping[str, str] = {}
    is_here = chosen.kind == CPU and can_run(chosen) and settings.fleet is None
    choices = None
    if settings.tune is not None and is_here:
        choices = choices_tuned(graph, chosen, settings, settings.tune)
        ctx, settings = choices.ctx, choices.settings
    else:
        ctx = pass_context(host, settings)
    if chosen.kind == ACCEL:
        # Imported here: most compilations are for no accelerator.
        from tilewright.driver.accelerate import divide, integer_graph

        host = Target.parse(CPU)
        ctx = pass_context(host, settings, options={"decompose_quantized.enabled": False})
        unrecognized: dict[str, str] = {}
        graph, unplaced = divide(integer_graph(graph, chosen, unrecognized), chosen)
        reasons = {**unrecognized, **unplaced}
    graph = optimize(graph, host, settings, ctx)
    laps.append(time.perf_counter())
    if chosen.kind == ACCEL:
        module = build_accelerated(graph, chosen, host, settings, reasons)
    else:
        module = build_module(graph, chosen, settings)
    if choices is not None and isinstance(module, CompiledModule):
        module.inside = replace(module.inside, tuning=choices.told(module.tuning))
    laps.append(time.perf_counter())
    spent = [after - before for before, after in itertools.pairwise(laps)]
    stages = dict(zip(("import", "passes", "code"), spent, strict=True))
    module.timings = {"stages": stages, "passes": ctx.timings}
    module.choices = tuple(ctx.choices)
    return opened.wrap(with_states(module, graph))


def with_states(module: Module, graph: ir.Module) -> Module:
    """Wrap a module so that it keeps the graph's states between calls."""
    if not graph.states:
        return module
    count = len(graph.states)
    initial = [np.asarray(graph.constants[name]) for name in graph.states]
    memory = DeviceStates(module.gpu) if isinstance(module, DeviceModule) else None
    return StatefulModule(module, initial, module.inputs[-count:], len(graph.made), memory)
