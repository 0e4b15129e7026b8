"""Stream-K and pingpong without a GPU: blocks share the steps of tiles, warpgroups alternate."""

import re
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.base.errors import ExecutionError, Unsupported
from tilewright.base.passes import PassContext
from tilewright.base.target import Target
from tilewright.codegen.nvptx import device_code
from tilewright.rules import schedule
from tilewright.rules.rule import Choice
from tilewright.tensor import parse
from tilewright.tensor.dependent_launch import WEIGHTS
from tilewright.tensor.passes import lower, run_passes
from tilewright.tensor.passes.specialize_roles import specialize_roles

sys.path.insert(0, str(Path(__file__).parent))
import test_hopper
from host_gpu import assembled
from test_hopper import TYPES, close, gemm, operands, small_gpu

HOPPER = Target.parse("cuda -arch=sm_90a")
STREAM = f"split_k=1 boxes=1 {test_hopper.STREAM_K}"
PINGPONG = f"split_k=1 boxes=1 {test_hopper.PINGPONG}"
ONE = "groups=1 block_n=64 slots=3 span=1"
# Sizes, multiprocessors, the plan, the form.
FORMS = {
    "two tiles of three": ((64, 192, 256), 2, f"{ONE} {STREAM}", {}),
    "whole waves first": ((64, 320, 128), 2, f"{ONE} {STREAM}", {}),
    "three blocks have one tile": ((64, 64, 512), 3, f"{ONE} {STREAM}", {}),
    "two warpgroups and an epilogue": (
        (128, 128, 320), 3, f"{ONE.replace('=1', '=2', 1)} {STREAM}", {"epilogue": True}),
    "edges": ((100, 72, 136), 3, f"{ONE} {STREAM}", {}),
    "boxes": ((64, 128, 512), 3, f"{ONE} {STREAM.replace('boxes=1', 'boxes=2')}", {}),
    "results of f32": ((64, 192, 128), 2, f"{ONE} {STREAM}", {"rounded": False}),
    "pingpong": ((192, 128, 256), 2, f"{ONE} {PINGPONG}", {"epilogue": True}),
    "pingpong of one step": ((128, 192, 64), 2, f"{ONE} {PINGPONG}", {}),
    "pingpong at edges": ((100, 200, 136), 3, f"{ONE} {PINGPONG}", {}),
    "pingpong with boxes": (
        (128, 128, 256), 3, f"{ONE} {PINGPONG}".replace("boxes=1", "boxes=2"), {}),
    "pingpong of a cluster": (
        (256, 128, 192), 2, f"{ONE} {PINGPONG}".replace("span=1", "span=2").replace(
            "cluster=1 along=k", "cluster=2 along=m"), {"epilogue": True}),
}  # fmt: skip
FOUND = ("TW2196", "TW2427", "TW2428", "TW2429", "TW2430", "TW2460")


@cache
def program(form, weights=False):
    sizes, blocks, plan, more = FORMS[form]
    fn = gemm(*sizes, **more)
    if weights:
        fn = replace(fn, attrs=(*fn.attrs, (WEIGHTS, (1,))))
    made = schedule(fn, small_gpu(blocks), choices={"C": Choice("gemm_hopper", plan)})
    assert [each.rule for each in made.decisions] == ["gemm_hopper"]
    return str(lower(made.schedule.function, "gpu", PassContext(target=HOPPER)))


def given_of(form):
    sizes, _, _, more = FORMS[form]
    given, want = operands(*sizes, **{k: v for k, v in more.items() if k != "rounded"})
    dtype = TYPES["bf16"] if more.get("rounded", True) else np.float32
    return given, want, np.full(want.shape, np.nan).astype(dtype)


@pytest.mark.parametrize("form", FORMS)
def test_the_product_is_computed(form):
    given, want, out = given_of(form)
    tw.interpret(parse(program(form)), *given, out, seed=len(form))
    close(out, want, out.dtype)


@pytest.mark.parametrize(
    "form", ["two tiles of three", "whole waves first", "three blocks have one tile"]
)
def test_weights_come_before_the_roles_part(form):
    """Also those of a block's first steps in its second tile."""
    text = program(form, weights=True)
    early, _ = text.split("eval grid.wait")
    assert "tma.load" in early
    given, want, out = given_of(form)
    tw.interpret(parse(text), *given, out, seed=3)
    close(out, want, out.dtype)


def without(pattern, which=0):
    """A fault: one of the lines that match is gone."""

    def fault(text):
        lines = list(re.finditer(rf"\n[^\n]*{pattern}[^\n]*", text))
        start, end = lines[which].span()
        return text[:start] + text[end:]

    return fault


