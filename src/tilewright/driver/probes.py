"""Micro-benchmarks of a processor, as text of the loop IR, compiled by Tilewright itself.

Each repeats one thing `n` times, the number of elements of its argument N, and writes a result that
depends on all of it, so that nothing is optimized away.
"""

from __future__ import annotations

from tilewright.tensor import parse
from tilewright.tensor.ir import Function

CHAIN_STEPS = 16  # dependent operations per iteration: hides the overhead of the loop
ROW_VECTORS = 16  # vectors read per iteration
SUMS = 8  # accumulators of reads: enough to hide the latency of an addition
PREFETCH_LINES = 32  # prefetch distance of scattered reads, in lines
GOLDEN = 0.618  # stride of scattered reads as a fraction of all lines: defeats hardware prefetchers


def adds() -> Function:
    """One chain of dependent additions and exclusive ors, one cycle each, on `p` threads.

    Without the exclusive or, compilers would turn the additions into one multiplication.
    """
    steps = "\n".join(["%t[0] = bit_xor(%t[0] + %x, %y)"] * CHAIN_STEPS)
    return parse(
        f"""
        func @adds(%A: i64[2], %N: u8[n], %C: i64[p]) stage flat {{
          for %i in parallel 0..p {{
            alloc %t: i64[1] in local
            let %x: i64 = %A[0]
            let %y: i64 = %A[1]
            %t[0] = %x
            for %r in 0..n {{
              {steps}
            }}
            %C[%i] = %t[0]
          }}
        }}
        """
    )


def multiply_adds(lanes: int, accumulators: int) -> Function:
    """Independent fused multiply-adds on registers.

    Each multiplies its own accumulator, since a loop-invariant product would be hoisted, and also
    adds to it, since an instruction that overwrites another operand would need a copy.
    """
    rows = [_ramp(str(at * lanes), lanes) for at in range(accumulators)]
    clear = "\n".join(f"%t[{row}] = %x" for row in rows)
    steps = "\n".join(f"%t[{row}] = %t[{row}] + %t[{row}] * %x" for row in rows)
    out = "\n".join(f"%C[{row}] = %t[{row}]" for row in rows)
    return parse(
        f"""
        func @multiply_adds(
          %A: f32[{lanes}], %N: u8[n], %C: f32[{accumulators * lanes}]
        ) stage flat {{
          alloc %t: f32[{accumulators * lanes}] in local
          let %x: f32x{lanes} = %A[{_ramp("0", lanes)}]
          {clear}
          for %r in 0..n {{
            {steps}
          }}
          {out}
        }}
        """
    )


def accumulate(lanes: int) -> Function:
    """One chain of dependent multiply-adds, as in a GEMM with a single accumulator."""
    width = CHAIN_STEPS * lanes
    steps = "\n".join(
        f"%t[{_ramp('0', lanes)}] = %t[{_ramp('0', lanes)}] "
        f"+ %A[{_ramp(f'%r * {width} + {at * lanes}', lanes)}] * %y"
        for at in range(CHAIN_STEPS)
    )
    return parse(
        f"""
        func @accumulate(
          %A: f32[w, {width}], %B: f32[{lanes}], %N: u8[n], %C: f32[{lanes}]
        ) stage flat {{
          alloc %t: f32[{lanes}] in local
          let %y: f32x{lanes} = %B[{_ramp("0", lanes)}]
          %t[{_ramp("0", lanes)}] = %y
          for %q in 0..n {{
            for %r in 0..w {{
              {steps}
            }}
          }}
          %C[{_ramp("0", lanes)}] = %t[{_ramp("0", lanes)}]
        }}
        """
    )


def reads(lanes: int) -> Function:
    """Sums over A in order, `n` times; each of `p` threads reads a part of its own."""
    width = ROW_VECTORS * lanes
    rows = [f"%t[{_ramp(str(at * lanes), lanes)}]" for at in range(SUMS)]
    steps = "\n".join(
        f"{rows[at % SUMS]} = {rows[at % SUMS]} "
        f"+ %A[{_ramp(f'(%i * w + %r) * {width} + {at * lanes}', lanes)}]"
        for at in range(ROW_VECTORS)
    )
    return _sums("reads", f"%A: i32[p, w, {width}]", rows, lanes, f"for %r in 0..w {{ {steps} }}")


def scattered_reads(lanes: int, lines: int, line_bytes: int) -> Function:
    """Sums over the `lines` cache lines of each thread in scattered order, with software prefetch.

    The stride is odd and the number of lines a power of two, so each line is visited once.
    """
    assert lines & (lines - 1) == 0
    width = line_bytes // 4
    step = int(GOLDEN * lines) | 1
    sums = max(1, width // lanes)
    rows = [f"%t[{_ramp(str(at * lanes), lanes)}]" for at in range(sums)]

    def place(line: str) -> str:
        return f"(%i * {lines} + {line} * {step} % {lines}) * {width}"

    here, ahead = place("%r"), place(f"(%r + {PREFETCH_LINES})")
    loads = "\n".join(
        f"{row} = {row} + %A[{_ramp(f'{here} + {at * lanes}', lanes)}]"
        for at, row in enumerate(rows)
    )
    body = f"""
      for %r in 0..{lines} {{
        eval prefetch(address(%A[{ahead}]))
        {loads}
      }}"""
    return _sums("scattered_reads", f"%A: i32[p, {lines}, {width}]", rows, lanes, body)


def _sums(name: str, operand: str, rows: list[str], lanes: int, body: str) -> Function:
    """Sums in registers of what a loop reads, `n` times on `p` threads."""
    size = len(rows) * lanes
    clear = "\n".join(f"{row} = broadcast(i32(0), {lanes})" for row in rows)
    out = "\n".join(
        f"%C[{_ramp(f'%i * {size} + {at * lanes}', lanes)}] = {row}" for at, row in enumerate(rows)
    )
    return parse(
        f"""
        func @{name}({operand}, %N: u8[n], %C: i32[p, {size}]) stage flat {{
          for %i in parallel 0..p {{
            alloc %t: i32[{size}] in local
            {clear}
            for %q in 0..n {{
              {body}
            }}
            {out}
          }}
        }}
        """
    )


def _ramp(base: str, lanes: int) -> str:
    return f"ramp({base}, 1, {lanes})"
