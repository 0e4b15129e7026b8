"""External kernels and instructions as the interpreter runs them: symbol -> NumPy function.

    register("scale_rows", lambda x, s, out: np.multiply(x, s[:, None], out=out))

The function gets the regions of an `extern` statement as NumPy arrays, inputs first, and fills the
outputs in place. For an instruction called on addresses each address becomes the one-dimensional
array of what lies from there to the end of the buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Behavior = Callable[..., Any]

_behaviors: dict[str, Behavior] = {}


def register(symbol: str, function: Behavior) -> None:
    """Say what calling `symbol` does; the last one counts."""
    _behaviors[symbol] = function


def behavior(symbol: str) -> Behavior | None:
    """What calling `symbol` does, if anybody said."""
    return _behaviors.get(symbol)
