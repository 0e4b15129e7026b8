"""GEMM on sm_80 without a GPU: behaviour interpreted, faults planted, PTX assembled."""

import re
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.base.errors import ExecutionError, Unsupported
from tilewright.base.passes import PassContext
from tilewright.base.target import Target
from tilewright.intrin import ampere
from tilewright.rules import schedule
from tilewright.rules.rule import Choice
from tilewright.tensor import parse
from tilewright.tensor.passes import lower

sys.path.insert(0, str(Path(__file__).parent))
from host_gpu import assembled
from test_hopper import ALONE, FORMS, OFTEN, TYPES, close, gemm, operands

TARGET = "cuda -arch=sm_80"
CTX = PassContext(target=Target.parse(TARGET))


@cache
def planned(m, n, k, dtype="bf16", rounded=True, *, split=1, slots=3, **form):
    """Scheduled by the rule, with a plan that suits a small problem."""
    groups = 2 if m >= 128 else 1
    plan = f"groups={groups} block_n=64 slots={slots} span=1 split_k={split} boxes=1 {ALONE}"
    choices = {"C": Choice("gemm_ampere", plan)}
    made = schedule(gemm(m, n, k, dtype, rounded, **form), TARGET, choices=choices)
    assert made.decisions[0].rule == "gemm_ampere"
    return made.schedule.function


@pytest.mark.parametrize("form", FORMS)
def test_every_shape_is_computed(form):
    given, want = operands(**FORMS[form])
    out = np.full(want.shape, np.nan).astype(TYPES["bf16"])
    tw.interpret(lower(planned(**FORMS[form]), "gpu", CTX), *given, out, seed=1)
    close(out, want, out.dtype)


@pytest.mark.parametrize("form", OFTEN)
def test_schedules_of_every_shape_compute_it(form):
    given, want = operands(**FORMS[form])
    out = np.full(want.shape, np.nan).astype(TYPES["bf16"])
    tw.interpret(planned(**FORMS[form]), *given, out, seed=1)
    close(out, want, out.dtype)


@pytest.mark.parametrize("form", FORMS)
def test_every_shape_has_code_without_local_memory(form):
    run = tw.build(planned(**FORMS[form]), TARGET)
    assert not re.search(r"^\s*call", run.ptx, re.MULTILINE)
    assert ".local" not in run.ptx
    assert len(run.kernels) == 1  # nothing is padded or cropped beside it


@pytest.mark.parametrize("slots", [2, 3, 4, 5])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_rings_longer_and_shorter_than_the_sum(slots, steps):
    given, want = operands(64, 64, 64 * steps)
    out = np.full(want.shape, np.nan).astype(TYPES["bf16"])
    tw.interpret(lower(planned(64, 64, 64 * steps, slots=slots), "gpu", CTX), *given, out, seed=2)
    close(out, want, out.dtype)


def test_parts_of_a_sum_are_added_up():
    given, want = operands(16, 64, 512)
    scheduled = planned(16, 64, 512, split=4)
    assert len(tw.build(scheduled, TARGET).kernels) == 2
    out = np.full((16, 64), np.nan).astype(TYPES["bf16"])
    tw.interpret(lower(scheduled, "gpu", CTX), *given, out)
    close(out, want, out.dtype)


def test_a_gpu_of_sm_80_multiplies_by_it_and_an_older_one_does_not():
    assert schedule(gemm(512, 512, 256), TARGET).decisions[0].rule == "gemm_ampere"
    assert schedule(gemm(512, 512, 256), "cuda -arch=sm_90").decisions[0].rule == "gemm_ampere"
    assert schedule(gemm(512, 512, 256), "cuda -arch=sm_75").decisions[0].rule == "gemm"


def test_the_code_has_what_ampere_has():
    run = tw.build(planned(100, 128, 256), TARGET)
    for wanted in (
        r"\.target sm_80",
        r"cp\.async\.cg\.shared\.global",
        r"cp\.async\.commit_group",
        r"cp\.async\.wait_group\s+1",
        r"ldmatrix\.sync\.aligned\.m8n8\.x4\.shared\.b16",
        r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.bf16\.bf16\.f32",
    ):
        assert re.search(wanted, run.ptx), wanted
    turned = tw.build(planned(64, 64, 128, along_n=True), TARGET)
    assert "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16" in turned.ptx


