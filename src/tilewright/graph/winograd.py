"""The stages of Winograd's method, as lowering marks their blocks and the schedule finds them."""

from __future__ import annotations

ROLE = "winograd"  # the annotation, with one of these values
PADDED = "padded"
HALF = "half"
IMAGE = "image"
WEIGHTS = "weights"
PRODUCT = "product"
COLUMNS = "columns"
RESULT = "result"
