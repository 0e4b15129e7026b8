"""A fixed, fast part of ONNX's backend suite; `bench/conformance.py` runs all of it."""

import sys
import zlib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from suite import FAILED, canonical, cases, native, run_test


def is_sampled(name):
    """One test of sixteen, chosen by name so that the choice never moves."""
    return zlib.crc32(name.encode()) % 16 == 0


def test_a_sample_of_the_node_tests_is_never_wrong():
    chosen = [test for name, test in cases("node").items() if is_sampled(name)]
    assert len(chosen) > 80
    outcomes = {test.name: run_test(test) for test in chosen}
    wrong = {name: end.message for name, end in outcomes.items() if end.status == FAILED}
    assert not wrong


def test_passes_keep_the_answers():
    chosen = [t for n, t in cases("node").items() if zlib.crc32(n.encode()) % 16 == 1]
    outcomes = {test.name: run_test(test, canonical) for test in chosen}
    wrong = {name: end.message for name, end in outcomes.items() if end.status == FAILED}
    assert not wrong


def test_native_code_of_several_operators_is_never_wrong():
    """One test of three; those of single operators are compiled by test_operator_table.py."""
    chosen = [
        test
        for kind in ("simple", "pytorch-operator")
        for name, test in cases(kind).items()
        if zlib.crc32(name.encode()) % 3 == 2
    ]
    assert len(chosen) > 10
    outcomes = {test.name: run_test(test, native) for test in chosen}
    wrong = {name: end.message for name, end in outcomes.items() if end.status == FAILED}
    assert not wrong


def test_pytorch_operators_are_never_wrong():
    outcomes = {name: run_test(test) for name, test in cases("pytorch-operator").items()}
    wrong = {name: end.message for name, end in outcomes.items() if end.status == FAILED}
    assert not wrong