# --------------------------------------------------------------------------- planted faults

FOUND = ("TW2427", "TW2428")
SHAPES = [(128, 64, 320), (128, 128, 256), (64, 64, 448)]  # the ring goes round in all


@cache
def program(shape):
    return str(lower(planned(*shape), "gpu", CTX))


def arguments(shape):
    given, want = operands(*shape)
    return (*given, np.zeros(want.shape, TYPES["bf16"]))


def at(number, pattern, to):
    """A fault: what a pattern finds is changed, once, at its place of this number."""

    def change(text):
        found = list(re.finditer(pattern, text))[number]
        return text[: found.start()] + found.expand(to) + text[found.end() :]

    return change


WAIT, BARRIER = r"\n *eval cp\.async\.wait[^\n]*", r"\n *eval barrier\.shared\(\)"
COMMIT, COPY = r"\n *eval cp\.async\.commit[^\n]*", r"\n *eval cp\.async\.tile[^\n]*"
FAULTS = {
    "no wait": at(0, WAIT, ""),
    "no last wait": at(-1, WAIT, ""),
    "a wait for too few": at(0, r"cp\.async\.wait:bool\(1\)", "cp.async.wait:bool(2)"),
    "a last wait for too few": at(-1, r"cp\.async\.wait:bool\(1\)", "cp.async.wait:bool(2)"),
    "no barrier behind the wait": at(0, rf"({WAIT}){BARRIER}", r"\1"),
    "no barrier behind the last wait": at(-1, rf"({WAIT}){BARRIER}", r"\1"),
    "the barrier before the wait": at(0, rf"({WAIT})({BARRIER})", r"\2\1"),
    "no first group": at(0, COMMIT, ""),
    "no group in the loop": at(2, COMMIT, ""),
    "no copy": at(0, COPY, ""),
    "no copy in the loop": at(4, COPY, ""),
    "another slot is filled": at(0, r"%r_0 % 3", "(%r_0 + 1) % 3"),
    "another slot is read": at(0, r"\(%r_0 \+ 1\) % 3", "%r_0 % 3"),
    "copies behind the next barrier": at(
        0, rf"({WAIT})({BARRIER})((?:{COPY})+)", r"\3\1\2"
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.sampled
def test_a_planted_fault_is_found(fault, shape, seed):
    bad = FAULTS[fault](program(shape))
    assert bad != program(shape)
    with pytest.raises(ExecutionError) as caught:
        tw.interpret(parse(bad), *arguments(shape), seed=seed)
    assert caught.value.code in FOUND


def test_copies_without_a_plan_are_waited_for_at_once():
    scheduled = re.sub(r" \[software_pipeline[^]]*\]", "", str(planned(64, 64, 256)))
    lowered = lower(parse(scheduled), "gpu", CTX)
    assert str(lowered).count("cp.async.wait:bool(0)") == 2  # of A and of B
    given, want = operands(64, 64, 256)
    out = np.full(want.shape, np.nan).astype(TYPES["bf16"])
    tw.interpret(lowered, *given, out)
    close(out, want, out.dtype)


@pytest.mark.parametrize(("axis", "shown"), [("threadIdx.z", "threadIdx.z"), ("threadIdx.x", "2")])
def test_threads_that_cannot_share_a_copy_are_refused(axis, shown):
    text = str(planned(128, 64, 256)).replace("threadIdx.y", axis)
    with pytest.raises(Unsupported) as caught:
        lower(parse(text), "gpu", CTX)
    assert caught.value.code == "TW2335"
    assert shown in caught.value.message


@pytest.mark.parametrize("n", range(16, 257, 16))
def test_every_width_is_declared(n):
    behavior = ampere.dot_of("bf16", n).behavior
    assert behavior.name == "mma_bf16"
    assert [str(dim) for dim in behavior.buffers[2].shape] == ["64", str(n)]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90"])
def test_the_assembler_finds_no_fault_and_spills_nothing(dtype, arch):
    target = f"cuda -arch={arch}"
    made = schedule(gemm(4096, 4096, 4096, dtype), target)
    assert made.decisions[0].rule == "gemm_ampere"
    told = assembled(tw.build(made.schedule.function, target).ptx, arch)
    assert "0 bytes spill stores, 0 bytes spill loads" in told
