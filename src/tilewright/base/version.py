"""The version of the code, for what is kept between versions. `tilewright.__version__` is the
same: packaging reads it there."""

from __future__ import annotations

VERSION = "0.2.0"
