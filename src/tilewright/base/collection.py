"""Pauses of Python's cyclic garbage collection.

with paused_collection():
    ...

What a compiler makes has few reference cycles, but so many objects that collections come often; and
each takes as long as all objects of the process are many: a third of a second beside PyTorch.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collection() -> Iterator[None]:
    """Collect no cycles meanwhile, for some seconds of work. Pauses may be nested."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
