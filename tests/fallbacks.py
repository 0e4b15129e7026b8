"""Which kernels of a model have no schedule of their own."""

from tilewright.base.target import Target
from tilewright.driver.kernel_code import function_of, schedule_job
from tilewright.driver.kernels import KernelSetting
from tilewright.driver.lowering import planned_calls
from tilewright.driver.optimize import optimize
from tilewright.driver.options import Options
from tilewright.graph.ir import Module
from tilewright.rules.rule import why_fell_back


def fallen_kernels(model: Module, target: Target, threads: int = 2) -> tuple[list[str], int]:
    """The kernels of a model that get plain loops or the last rule's schedule, each with the
    reason, and how many kernels there are. Everything is scheduled; nothing is compiled."""
    setting = KernelSetting(target, threads)
    jobs = planned_calls(optimize(model, target, Options(threads=threads)), setting)[1].values()
    fallen = []
    for job in jobs:
        made = schedule_job(job, function_of(job))
        why = why_fell_back(made.decisions, made.refusals)
        if why or not made.decisions:
            fallen.append(f"{job.label}: {why or 'plain loops'}")
    return fallen, len(jobs)
