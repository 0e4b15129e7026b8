"""The page of the model IR lists every pass; every operator is documented."""

import re
from pathlib import Path

from tilewright.driver.pipelines import PIPELINES
from tilewright.graph.ops import OPS

PAGE = Path(__file__).parents[3] / "docs/internals/graph.md"


def test_the_page_lists_every_pass():
    listed = set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE))
    used = {step.__name__ for passes in PIPELINES.values() for step in passes}
    assert used <= listed, used - listed


def test_every_operator_is_documented():
    for op in OPS.values():
        assert op.doc.endswith("."), op.name
        assert len({spec.name for spec in op.inputs}) == len(op.inputs), op.name
