"""The table of operators in the documentation says what compiling ONNX's own tests shows.

`bench/conformance.py --table` compares all of it.
"""

import sys
import zlib
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(ROOT / "tools" / "site"))

# Scripts, which are found now alone: E402.
from operators import FALLBACK, NATIVE, REFUSED, UNTRIED, own_test, rows_of  # noqa: E402
from run_operators import operators_of, outcome, shown  # noqa: E402
from suite import PASSED, UNSUPPORTED, cases, native, run_test  # noqa: E402

from tilewright.base.target import Target  # noqa: E402
from tilewright.frontends.onnx.rules import RULES  # noqa: E402


def ended(test):
    """How a test ends when it is compiled and run, in the words of the table."""
    end = run_test(test, native)
    if end.status == UNSUPPORTED:
        return REFUSED
    assert end.status == PASSED, end.message
    return FALLBACK if end.fallbacks else NATIVE


def test_the_table_says_what_compiling_shows_and_no_answer_is_wrong():
    """One test of twenty-eight."""
    chosen = [t for name, t in cases("node").items() if zlib.crc32(name.encode()) % 28 == 2]
    assert len(chosen) > 40
    target = Target.parse("cpu")
    told = {test.name: outcome(test.model, target) for test in chosen}
    assert told == {test.name: ended(test) for test in chosen}
    assert list(told.values()).count(NATIVE) > 0.9 * len(told)


def test_every_operator_that_is_imported_has_a_row():
    found = {"test_a": {"ops": [["ai.onnx", "Abs"]], "status": REFUSED}}
    rows = {(row["domain"], row["name"]): row["status"] for row in rows_of(found)}
    assert rows.keys() == RULES.keys()
    assert rows.pop(("ai.onnx", "Abs")) == REFUSED
    assert set(rows.values()) == {UNTRIED}


def test_tests_that_no_row_shows_are_not_tried():
    tests = cases("node")
    ops = {name: [list(op) for op in operators_of(test)] for name, test in tests.items()}
    ends = {name: {"ops": found, "status": NATIVE} for name, found in ops.items()}
    assert rows_of({name: ends[name] for name in shown(tests)}) == rows_of(ends)


def test_every_operator_is_in_a_test_of_the_suite_or_of_ours():
    tried = {
        (node.domain or "ai.onnx", node.op_type)
        for test in cases("node").values()
        for node in test.model.graph.node
    }
    for domain, name in RULES.keys() - tried:
        assert own_test(name), domain
