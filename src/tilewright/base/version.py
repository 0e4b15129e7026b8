"""The code's version, part of persistent cache keys. `tilewright.__version__` repeats it for
packaging."""

from __future__ import annotations

VERSION = "0.2.0"
