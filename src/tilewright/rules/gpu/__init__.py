"""Schedules for GPUs: every block of a function on threads, one kind of kernel per file."""

from __future__ import annotations

from tilewright.rules.gpu.contraction import GEMM
from tilewright.rules.gpu.convolution import CONVOLUTION
from tilewright.rules.gpu.elementwise import elementwise
from tilewright.rules.gpu.fallback import fallback
from tilewright.rules.gpu.gemm_hopper import GEMM_HOPPER
from tilewright.rules.gpu.gemv import GEMV
from tilewright.rules.gpu.reduction import reduction
from tilewright.rules.gpu.rows import rows
from tilewright.rules.rule import RuleSet, closed

RULES: RuleSet = (
    (GEMM_HOPPER,),
    (CONVOLUTION,),
    (GEMM,),
    (closed("rows", rows),),
    (GEMV,),
    (closed("reduction", reduction),),
    (closed("elementwise", elementwise),),
    (closed("fallback", fallback),),
)
