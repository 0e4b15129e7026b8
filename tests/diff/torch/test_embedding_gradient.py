"""The gradient of an embedding: rows added to a table of zeros."""

import pytest

torch = pytest.importorskip("torch")

from tilewright.plugins.torch import tilewright  # noqa: E402
from tilewright.runtime.profiler import profile  # noqa: E402


def test_the_gradient_of_a_table_is_one_kernel_that_writes_it_once():
    def gradient(rows, places):
        return torch.ops.aten.embedding_dense_backward(rows, places, 30_000, 0, False)

    rows, places = torch.randn(4, 32, 48), torch.randint(0, 60, (4, 32))
    compiled = torch.compile(gradient, backend=tilewright, options={"fallback": "error"})
    with torch.no_grad():
        torch.testing.assert_close(compiled(rows, places), gradient(rows, places))
        with profile() as record:
            compiled(rows, places)
    table = 30_000 * 48 * 4
    written = [event.kernel for event in record.events if event.size_bytes >= table]
    assert len(written) == 1
    assert "segment_reduce" in written[0]
