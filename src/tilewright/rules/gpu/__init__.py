"""Schedules for GPUs: one kind of kernel per file."""

from __future__ import annotations

from tilewright.rules.gpu.apart import APART
from tilewright.rules.gpu.attention_hopper import ATTENTION_HOPPER
from tilewright.rules.gpu.columns import COLUMNS
from tilewright.rules.gpu.contraction import GEMM
from tilewright.rules.gpu.convolution import CONVOLUTION
from tilewright.rules.gpu.depthwise import DEPTHWISE
from tilewright.rules.gpu.elementwise import ELEMENTWISE
from tilewright.rules.gpu.fallback import FALLBACK
from tilewright.rules.gpu.gemm_ampere import GEMM_AMPERE
from tilewright.rules.gpu.gemm_hopper import GEMM_HOPPER
from tilewright.rules.gpu.gemv import GEMV
from tilewright.rules.gpu.reduction import REDUCTION
from tilewright.rules.gpu.rows import ROWS
from tilewright.rules.gpu.scalar import SCALAR
from tilewright.rules.gpu.scan import SCAN_RULE
from tilewright.rules.gpu.sgemm import SGEMM
from tilewright.rules.gpu.steps import STEPS
from tilewright.rules.gpu.transpose import TRANSPOSE
from tilewright.rules.gpu.winograd import WINOGRAD
from tilewright.rules.rule import RuleSet

RULES: RuleSet = (
    (ATTENTION_HOPPER,),
    (WINOGRAD,),
    (GEMM_HOPPER,),
    (GEMM_AMPERE,),
    (CONVOLUTION,),
    (SGEMM,),
    (GEMM,),
    (ROWS, COLUMNS, APART),
    (GEMV,),
    (DEPTHWISE, REDUCTION),
    (SCAN_RULE,),
    (TRANSPOSE,),
    (ELEMENTWISE, SCALAR),
    (STEPS,),
    (FALLBACK,),
)

# Rules that serve any block within any target's registers and shared memory.
MODEST = frozenset(
    rule.name for rule in (REDUCTION, SCAN_RULE, ELEMENTWISE, SCALAR, STEPS, FALLBACK)
)
