"""The passes of each kind of target, in order."""

from __future__ import annotations

from tilewright.base.passes import Pass
from tilewright.base.target import CPU
from tilewright.graph.ir import Module
from tilewright.graph.passes import CANONICAL, FUSED, LAYOUT, OPTIMIZED

PIPELINES: dict[str, tuple[Pass[Module], ...]] = {
    CPU: (*CANONICAL, *OPTIMIZED, *LAYOUT, *FUSED),
}
