"""Schedules for CPUs: plans, costs and the steps that apply them, one kind of kernel per file."""

from __future__ import annotations

from tilewright.rules.cpu.attention import ATTENTION
from tilewright.rules.cpu.attention_amx import ATTENTION_AMX
from tilewright.rules.cpu.conv import CONV
from tilewright.rules.cpu.conv_amx import CONV_AMX
from tilewright.rules.cpu.conv_dot import CONV_DOT
from tilewright.rules.cpu.depthwise import DEPTHWISE
from tilewright.rules.cpu.depthwise_dot import DEPTHWISE_DOT
from tilewright.rules.cpu.depthwise_nchw import DEPTHWISE_NCHW
from tilewright.rules.cpu.dot_tiles import DOT_TILES
from tilewright.rules.cpu.elementwise import ELEMENTWISE
from tilewright.rules.cpu.fallback import FALLBACK, STEPS
from tilewright.rules.cpu.fused_reductions import FUSED_REDUCTIONS
from tilewright.rules.cpu.gathered import GATHERED
from tilewright.rules.cpu.gemm import GEMM
from tilewright.rules.cpu.gemm_amx import GEMM_AMX
from tilewright.rules.cpu.gemm_dot import GEMM_DOT
from tilewright.rules.cpu.gemm_packed import GEMM_PACKED
from tilewright.rules.cpu.gemm_packed_dot import GEMM_PACKED_DOT
from tilewright.rules.cpu.gemv import GEMV
from tilewright.rules.cpu.grouped import GROUPED
from tilewright.rules.cpu.pooling import POOLING
from tilewright.rules.cpu.pooling_rows import POOLING_ROWS
from tilewright.rules.cpu.ranges import RANGE
from tilewright.rules.cpu.recurrent import RECURRENT
from tilewright.rules.cpu.reduction import REDUCTION
from tilewright.rules.cpu.sequence import SEQUENCE
from tilewright.rules.cpu.transpose import TRANSPOSE
from tilewright.rules.cpu.winograd import WINOGRAD
from tilewright.rules.rule import RuleSet

RULES: RuleSet = (
    (ATTENTION_AMX,),
    (ATTENTION,),
    (RECURRENT,),
    (WINOGRAD,),
    (DEPTHWISE_DOT, DEPTHWISE),
    (DEPTHWISE_NCHW,),
    (POOLING,),
    (POOLING_ROWS,),
    (CONV_AMX,),
    (CONV_DOT,),
    (CONV, GROUPED),
    (GEMM_PACKED_DOT,),
    (GEMM_AMX,),
    (GEMM_DOT,),
    (GEMM_PACKED,),
    (GEMV,),
    (DOT_TILES, GEMM),
    (RANGE,),
    (FUSED_REDUCTIONS,),
    (REDUCTION,),
    (TRANSPOSE,),
    (GATHERED,),
    (ELEMENTWISE,),
    (STEPS,),
    (SEQUENCE,),
    (FALLBACK,),
)
