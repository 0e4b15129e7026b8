"""Fences between threads and asynchronous instructions: what the interpreter finds missing."""

import importlib.util
import re
import sys
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.base.errors import ExecutionError
from tilewright.base.passes import PassContext
from tilewright.tensor import parse
from tilewright.tensor.passes import lower
from tilewright.tensor.passes.insert_fences import insert_fences

sys.path.insert(0, str(Path(__file__).parent))
import test_ampere as ampere
import test_attention_hopper as attention
import test_clusters as clusters
import test_hopper as hopper

EXAMPLES = Path(__file__).parents[2] / "examples"
FOUND = ("TW2304", "TW2427", "TW2431", "TW2432", "TW2494")
SEEDS = range(3)


def _by_threads():
    """Threads fill tiles by ordinary stores; warpgroups multiply them."""
    spec = importlib.util.spec_from_file_location("gpu_wgmma", EXAMPLES / "gpu_wgmma.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return lower(made.scheduled(made.matmul(128)).function, "gpu")


def _by_cp_async():
    """Threads fill tiles by `cp.async`; warpgroups multiply them."""
    text = str(lower(ampere.planned(128, 64, 320), "gpu", ampere.CTX))
    return insert_fences(parse(text.replace("mma.tile", "wgmma.tile")), PassContext())


def _square():
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((128, 128)).astype(ml_dtypes.bfloat16) for _ in "ab")
    return [a, b, np.zeros((128, 128), np.float32)]


def _gemm(m, n, k):
    given, want = hopper.operands(m, n, k)
    return [*given, np.zeros(want.shape, ml_dtypes.bfloat16)]


def _attention():
    given = attention.operands(q=(1, 1, 128), keys=640)
    return [*given, np.zeros((1, 1, 128, 64), ml_dtypes.bfloat16)]


def _cluster():
    given, _, out = clusters.given_of("tiles of B")
    return [*given, out]


PROGRAMS = {  # each with its arguments
    "stores": (_by_threads, _square),
    "cp.async": (_by_cp_async, lambda: _gemm(128, 64, 320)),
    "zeros": (lambda: lower(hopper.planned(128, 40, 256), "gpu"), lambda: _gemm(128, 40, 256)),
    "zeros of one group": (
        lambda: lower(hopper.planned(40, 24, 320), "gpu"),
        lambda: _gemm(40, 24, 320),
    ),
    "attention": (lambda: parse(attention.program(attention.BOTH)), _attention),
    "cluster": (lambda: parse(clusters.program("tiles of B")), _cluster),
}
FENCE, BARRIER = r"\n *eval fence\.async\(\)", r"\n *eval barrier\.shared\(\)"
INIT, INITS = r"\n *eval mbarrier\.fence:bool\(\)", r"(?:\n *eval mbarrier\.init[^\n]*)+"
CLEAR, MEET = r"\n *eval tile\.clear[^\n]*", r"\n *eval barrier\.(?:shared|cluster)\(\)"
STORES = r"\n *for [^\n]*\{\n[^\n]*_shared\[[^\n]* = [^\n]*\n *\}"


@cache
def program(name):
    return str(PROGRAMS[name][0]())


def at(number, pattern, to):
    """A fault: what a pattern finds is changed, once, at its place of this number."""

    def change(text):
        found = list(re.finditer(pattern, text))[number]
        return text[: found.start()] + found.expand(to) + text[found.end() :]

    return change


def everywhere(pattern, to):
    return lambda text: re.sub(pattern, to, text)


def partly(cond, number=0):
    """Only some threads execute a fence."""
    return at(number, r"\n *(eval fence\.async\(\))", rf"\nif {cond} {{ \1 }}")


COPIED = {
    "no fence anywhere": everywhere(FENCE, ""),
    "the fence behind the barrier": everywhere(rf"({FENCE})({BARRIER})", r"\2\1"),
}
MADE = {
    "barriers are not fenced": at(0, INIT, ""),
    "barriers are fenced before they are made": at(0, rf"({INITS})({INIT})", r"\2\1"),
    "barriers are fenced when threads have met": at(0, rf"({INIT})([^§]*?{MEET})", r"\2\1"),
    "barriers are made when threads have met": at(
        0, rf"({INITS}{INIT})([^§]*?{MEET})", r"\2\1"
    ),
    "the fence is another one": at(0, r"mbarrier\.fence:bool\(\)", "fence.async()"),
}  # fmt: skip
ZEROS = {
    **MADE,
    "no fence behind zeros": at(0, FENCE, ""),
    "the fence before zeros": at(0, rf"({CLEAR})({FENCE})", r"\2\1"),
    "the fence when threads have met": at(0, rf"({FENCE})({BARRIER})", r"\2\1"),
    "zeros when threads have met": at(0, rf"({CLEAR}{FENCE})({BARRIER})", r"\2\1"),
    "the fence of zeros is another one": at(0, r"fence\.async\(\)", "mbarrier.fence:bool()"),
    "one group fences": partly("%i0_3 < 1"),
    "threads do not meet": at(0, BARRIER, ""),
}
FAULTS = {
    **{("stores", name): fault for name, fault in COPIED.items()},
    ("stores", "the fence before a tile is written"): at(
        0, rf"({STORES})({FENCE})({BARRIER})", r"\2\1\3"
    ),
    ("stores", "no fence in front of products"): at(1, FENCE, ""),
    ("stores", "half of the threads fence"): partly("%ax0_ax1_2 < 64", 1),
    ("stores", "one group fences"): partly("%i_1 < 1", 1),
    ("stores", "one warp does not fence"): partly("%ax0_ax1_2 // 32 != 3", 1),
    ("stores", "threads do not meet"): at(1, BARRIER, ""),
    **{("cp.async", name): fault for name, fault in COPIED.items()},
    ("cp.async", "no fence in the loop"): at(2, FENCE, ""),
    ("cp.async", "no fence behind the loop"): at(3, FENCE, ""),
    ("cp.async", "no last fence"): at(4, FENCE, ""),
    ("cp.async", "the fence before the wait"): everywhere(
        rf"(\n *eval cp\.async\.wait[^\n]*)({FENCE})", r"\2\1"
    ),
    ("cp.async", "one group fences"): partly("%i0_3 < 1", 2),
    **{("zeros", name): fault for name, fault in ZEROS.items()},
    **{("zeros of one group", name): fault for name, fault in ZEROS.items()},
    **{("attention", name): fault for name, fault in MADE.items()},
    **{("cluster", name): fault for name, fault in MADE.items()},
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_has_all_its_fences(name):
    given = PROGRAMS[name][1]()
    out = given[-1]
    for seed in SEEDS:
        tw.interpret(parse(program(name)), *given, seed=seed)
    if name not in ("attention", "cluster"):  # which have tests of their results
        want = given[0].astype(np.float32) @ (given[1] if name == "stores" else given[1].T).astype(
            np.float32
        )
        hopper.close(out, want, out.dtype)


def interpreted_with(fault, seed):
    """What the interpreter says of a planted fault; None if it finds nothing."""
    name, _ = fault
    bad = FAULTS[fault](program(name))
    assert bad != program(name)
    try:
        tw.interpret(parse(bad), *PROGRAMS[name][1](), seed=seed)
    except ExecutionError as error:
        return error.code
    return None


@pytest.mark.parametrize("fault", FAULTS, ids=": ".join)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.sampled
def test_a_planted_fault_is_found(fault, seed):
    assert interpreted_with(fault, seed) in FOUND
