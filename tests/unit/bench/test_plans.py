"""What the benchmark of plans makes of its measurements."""

import importlib
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tilewright.base.target import Target
from tilewright.driver.kernel_code import function_of, schedule_job
from tilewright.driver.kernels import KernelSetting
from tilewright.driver.lowering import planned_calls
from tilewright.driver.optimize import optimize
from tilewright.driver.options import Options
from tilewright.graph.parser import parse
from tilewright.rules import schedule
from tilewright.rules.cpu import RULES
from tilewright.rules.rule import Closed

BENCH = Path(__file__).parents[3] / "bench"


@pytest.fixture
def plans(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    yield importlib.import_module("plans")
    for name in ("plans", "report", "zoo", "peers"):
        sys.modules.pop(name, None)


def test_ranks_share_their_places_where_values_are_equal(plans):
    assert list(plans.ranks([30.0, 10.0, 20.0, 20.0])) == [4.0, 1.0, 2.5, 2.5]
    assert plans.spearman([1, 2, 3, 4], [10, 20, 30, 1000]) == pytest.approx(1.0)
    assert plans.spearman([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1.0)
    assert plans.spearman([1, 2, 3, 4, 5], [5, 6, 7, 8, 7]) == pytest.approx(0.8207826817)
    assert plans.spearman([1, 1, 1], [1, 2, 3]) != plans.spearman([1, 1, 1], [1, 2, 3])  # nan


def test_a_plan_that_ends_the_process_is_the_last_announced(plans):
    timed = {"plan": "mr=4", "cycles": 10.0, "seconds": 1e-6, "error": ""}
    lines = "\n".join(json.dumps(event) for event in ("mr=4", timed, "mr=8"))
    found, note = plans.parse_events(lines, -11, "")
    assert [each.plan for each in found] == ["mr=4", "mr=8"]
    assert [each.error for each in found] == ["", "ended the process: exit status -11"]
    assert note == ""
    assert plans.parse_events("", 1, "no such rule") == ([], "no such rule")


def outcome(plans, rule, seconds, errors=()):
    kernel = plans.Kernel(rule, "k", "")
    good = [plans.Timed(f"p={at}", 100.0 * s, s) for at, s in enumerate(seconds)]
    return plans.Outcome(kernel, (*good, *(plans.Timed("q", 0, 0, error) for error in errors)))


def test_figures_ask_for_the_default_to_be_near_the_best(plans):
    near = [outcome(plans, "gemm", [1.05, 1.0, 2.0]) for _ in range(3)]
    figures = plans.figures_of(near, ["gemm"])
    assert all(figure.ok is not False for figure in figures)
    told = {figure.name: figure for figure in figures}
    assert told["default within 1.10x of the best"].value == 1.0
    assert told["rank correlation, median"].value == pytest.approx(1.0)
    far = plans.figures_of([*near, outcome(plans, "conv", [3.0, 1.0], ["wrong"])], ["gemm", "conv"])
    short = {figure.name for figure in far if figure.ok is False}
    assert short == {
        "kernels of conv",
        "plans that fail or give another answer",
        "default within 1.10x of the best",
        "default within 1.25x of the best",
    }


def test_changes_of_plans_are_told_kernel_by_kernel(plans):
    def kernel(text):
        return {"label": "conv_relu", "plans": text}

    before = {"net": {"a": kernel("y: conv rows=1"), "b": kernel("z: gemm mr=4"), "c": kernel("")}}
    after = {"net": {"a": kernel("y: conv rows=2"), "b": kernel("z: gemm mr=4"), "d": kernel("n")}}
    lines, total = plans.compare(before, after)
    assert total == 3
    assert lines == [
        "net conv_relu a:\n  - y: conv rows=1\n  + y: conv rows=2",
        "net conv_relu d: new kernel\n  + n",
        "net conv_relu c: gone",
    ]
    assert plans.compare(after, after) == ([], 3)


TARGETS = {  # the type of bytes that it has dot products of, and whether it has matrix tiles
    "x86_64-linux-gnu -mcpu=emeraldrapids": ("u8", True),
    "x86_64-linux-gnu -mcpu=haswell": ("", False),
    "aarch64-linux-gnu -mcpu=neoverse-n1": ("i8", False),
}


def test_no_two_kernels_have_the_same_title(plans):
    assert max(Counter(each.title for each in plans.KERNELS).values()) == 1


@pytest.mark.parametrize(
    "target",
    [
        pytest.param(each, marks=[] if has_tiles else [pytest.mark.fuzz])
        for each, (_, has_tiles) in TARGETS.items()
    ],
)
def test_every_open_rule_has_three_kernels_that_it_schedules(plans, target):
    bytes_of_dots, has_tiles = TARGETS[target]
    rules = plans.open_rules(Target.parse(target))
    met = Counter()
    for kernel in plans.KERNELS:
        if kernel.rule not in rules:
            continue
        features = " -mattr=-amx-tile" if has_tiles and kernel.rule in plans.DOT_RULES else ""
        made = schedule(kernel.function, target + features, threads=2, constants=kernel.constants)
        assert [each.block for each in made.offers] == [each.block for each in made.decisions]
        assert kernel.rule in {each.rule for each in made.decisions}, kernel.name
        met[kernel.rule] += 1
    missing = () if plans.BYTES[0] == bytes_of_dots else plans.DOT_RULES
    missing += () if has_tiles else plans.TILE_RULES
    every = {rule.name for entry in RULES for rule in entry if rule.plan is not Closed}
    assert {name: met[name] for name in every if met[name] < 3} == dict.fromkeys(missing, 0)


def test_each_job_has_cores_of_its_own(plans, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)))
    assert plans.cores_of_jobs(1, 2) == [()]
    assert plans.cores_of_jobs(2, 2) == [[0, 1], [2, 3]]
    with pytest.raises(SystemExit, match="need more than 4 cores"):
        plans.cores_of_jobs(3, 2)
    monkeypatch.setattr(plans, "place_in_core", lambda cpu: cpu % 2)
    assert plans.cores_of_jobs(2, 2) == [[0, 2], [1, 3]]


