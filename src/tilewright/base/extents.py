"""What estimates assume of sizes that are not known until a call.

    likely_extent(1, 64)      8: of a size in a range that the user gave
    ASSUMED.image_pixels      without a range, by what the size is

Answers never depend on these; only plans do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class DynamicExtents:
    """Assumed values of dynamic sizes without a range."""

    elements: int = 128  # along any axis of a tensor
    image_pixels: int = 224  # along the height or width of an image
    sequences: int = 4  # in a batch of recurrent layers, many calls having a single one
    template_iterations: int = 256  # of a loop: factors up to this are candidates of a template


ASSUMED = DynamicExtents()


def likely_extent(least: int, most: int) -> int:
    """The likely value of a size in a range: the geometric mean, since ranges span orders of
    magnitude."""
    return round(math.sqrt(max(1, least) * max(1, most)))
