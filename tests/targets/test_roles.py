"""Roles of a kernel are checked by the interpreter: whatever synchronization lacks is an error."""

import re
import sys
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.base.errors import ExecutionError
from tilewright.tensor import parse
from tilewright.tensor.passes import lower

sys.path.insert(0, str(Path(__file__).parent))
from test_hopper import planned

SHAPES = [(128, 64, 640), (128, 128, 512), (64, 256, 768)]  # the ring goes round in all
FOUND = ("TW2427", "TW2428", "TW2429", "TW2430")


@cache
def program(shape):
    return str(lower(planned(*shape), "gpu"))


def operands(shape):
    m, n, k = shape
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, k)).astype(ml_dtypes.bfloat16) for rows in (m, n))
    return a, b, np.zeros((m, n), ml_dtypes.bfloat16)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(3))
def test_the_lowered_program_computes_the_product_in_any_order(shape, seed):
    a, b, out = operands(shape)
    tw.interpret(parse(program(shape)), a, b, out, seed=seed)
    want = a.astype(np.float32) @ b.astype(np.float32).T
    np.testing.assert_allclose(out.astype(np.float32), want, rtol=1e-2, atol=0.5)


def without(pattern):
    """A fault: the first line that matches is gone."""
    return lambda text: re.sub(rf"\n[^\n]*{pattern}[^\n]*", "", text, count=1)


def changed(pattern, to):
    return lambda text: re.sub(pattern, to, text, count=1)


def arrives_early(text):
    return re.sub(
        r"(\n *eval wgmma\.tile[^\n]*)(\n *eval mbarrier\.arrive[^\n]*)", r"\2\1", text, count=1
    )


def copies_early(text):
    return re.sub(
        r"(\n *eval mbarrier\.wait:bool\(address\(%empty[^\n]*)"
        r"((?:\n *eval (?:mbarrier\.expect|tma)[^\n]*)+)",
        r"\2\1",
        text,
        count=1,
    )


EXPECTED = r"(mbarrier\.expect:bool\(address\(%full\[[^]]*\]\), )(\d+)"
WANTED = r"(init:bool\(address\(%empty\[0\]\), \d+, )(\d+)"
FAULTS = {
    "no wait for the tile": without(r"mbarrier\.wait:bool\(address\(%full"),
    "no wait for the slot": without(r"mbarrier\.wait:bool\(address\(%empty"),
    "no arrival": without(r"mbarrier\.arrive"),
    "no bytes expected": without(r"mbarrier\.expect"),
    "too many bytes": changed(EXPECTED, r"\g<1>9\2"),
    "too few bytes": changed(EXPECTED, r"\g<1>128"),
    "one copy is missing": without(r"tma\.load"),
    "the slot is given back too early": arrives_early,
    "the slot is taken too early": copies_early,
    "too many arrivals wanted": changed(WANTED, r"\g<1>9\2"),
    "too few arrivals wanted": changed(WANTED, r"\g<1>3"),
    "another slot is read": changed(r"(wgmma\.tile.*?%A_shared\.b128\[)", r"\g<1>4096 + "),
    "the consumer's phase": changed(
        r"(mbarrier\.wait:bool\(address\(%full\[[^]]*\]\), )([^\n]*)\)\n", r"\g<1>1 - (\2))\n"
    ),
    "the producer's phase": changed(
        r"(mbarrier\.wait:bool\(address\(%empty\[[^]]*\]\), )([^\n]*)\)\n", r"\g<1>1 - (\2))\n"
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.sampled
def test_a_planted_fault_is_found(fault, shape, seed):
    good = program(shape)
    bad = FAULTS[fault](good)
    assert bad != good
    with pytest.raises(ExecutionError) as caught:
        tw.interpret(parse(bad), *operands(shape), seed=seed)
    assert caught.value.code in FOUND
