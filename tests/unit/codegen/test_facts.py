"""What the emitter knows of vectors of indices."""

import pytest

from tilewright.codegen.facts import as_pitched
from tilewright.sym import FloorDiv, FloorMod, Mul, add, const, size
from tilewright.tensor.ir import Broadcast, Ramp


@pytest.mark.parametrize("is_first", [True, False])
def test_rows_of_a_dynamic_pitch_are_known_in_either_order(is_first):
    """Sums and products are in an order of their own."""
    pitch, start = size("n"), size("i")
    lanes, two = Ramp(const(0), const(1), 4), Broadcast(const(2), 4)
    row, far = FloorMod(lanes, two), Broadcast(pitch, 4)
    found = as_pitched(
        add(
            Mul(far, row) if is_first else Mul(row, far),
            add(Broadcast(start, 4), FloorDiv(lanes, two)),
        )
    )
    assert found is not None
    assert found.pitch is pitch
    assert found.rows == (0, 1, 0, 1)
    assert found.offsets == (0, 0, 1, 1)
