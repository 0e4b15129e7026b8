"""Every pass keeps the interpreter's answer, on a corpus of programs and sizes."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from tilewright import sym
from tilewright.base.passes import PassContext
from tilewright.tensor import interpret, parse
from tilewright.tensor.intrin import TensorIntrin, declare
from tilewright.tensor.ir import Buffer, Function
from tilewright.tensor.passes import PIPELINES, lower
from tilewright.tensor.verify import verify
from tilewright.tensor.visit import replace_buffers

MATMUL = """
func @matmul(%A: f32[n, k], %B: f32[k, m], %C: f32[n, m]) stage scheduled {
  for %i in 0..n {
    for %j in 0..m {
      for %r in 0..k {
        block @C(%vi: spatial n = %i, %vj: spatial m = %j, %vk: reduce k = %r) {
          reads %A[%vi, %vk], %B[%vk, %vj]
          writes %C[%vi, %vj]
          init { %C[%vi, %vj] = 0.0 }
          %C[%vi, %vj] sum= %A[%vi, %vk] * %B[%vk, %vj]
        }
      }
    }
  }
}
"""

MICRO_KERNEL = """
func @gemm(%A: f32[n, k], %B: f32[k, m], %C: f32[n, m]) stage scheduled {
  alloc %CL: f32[n, m] in local
  for %io in parallel 0..(n + 2) // 3 {
    for %jo in 0..(m + 7) // 8 {
      for %kk in 0..k {
        for %ii in unroll 0..3 {
          for %ji in unroll 0..2 {
            for %jv in vector 0..4 {
              block @C(%vi: spatial n = %io * 3 + %ii, %vj: spatial m = %jo * 8 + %ji * 4 + %jv,
                       %vk: reduce k = %kk) {
                where %io * 3 + %ii < n and %jo * 8 + %ji * 4 + %jv < m
                reads %A[%vi, %vk], %B[%vk, %vj]
                writes %CL[%vi, %vj]
                init { %CL[%vi, %vj] = 0.0 }
                %CL[%vi, %vj] sum= %A[%vi, %vk] * %B[%vk, %vj]
              }
            }
          }
        }
      }
      for %a in 0..3 {
        for %b in 0..8 {
          block @W(%vi: spatial n = %io * 3 + %a, %vj: spatial m = %jo * 8 + %b) {
            where %io * 3 + %a < n and %jo * 8 + %b < m
            reads %CL[%vi, %vj]
            writes %C[%vi, %vj]
            %C[%vi, %vj] = %CL[%vi, %vj]
          }
        }
      }
    }
  }
}
"""

PADDED_CONVOLUTION = """
func @conv(%X: f32[h, w], %K: f32[3, 3], %Y: f32[h, w]) stage scheduled {
  alloc %P: f32[h + 2, w + 2]
  for %y in parallel 0..h {
    for %xo in 0..(w + 3) // 4 {
      for %a0 in 0..3 {
        for %a1 in vector 0..6 {
          block @P(%vy: spatial h + 2 = %y + %a0, %vx: spatial w + 2 = %xo * 4 + %a1) {
            where %xo * 4 + %a1 < w + 2
            reads %X[%vy - 1, %vx - 1]
            writes %P[%vy, %vx]
            %P[%vy, %vx] = select(%vy >= 1 and %vy < h + 1 and %vx >= 1 and %vx < w + 1,
                                  %X[%vy - 1, %vx - 1], 0.0)
          }
        }
      }
      for %ky in 0..3 {
        for %kx in unroll 0..3 {
          for %xi in vector 0..4 {
            block @Y(%vy: spatial h = %y, %vx: spatial w = %xo * 4 + %xi, %vky: reduce 3 = %ky,
                     %vkx: reduce 3 = %kx) {
              where %xo * 4 + %xi < w
              reads %P[%vy + %vky, %vx + %vkx], %K[%vky, %vkx]
              writes %Y[%vy, %vx]
              init { %Y[%vy, %vx] = 0.0 }
              %Y[%vy, %vx] sum= %P[%vy + %vky, %vx + %vkx] * %K[%vky, %vkx]
            }
          }
        }
      }
    }
  }
}
"""

ARGMAX = """
func @argmax(%A: f32[n, m], %I: i32[n], %V: f32[n]) stage scheduled {
  for %j in 0..m {
    for %i in vector 0..4 {
      for %o in 0..(n + 3) // 4 {
        block @R(%vi: spatial n = %o * 4 + %i, %vj: reduce m = %j) {
          where %o * 4 + %i < n
          reads %A[%vi, %vj]
          writes %I[%vi], %V[%vi]
          init { %I[%vi] = 2147483647  %V[%vi] = -inf }
          (%I[%vi], %V[%vi]) argmax= (i32(%vj), %A[%vi, %vj])
        }
      }
    }
  }
}
"""

SOFTMAX = """
func @softmax(%X: f32[n, m], %Y: f32[n, m]) stage scheduled {
  alloc %M: f32[n]
  alloc %E: f32[n, m]
  alloc %S: f32[n]
  for %i in parallel 0..n {
    for %j in 0..m {
      block @M(%vi: spatial n = %i, %vj: reduce m = %j) {
        reads %X[%vi, %vj]
        writes %M[%vi]
        init { %M[%vi] = -inf }
        %M[%vi] max= %X[%vi, %vj]
      }
    }
    for %jo in 0..(m + 3) // 4 {
      for %ji in vector 0..4 {
        block @E(%vi: spatial n = %i, %vj: spatial m = %jo * 4 + %ji) {
          where %jo * 4 + %ji < m
          reads %X[%vi, %vj], %M[%vi]
          writes %E[%vi, %vj]
          %E[%vi, %vj] = exp2(%X[%vi, %vj] - %M[%vi])
        }
      }
    }
    for %j in 0..m {
      block @S(%vi: spatial n = %i, %vj: reduce m = %j) {
        reads %E[%vi, %vj]
        writes %S[%vi]
        init { %S[%vi] = 0.0 }
        %S[%vi] sum= %E[%vi, %vj]
      }
    }
    for %j in 0..m {
      block @Y(%vi: spatial n = %i, %vj: spatial m = %j) {
        reads %E[%vi, %vj], %S[%vi]
        writes %Y[%vi, %vj]
        %Y[%vi, %vj] = %E[%vi, %vj] / %S[%vi]
      }
    }
  }
}
"""

FUSED = """
func @fused(%A: f32[n, m], %B: f32[n, m]) stage scheduled {
  for %f in parallel 0..n * m {
    block @B(%vi: spatial n = %f // m, %vj: spatial m = %f % m) {
      reads %A[%vi, %vj]
      writes %B[%vi, %vj]
      %B[%vi, %vj] = %A[%vi, %vj] + 1.0
    }
  }
}
"""

FUSED_REDUCTION = """
func @rows(%A: f32[n, 4], %B: f32[n]) stage scheduled {
  for %f in 0..n * 4 {
    block @B(%vi: spatial n = %f // 4, %vk: reduce 4 = %f % 4) {
      reads %A[%vi, %vk]
      writes %B[%vi]
      init { %B[%vi] = 0.0 }
      %B[%vi] sum= %A[%vi, %vk]
    }
  }
}
"""

ROLLING = """
func @rolling(%A: f32[n], %B: f32[n]) stage scheduled {
  alloc %T: f32[n]
  for %i in 0..n {
    block @T(%vi: spatial n = %i) {
      reads %A[%vi]
      writes %T[%vi]
      %T[%vi] = %A[%vi] * 2.0
    }
    block @B(%vi: spatial n = %i) {
      reads %T[max(%vi - 1, 0) +: 2]
      writes %B[%vi]
      %B[%vi] = %T[%vi] + %T[max(%vi - 1, 0)]
    }
  }
}
"""

PIPELINE = """
func @pipeline(%A: f32[n, 8], %B: f32[n, 8]) stage scheduled {
  alloc %S: f32[n, 8]
  alloc %T: f32[n, 8]
  for %k in 0..n [software_pipeline_order = ORDER, software_pipeline_stage = STAGE] {
    for %a in 0..8 {
      block @S(%vk: spatial n = %k, %va: spatial 8 = %a) {
        reads %A[%vk, %va]
        writes %S[%vk, %va]
        %S[%vk, %va] = %A[%vk, %va] + 1.0
      }
    }
    for %b in vector 0..8 {
      block @T(%vk: spatial n = %k, %vb: spatial 8 = %b) {
        reads %S[%vk, 7 - %vb]
        writes %T[%vk, %vb]
        %T[%vk, %vb] = %S[%vk, 7 - %vb] * 2.0
      }
    }
    for %c in 0..8 {
      block @B(%vk: spatial n = %k, %vc: spatial 8 = %c) {
        reads %S[%vk, %vc], %T[%vk, %vc]
        writes %B[%vk, %vc]
        %B[%vk, %vc] = %S[%vk, %vc] + %T[%vk, %vc]
      }
    }
  }
}
"""

DOUBLE_BUFFER = """
func @double(%A: f32[n, 8], %B: f32[8]) stage scheduled {
  alloc %S: f32[n, 8]
  for %k in 0..n {
    for %a in 0..8 {
      block @S(%vk: spatial n = %k, %va: spatial 8 = %a) {
        reads %A[%vk, %va]
        writes %S[%vk, %va]
        annotate double_buffer_scope = 0
        %S[%vk, %va] = %A[%vk, %va]
      }
    }
    for %b in 0..8 {
      block @B(%vb: spatial 8 = %b, %vk: reduce n = %k) {
        reads %S[%vk, %vb]
        writes %B[%vb]
        init { %B[%vb] = 0.0 }
        %B[%vb] sum= %S[%vk, %vb]
      }
    }
  }
}
"""

VIRTUAL_THREADS = """
func @virtual(%A: f32[16], %B: f32[16]) stage scheduled {
  alloc %T: f32[16] in local
  for %v in vthread 0..4 {
    for %i in 0..4 {
      block @T(%vi: spatial 16 = %v * 4 + %i) {
        reads %A[%vi]
        writes %T[%vi]
        %T[%vi] = %A[%vi] * 2.0
      }
    }
    for %j in 0..4 {
      block @B(%vj: spatial 16 = %v * 4 + %j) {
        reads %T[%vj]
        writes %B[%vj]
        %B[%vj] = %T[%vj] + 1.0
      }
    }
  }
}
"""

CHAIN = """
func @chain(%A: f32[n], %B: f32[n]) stage scheduled {
  alloc %T: f32[n]
  alloc %U: f32[n]
  alloc %V: f32[n] align(0, 8, 0)
  for %i in 0..n {
    block @T(%vi: spatial n = %i) {
      reads %A[%vi]
      writes %T[%vi]
      %T[%vi] = %A[%vi] * 2.0
    }
  }
  for %i in 0..n {
    block @U(%vi: spatial n = %i) {
      reads %T[n - 1 - %vi]
      writes %U[%vi]
      %U[%vi] = %T[n - 1 - %vi] + 1.0
    }
  }
  for %i in 0..n {
    block @V(%vi: spatial n = %i) {
      reads %U[n - 1 - %vi]
      writes %V[%vi]
      %V[%vi] = %U[n - 1 - %vi] * 3.0
    }
  }
  for %i in 0..n {
    block @B(%vi: spatial n = %i) {
      reads %V[%vi]
      writes %B[%vi]
      %B[%vi] = %V[%vi] - 1.0
    }
  }
}
"""

VECTORS = """
func @vectors(%A: f32[32], %I: i32[8], %x: index, %B: f32[8], %C: f32[1], %D: f32[8])
stage scheduled {
  for %i in vector 0..8 {
    block @B(%vi: spatial 8 = %i) {
      reads %A[0 +: 32], %I[%vi]
      writes %B[%vi]
      if %vi < %x {
        %B[%vi] = %A[index(%I[%vi]) * 2]
      } else {
        %B[%vi] = select(%vi % 3 == 0, %A[%vi // 2], f32(%vi)) * %A[0]
      }
    }
    block @D(%vi: spatial 8 = %i) {
      reads %A[0 +: 32], %D[%vi]
      writes %D[%vi]
      %D[%vi] = 0.0
      for %j in 0..%vi {
        %D[%vi] = %D[%vi] + %A[%j]
      }
    }
  }
  for %k in unroll 0..8 {
    block @C(%vk: reduce 8 = %k) {
      reads %A[%vk]
      writes %C[0]
      init { %C[0] = 0.0 }
      %C[0] sum= %A[%vk]
    }
  }
}
"""

PADDED_STORAGE = """
func @padded(%A: f32[4, 6], %B: f32[6, 4]) stage scheduled {
  alloc %T: f32[4, 6] align(0, 8, 1)
  for %i in 0..4 {
    for %j in 0..6 {
      block @T(%vi: spatial 4 = %i, %vj: spatial 6 = %j) {
        reads %A[%vi, %vj]
        writes %T[%vi, %vj]
        %T[%vi, %vj] = %A[%vi, %vj]
      }
    }
  }
  for %j in 0..6 {
    for %i in 0..4 {
      block @B(%vj: spatial 6 = %j, %vi: spatial 4 = %i) {
        reads %T[%vi, %vj]
        writes %B[%vj, %vi]
        %B[%vj, %vi] = %T[%vi, %vj]
      }
    }
  }
}
"""

TENSOR_CALLS = """
func @tiles(%A: f32[8, 8], %B: f32[8, 8], %C: f32[8, 8]) stage scheduled {
  for %i in 0..4 {
    for %j in 0..2 {
      for %k in 0..2 {
        block @C(%vi: spatial 4 = %i, %vj: spatial 2 = %j, %vk: reduce 2 = %k) {
          reads %A[%vi * 2 +: 2, %vk * 4 +: 4], %B[%vk * 4 +: 4, %vj * 4 +: 4]
          writes %C[%vi * 2 +: 2, %vj * 4 +: 4]
          init {
            call NAME.reset(%A[%vi * 2 +: 2, %vk * 4 +: 4], %B[%vk * 4 +: 4, %vj * 4 +: 4],
                            %C[%vi * 2 +: 2, %vj * 4 +: 4])
          }
          call NAME.update(%A[%vi * 2 +: 2, %vk * 4 +: 4], %B[%vk * 4 +: 4, %vj * 4 +: 4],
                           %C[%vi * 2 +: 2, %vj * 4 +: 4])
        }
      }
    }
  }
}
"""

TILE = """
func @tile(%a: f32[2, 4], %b: f32[4, 4], %c: f32[2, 4]) stage scheduled {
  for %i in 0..2 {
    for %j in 0..4 {
      for %k in 0..4 {
        block @c(%vi: spatial 2 = %i, %vj: spatial 4 = %j, %vk: reduce 4 = %k) {
          reads %a[%vi, %vk], %b[%vk, %vj]
          writes %c[%vi, %vj]
          init { %c[%vi, %vj] = 0.0 }
          %c[%vi, %vj] sum= %a[%vi, %vk] * %b[%vk, %vj]
        }
      }
    }
  }
}
"""

SCAN = """
func @scan(%A: f32[n], %S: f32[n]) stage scheduled {
  for %t in 0..n {
    block @S(%vt: scan n = %t) {
      reads %A[%vt], %S[0 +: n]
      writes %S[%vt]
      if %vt == 0 {
        %S[%vt] = %A[%vt]
      } else {
        %S[%vt] = %S[%vt - 1] + %A[%vt]
      }
    }
  }
}
"""

COOPERATIVE = """
func @mm(%A: f32[n, 16], %B: f32[16, m], %C: f32[n, m]) stage scheduled {
  alloc %CL: f32[n, m] in local
  alloc %AS: f32[n, 16] in shared
  alloc %BS: f32[16, m] in shared
  for %by in thread(blockIdx.y) 0..(n + 15) // 16 {
    for %bx in thread(blockIdx.x) 0..(m + 15) // 16 {
      for %vt in vthread 0..2 {
        for %ty in thread(threadIdx.y) 0..4 {
          for %tx in thread(threadIdx.x) 0..8 {
            for %ko in 0..2NOTES {
              for %a0 in 0..2 {
                for %a1 in thread(threadIdx.y) 0..4 {
                  for %a2 in thread(threadIdx.x) 0..8 {
                    for %a3 in 0..2 {
                      block @AS(
                        %vi: spatial n = %by * 16 + (%a0 * 64 + %a1 * 16 + %a2 * 2 + %a3) // 8,
                        %vk: spatial 16 = %ko * 8 + (%a0 * 64 + %a1 * 16 + %a2 * 2 + %a3) % 8) {
                        where %by * 16 + (%a0 * 64 + %a1 * 16 + %a2 * 2 + %a3) // 8 < n
                        reads %A[%vi, %vk]
                        writes %AS[%vi, %vk]
                        %AS[%vi, %vk] = %A[%vi, %vk]
                      }
                    }
                  }
                }
              }
              for %b0 in 0..2 {
                for %b1 in thread(threadIdx.y) 0..4 {
                  for %b2 in thread(threadIdx.x) 0..8 {
                    for %b3 in vector 0..2 {
                      block @BS(%vk: spatial 16 = %ko * 8 + %b0 * 4 + %b1,
                                %vj: spatial m = %bx * 16 + %b2 * 2 + %b3) {
                        where %bx * 16 + %b2 * 2 + %b3 < m
                        reads %B[%vk, %vj]
                        writes %BS[%vk, %vj]
                        %BS[%vk, %vj] = %B[%vk, %vj]
                      }
                    }
                  }
                }
              }
              for %ki in 0..8 {
                for %i in unroll 0..2 {
                  for %j in unroll 0..2 {
                    block @C(%vi: spatial n = %by * 16 + %vt * 8 + %ty * 2 + %i,
                             %vj: spatial m = %bx * 16 + %tx * 2 + %j,
                             %vk: reduce 16 = %ko * 8 + %ki) {
                      where %by * 16 + %vt * 8 + %ty * 2 + %i < n and %bx * 16 + %tx * 2 + %j < m
                      reads %AS[%vi, %vk], %BS[%vk, %vj]
                      writes %CL[%vi, %vj]
                      init { %CL[%vi, %vj] = 0.0 }
                      %CL[%vi, %vj] sum= %AS[%vi, %vk] * %BS[%vk, %vj]
                    }
                  }
                }
              }
            }
            for %i2 in 0..2 {
              for %j2 in 0..2 {
                block @W(%vi: spatial n = %by * 16 + %vt * 8 + %ty * 2 + %i2,
                         %vj: spatial m = %bx * 16 + %tx * 2 + %j2) {
                  where %by * 16 + %vt * 8 + %ty * 2 + %i2 < n and %bx * 16 + %tx * 2 + %j2 < m
                  reads %CL[%vi, %vj]
                  writes %C[%vi, %vj]
                  %C[%vi, %vj] = %CL[%vi, %vj]
                }
              }
            }
          }
        }
      }
    }
  }
}
"""

CPU: dict[str, tuple[str, list[dict[str, int]]]] = {
    "matmul": (MATMUL, [{"n": 3, "m": 4, "k": 5}, {"n": 0, "m": 2, "k": 3}]),
    "micro kernel": (
        MICRO_KERNEL,
        [
            {"n": 6, "m": 16, "k": 3},
            {"n": 7, "m": 19, "k": 2},
            {"n": 1, "m": 3, "k": 1},
            {"n": 0, "m": 5, "k": 2},
        ],
    ),
    "padded convolution": (
        PADDED_CONVOLUTION,
        [{"h": 5, "w": 8}, {"h": 3, "w": 7}, {"h": 1, "w": 1}, {"h": 2, "w": 13}, {"h": 0, "w": 3}],
    ),
    "argmax": (ARGMAX, [{"n": 4, "m": 3}, {"n": 7, "m": 5}, {"n": 1, "m": 1}]),
    "softmax": (SOFTMAX, [{"n": 2, "m": 8}, {"n": 3, "m": 5}, {"n": 1, "m": 1}]),
    "fused": (FUSED, [{"n": 3, "m": 4}, {"n": 0, "m": 4}]),
    "fused reduction": (FUSED_REDUCTION, [{"n": 3}, {"n": 0}]),
    "rolling": (ROLLING, [{"n": 5}, {"n": 1}]),
    "pipeline of three stages": (
        PIPELINE.replace("ORDER", "(0, 1, 2)").replace("STAGE", "(0, 1, 2)"),
        [{"n": 5}, {"n": 2}, {"n": 1}, {"n": 0}],
    ),
    "pipeline that reads first": (
        PIPELINE.replace("ORDER", "(2, 1, 0)").replace("STAGE", "(0, 1, 2)"),
        [{"n": 4}, {"n": 1}],
    ),
    "pipeline of two stages": (
        PIPELINE.replace("ORDER", "(0, 1, 2)").replace("STAGE", "(0, 0, 1)"),
        [{"n": 4}, {"n": 0}],
    ),
    "double buffer": (DOUBLE_BUFFER, [{"n": 4}, {"n": 1}]),
    "virtual threads": (VIRTUAL_THREADS, [{}]),
    "chain": (CHAIN, [{"n": 7}, {"n": 0}]),
    "vectors": (VECTORS, [{"x": 3}, {"x": 0}, {"x": 8}]),
    "padded storage": (PADDED_STORAGE, [{}]),
    "scan": (SCAN, [{"n": 6}, {"n": 1}, {"n": 0}]),
}
GPU: dict[str, tuple[str, list[dict[str, int]]]] = {
    "cooperative": (
        COOPERATIVE.replace("NOTES", ""),
        [{"n": 16, "m": 16}, {"n": 17, "m": 23}, {"n": 3, "m": 1}],
    ),
    "cooperative, pipelined": (
        COOPERATIVE.replace(
            "NOTES",
            " [software_pipeline_order = (0, 1, 2), software_pipeline_stage = (0, 0, 1)]",
        ),
        [{"n": 16, "m": 16}, {"n": 17, "m": 23}],
    ),
}
# Until barriers stand, the threads of a lowered kernel race; the interpreter takes a tensor call
# outside a block for a reduction done twice.
UNFINISHED = (
    "lower_blocks",
    "expand_updates",
    "bind_threads",
    "place_allocations",
    "compact_buffers",
    "inject_virtual_threads",
    "pipeline_loops",
    "interleave_loops",
)


def arguments(fn: Function, sizes: dict[str, int]) -> list[object]:
    random = np.random.default_rng(0)
    made: list[object] = []
    for param in fn.params:
        if not isinstance(param, Buffer):
            made.append(sizes[param.name])
            continue
        values = {v: sizes[v.name] for dim in param.shape for v in sym.free_vars(dim)}
        shape = [sym.evaluate(dim, values) for dim in param.shape]
        low, high = (-4, 5) if param.dtype.is_float else (0, 16)
        made.append(random.integers(low, high, size=shape).astype(param.dtype.numpy))
    return made


def copied(args: list[object]) -> list[object]:
    return [arg.copy() if isinstance(arg, np.ndarray) else arg for arg in args]


@cache
def steps_of(text: str, kind: str) -> tuple[Function, tuple[tuple[str, Function], ...]]:
    """A function, and what each pass makes of it, which verifies and round-trips."""
    fn = parse(text)
    steps: list[tuple[str, Function]] = []

    def observe(name: str, before: Function, after: Function) -> None:
        if after is not before:
            steps.append((name, after))

    lower(fn, kind, PassContext(observers=(observe,)))
    for name, program in steps:
        verify(program)
        assert parse(str(program)) == program, name
    return fn, tuple(steps)


def check_every_pass(
    text: str, kind: str, sizes: dict[str, int], skipped: tuple[str, ...] = ()
) -> None:
    """Lower a function; after each pass it gives the same answer."""
    fn, steps = steps_of(text, kind)
    args = arguments(fn, sizes)
    expected = copied(args)
    interpret(fn, *expected)
    for name, program in steps:
        if name in skipped:
            continue
        found = copied(args)
        interpret(program, *found)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b), err_msg=name)


CASES = [
    pytest.param(text, kind, sizes, id=f"{kind}: {name}, {sizes}")
    for kind, corpus in (("cpu", CPU), ("gpu", GPU))
    for name, (text, several) in corpus.items()
    for sizes in several
]


@pytest.mark.parametrize(("text", "kind", "sizes"), CASES)
def test_every_pass_keeps_the_answer(text: str, kind: str, sizes: dict[str, int]) -> None:
    check_every_pass(text, kind, sizes, UNFINISHED if kind == "gpu" else ())


@pytest.mark.parametrize("implemented", [False, True])
def test_a_tensor_call_becomes_its_implementation(implemented: bool) -> None:
    behavior = parse(TILE)
    update = None
    if implemented:
        update = parse(
            """
            func @step(%a: f32[2, 4], %b: f32[4, 4], %c: f32[2, 4]) stage scheduled {
              for %i in 0..2 {
                for %k in 0..4 {
                  for %j in vector 0..4 {
                    %c[%i, %j] = %c[%i, %j] + %a[%i, %k] * %b[%k, %j]
                  }
                }
              }
            }"""
        )
        buffers = dict(zip(update.buffers, behavior.buffers, strict=True))
        update = replace_buffers(update.body, buffers)
    name = "tile_implemented" if implemented else "tile_declared"
    declare(TensorIntrin(name, behavior, update=update))
    check_every_pass(TENSOR_CALLS.replace("NAME", name), "cpu", {}, UNFINISHED)


def test_a_reduction_over_nothing_gives_its_identity() -> None:
    fn = parse(MATMUL)
    c = np.full((2, 3), np.nan, np.float32)
    interpret(lower(fn), np.zeros((2, 0), np.float32), np.zeros((0, 3), np.float32), c)
    np.testing.assert_array_equal(c, 0)


# These build their result anew: kernels, barriers; a tail may be split once more.
NEVER_DONE = ("bind_threads", "insert_barriers", "partition_loops")


@pytest.mark.parametrize("kind", PIPELINES)
def test_a_pass_with_nothing_left_to_do_returns_its_program(kind: str) -> None:
    for text, _ in (CPU if kind == "cpu" else GPU).values():
        program = parse(text)
        for step in PIPELINES[kind]:
            program = step(program, PassContext())
            if step.__name__ not in NEVER_DONE:
                assert step(program, PassContext()) is program, step.__name__


def test_pipelines_share_what_they_have_in_common() -> None:
    assert PIPELINES["cpu"][-1].__name__ == "check_capacity"
    for pipeline in PIPELINES.values():
        names = [step.__name__ for step in pipeline]
        assert len(names) == len(set(names))