def test_second_threads_of_a_core_are_told_apart(plans, tmp_path):
    for cpu, siblings in enumerate(("0,2", "1,3", "0,2", "1,3", "4-5", "4-5", "6")):
        told = tmp_path / f"cpu{cpu}/topology/thread_siblings_list"
        told.parent.mkdir(parents=True)
        told.write_text(f"{siblings}\n")
    assert [plans.place_in_core(cpu, tmp_path) for cpu in range(8)] == [0, 0, 1, 1, 0, 1, 0, 0]


def test_the_kernels_of_a_model_are_listed_once_with_their_plans():
    graph = parse(
        """graph @main(%x: f32[64, 64], %w: f32[64, 64]) -> (f32[64, 64]) {
          %a = matmul(%x, %w)
          %b = relu(%a)
          %c = matmul(%b, %w)
          %d = relu(%c)
          return %d
        }"""
    )
    target = Target.parse("x86_64-linux-gnu -mcpu=haswell")
    _, jobs = planned_calls(optimize(graph, target, Options(threads=1)), KernelSetting(target, 1))
    jobs = tuple(jobs.values())
    assert len(jobs) == len({job.key for job in jobs})
    rules = [each.rule for job in jobs for each in schedule_job(job, function_of(job)).decisions]
    assert rules.count("gemm") == 1


def test_plans_of_another_revision_are_those_of_its_package(plans, tmp_path):
    """Not of the installed one, which an editable installation finds first."""
    package = tmp_path / "tilewright"
    package.mkdir()
    (package / "__init__.py").write_text("")
    script = tmp_path / "script.py"
    script.write_text("import sys, tilewright; print(tilewright.__file__, *sys.argv[1:])")
    command = [sys.executable, "-c", plans.FROM_SOURCE, tmp_path, tmp_path, script, "--list"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(package / "__init__.py"), "--list"]
