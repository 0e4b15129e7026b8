"""The text of one kernel at every stage, from its graph to assembly.

stages = kernel_stages(job)
stages.texts["scheduled"], stages.decisions
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from tilewright.base.errors import Unsupported
from tilewright.codegen import cache, llvm
from tilewright.codegen.build import lower_for, new_module
from tilewright.codegen.effort import optimized
from tilewright.codegen.entry import emit_kernel
from tilewright.driver.kernel_code import function_of
from tilewright.driver.kernels import COMPILER, Job
from tilewright.graph.ir import Graph
from tilewright.graph.printer import Printer
from tilewright.rules import schedule
from tilewright.tensor.constants import split_constant_blocks
from tilewright.tensor.in_place import in_place_pairs
from tilewright.tensor.ir import Function

NAMES = ("graph", "loops", "scheduled", "lowered", "llvm", "assembly")


@dataclass(frozen=True)
class Stages:
    """A kernel's text at each stage, and the decisions of the rules."""

    texts: dict[str, str]
    decisions: tuple[dict[str, Any], ...]  # block, rule, plan, predicted_ns


def kernel_stages(job: Job) -> Stages:
    """The stages of a kernel, from the cache or computed."""
    key = f"stages\n{cache.fingerprint(COMPILER)}\n{llvm.VERSION}\n{job.key}"
    stored = cache.try_read(key)
    if stored is not None:
        read = json.loads(stored)
        return Stages(read["texts"], tuple(read["decisions"]))
    made = _stages(job)
    cache.write(key, json.dumps(asdict(made)).encode())
    return made


def _stages(job: Job) -> Stages:
    texts: dict[str, str] = {}
    if isinstance(job.source, Graph):
        printer = Printer(job.numbers)
        printer.graph(job.source, f"graph @{job.label}")
        texts["graph"] = printer.out.text()
    fn = function_of(job)
    texts["loops"] = str(fn)
    decisions: tuple[dict[str, Any], ...] = ()
    if job.setting.schedule:
        weights = tuple(fn.params[at].name for at in sorted(job.constants))
        made = schedule(fn, job.setting.target, threads=job.setting.threads, constants=weights)
        decisions = tuple(
            {
                "block": one.block,
                "rule": one.rule,
                "plan": one.plan,
                "predicted_ns": one.predicted_ns,
            }
            for one in made.decisions
        )
        try:
            return Stages(texts | _code(job, made.schedule.function), decisions)
        except Unsupported:  # fall back to plain loops, as kernel_code does
            decisions = ()
    return Stages(texts | _code(job, fn), decisions)


def _code(job: Job, scheduled: Function) -> dict[str, str]:
    kernel = split_constant_blocks(scheduled).kernel
    machine = llvm.machine_of(job.setting.target)
    flat = lower_for(kernel, job.setting.target)
    module = new_module(machine)
    emit_kernel(module, machine, flat, in_place=in_place_pairs(kernel))
    parsed = optimized(module.text(), flat, machine)
    return {
        "scheduled": str(kernel),
        "lowered": str(flat),
        "llvm": str(parsed),
        "assembly": llvm.to_assembly(parsed, machine),
    }
