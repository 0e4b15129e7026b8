"""Schedules for GPUs: every block of a function on threads."""

from tilewright.rules.gpu.contraction import gemm
from tilewright.rules.gpu.elementwise import elementwise
from tilewright.rules.gpu.fallback import fallback
from tilewright.rules.gpu.reduction import reduction

CUDA_RULES = (gemm, reduction, elementwise, fallback)

__all__ = ["CUDA_RULES"]