def changed(pattern, to):
    return lambda text: re.sub(pattern, to, text, count=1)


SHARED = {
    "no signal": without(r"stream\.signal"),
    "no wait for the signal": without(r"stream\.wait"),
    "sums are not kept": without(r"stream\.keep"),
    "the signal of another": changed(r"(stream\.signal.*?%signals\[)", r"\g<1>4 + "),
    "the wait for another": changed(r"(stream\.wait.*?%signals\[)", r"\g<1>4 + "),
    "the sums of another": changed(r"(stream\.sum.*?%partial\[)", r"\g<1>4096 + "),
    "signal before sums": lambda text: re.sub(
        r"(\n *eval stream\.keep[^\n]*)(\n *eval stream\.signal[^\n]*)", r"\2\1", text),
    "nobody waits for a part": changed(r"for %other in [^\n]*", "for %other in 0..0 {"),
    "no wait for the tile": without(r"mbarrier\.wait:bool\(address\(%full"),
    "no wait for the slot": without(r"mbarrier\.wait:bool\(address\(%empty"),
}  # fmt: skip
TAKEN = {
    "no wait for the turn": without(r"mbarrier\.wait:bool\(address\(%order"),
    "the turn is not given": without(r"mbarrier\.arrive:bool\(address\(%order"),
    "the turn of itself": changed(r"(arrive:bool\(address\(%order\[)1 - ", r"\g<1>"),
    "the phase of the turn": changed(r"(wait:bool\(address\(%order\[[^\n]*), [^\n]*", r"\1, 1)"),
    "slots given back too early": without(r"wgmma\.wait"),
    "sums used too early": without(r"wgmma\.wait", -1),
    "a step later is awaited": changed(r"(wgmma\.wait[^\n]*), 0, 1\)", r"\1, 0, 2)"),
    "no wait for the tile": without(r"mbarrier\.wait:bool\(address\(%full", 1),
    "no wait for the slot": without(r"mbarrier\.wait:bool\(address\(%empty"),
    "both arrive at a slot": changed(r"(init:bool\(address\(%empty\[0\]\), 3, )4", r"\g<1>8"),
}
FAULTS = {
    **{name: ("two tiles of three", plant) for name, plant in SHARED.items()},
    **{f"pingpong, {name}": ("pingpong", plant) for name, plant in TAKEN.items()},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault):
    form, plant = FAULTS[fault]
    good = program(form)
    bad = plant(good)
    assert bad != good
    given, _, out = given_of(form)
    with pytest.raises(ExecutionError) as caught:
        tw.interpret(parse(bad), *given, out, seed=len(fault))
    assert caught.value.code in FOUND


@pytest.mark.parametrize(
    ("sizes", "plan", "epilogue"),
    [
        ((64, 4096, 4096), f"groups=1 block_n=64 slots=6 span=1 {STREAM}", False),
        ((4096, 4096, 4096), f"groups=2 block_n=256 slots=4 span=16 {STREAM}", True),
        ((4096, 4096, 4096), f"groups=1 block_n=256 slots=5 span=16 {PINGPONG}", True),
    ],
)
def test_assembled_without_spills(sizes, plan, epilogue):
    made = schedule(
        gemm(*sizes, epilogue=epilogue), HOPPER, choices={"C": Choice("gemm_hopper", plan)}
    )
    fn = lower(made.schedule.function, "gpu", PassContext(target=HOPPER))
    code = device_code(fn, HOPPER)
    assert "0 bytes spill stores, 0 bytes spill loads" in assembled(code.ptx)
    assert [each.is_together for each in code.kernels] == [STREAM in plan]  # who waits for whom


def test_more_blocks_than_steps_are_refused():
    text = """
    func @f(%A: bf16[64, 64], %B: bf16[64, 64], %C: f32[64, 64]) stage scheduled {
      for %b in thread(blockIdx.x) 0..1 { for %g in thread(threadIdx.y) 0..1 {
        alloc %S: f32[64, 64] in wgmma.sum
        for %k in 0..1 [specialize = (2, 4, 1, 1, 1)] {
          alloc %X: bf16[64, 64] in shared.b128
          eval tma.load:bool(address(%X[0, 0]), address(%A[0, 0]), 64,
                             stride:index(address(%A[0, 0]), 0), 0)
          eval wgmma.tile:bool(address(%S[0, 0]), address(%X[0, 0]), address(%X[0, 0]), 64, 0)
        }
      } }
    }"""
    with pytest.raises(Unsupported) as caught:
        run_passes(parse(text), (specialize_roles,))
    assert caught.value.code == "TW2260"
