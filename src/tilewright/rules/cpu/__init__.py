"""Schedules for CPUs: plans, costs and the steps that apply them, one kind of kernel per file."""

from __future__ import annotations

from tilewright.rules.cpu.attention import attention
from tilewright.rules.cpu.attention_amx import attention_amx
from tilewright.rules.cpu.conv import CONV
from tilewright.rules.cpu.conv_amx import conv_amx
from tilewright.rules.cpu.conv_dot import CONV_DOT
from tilewright.rules.cpu.depthwise import DEPTHWISE
from tilewright.rules.cpu.depthwise_nchw import DEPTHWISE_NCHW
from tilewright.rules.cpu.elementwise import elementwise
from tilewright.rules.cpu.fallback import FALLBACK, spread
from tilewright.rules.cpu.fused_reductions import rows
from tilewright.rules.cpu.gemm import GEMM
from tilewright.rules.cpu.gemm_amx import gemm_amx
from tilewright.rules.cpu.gemm_dot import GEMM_DOT
from tilewright.rules.cpu.gemv import GEMV
from tilewright.rules.cpu.pooling import POOLING
from tilewright.rules.cpu.recurrent import recurrent
from tilewright.rules.cpu.reduction import reduction
from tilewright.rules.cpu.transpose import transpose
from tilewright.rules.cpu.winograd import WINOGRAD
from tilewright.rules.rule import RuleSet, closed

RULES: RuleSet = (
    (closed("attention_amx", attention_amx),),
    (closed("attention", attention),),
    (closed("recurrent", recurrent),),
    (WINOGRAD,),
    (DEPTHWISE,),
    (DEPTHWISE_NCHW,),
    (POOLING,),
    (closed("conv_amx", conv_amx),),
    (CONV_DOT,),
    (CONV,),
    (closed("gemm_amx", gemm_amx),),
    (GEMM_DOT,),
    (GEMV,),
    (GEMM,),
    (closed("fused_reductions", rows),),
    (closed("reduction", reduction),),
    (closed("transpose", transpose),),
    (closed("elementwise", elementwise),),
    (closed(FALLBACK, spread),),
)
