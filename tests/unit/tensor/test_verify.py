"""Every invariant in the list at the top of verify.py, broken."""

from dataclasses import replace

import pytest

from tilewright import sym
from tilewright.base.dtype import BOOL, F32, dtype
from tilewright.base.errors import CompilerBug
from tilewright.sym import ZERO, const, eq, size, var
from tilewright.tensor import ir, parse, verify
from tilewright.tensor.intrin import TensorIntrin, declare
from tilewright.tensor.ir import Buffer, For, Function, Load, Seq, Stmt, Store, Update, seq
from tilewright.tensor.reducers import builtin
from tilewright.tensor.verify import VerifyError

A, B = Buffer("A", (const(8),), F32), Buffer("B", (const(8),), F32)
ONE = const(1.0, F32)


def function(body: Stmt, stage: str = ir.SCHEDULED, **fields: object) -> Function:
    return replace(Function("f", (A, B), body, stage=stage), **fields)  # type: ignore[arg-type]


def failure(fn: Function | str) -> VerifyError:
    with pytest.raises(VerifyError) as caught:
        verify(parse(fn) if isinstance(fn, str) else fn)
    return caught.value


def store(index: sym.Expr = ZERO, value: sym.Expr = ONE, to: Buffer = B) -> Store:
    return Store(to, (index,), value)


GOOD = """
func @good(%A: f32[n, k], %B: f32[k, m], %C: f32[n, m], %s: f32) stage scheduled {
  require n <= 1024
  alloc %T: f32[n, m] in local
  for %i in parallel 0..n {
    for %j in vector 0..m {
      for %r in 0..k {
        block @T(%vi: spatial n = %i, %vj: spatial m = %j, %vr: reduce k = %r) {
          where %r < k
          reads %A[%vi, %vr], %B[%vr, %vj]
          writes %T[%vi, %vj]
          init {
            %T[%vi, %vj] = 0.0
          }
          %T[%vi, %vj] sum= %A[%vi, %vr] * %B[%vr, %vj]
        }
      }
      block @C(%wi: spatial n = %i, %wj: spatial m = %j) {
        reads %T[%wi, %wj]
        writes %C[%wi, %wj]
        %C[%wi, %wj] = %T[%wi, %wj] * %s
      }
    }
  }
}
"""


def test_a_good_program_passes() -> None:
    verify(parse(GOOD))


def test_an_error_shows_the_program() -> None:
    i = var("i")
    error = failure(function(For(i, ZERO, const(8), store(i, const(1, "i32")))))
    assert isinstance(error, CompilerBug)
    assert str(error) == (
        "error[TW2033]: a value of type i32 is stored to %B, which takes f32\n"
        "  in @f, stage scheduled\n"
        " 1 | func @f(%A: f32[8], %B: f32[8]) stage scheduled {\n"
        " 2 |   for %i in 0..8 {\n"
        " 3 |     %B[%i] = 1\n"
        "   |     ^^^^^^^^^^\n"
        " 4 |   }\n"
        " 5 | }"
    )


def test_1_variables_are_used_where_they_are_bound() -> None:
    error = failure(function(store(var("i"))))
    assert (error.code, error.message) == ("TW2030", "%i is used where nothing binds it")
    i = var("i")
    error = failure(function(seq(For(i, ZERO, const(8), store(i)), store(i))))
    assert error.code == "TW2030"


def test_1_sizes_are_dimensions_of_parameters() -> None:
    error = failure(function(store(size("n"))))
    assert error.message == "size n is not a dimension of any parameter"
    n = size("n")
    verify(Function("f", (n, B), store(sym.floormod(n, 8))))


def test_2_variables_are_bound_once() -> None:
    i = var("i")
    loop = For(i, ZERO, const(8), store(i))
    error = failure(function(seq(loop, For(i, ZERO, const(8), store(i)))))
    assert (error.code, error.message) == ("TW2031", "%i is bound twice")


def test_3_buffers_are_used_where_they_exist() -> None:
    error = failure(function(store(to=Buffer("T", (const(8),), F32))))
    assert (error.code, error.message) == ("TW2032", "%T is used where it does not exist")
    t = Buffer("T", (const(8),), F32)
    body = seq(ir.Alloc(t, store(to=t)), store(value=Load(t, (ZERO,))))
    assert failure(function(body, ir.FLAT)).code == "TW2032"


def test_3_buffers_are_allocated_once() -> None:
    t = Buffer("T", (const(8),), F32)
    assert failure(function(store(to=t), allocs=(t, t))).message == "%T is allocated twice"
    body = ir.Alloc(t, ir.Alloc(t, store(to=t)))
    assert failure(function(body, ir.FLAT)).message == "%T is allocated twice"
    assert failure(Function("f", (A, A), store(to=A))).code == "TW2032"


F, I, P = var("x", F32), var("k", "i32"), var("p", BOOL)
V = ir.Broadcast(F, 4)


@pytest.mark.parametrize(
    ("expr", "reason"),
    [
        (sym.Add(F, I), "operands have types f32 and i32"),
        (sym.Add(P, P), "operands are bool"),
        (sym.Div(I, I), "/ divides i32"),
        (sym.FloorDiv(F, F), "// divides f32"),
        (sym.FloorMod(I, const(0, "i32")), "the divisor is zero"),
        (sym.Lt(F, I), "operands have types f32 and i32"),
        (sym.And(I, I), "operands are i32"),
        (sym.Not(I), "the operand is i32"),
        (sym.Select(I, F, F), "the condition has type i32"),
        (sym.Select(P, F, I), "the arms have types f32 and i32"),
        (sym.Cast(V, F32), "f32x4 becomes f32"),
        (ir.Broadcast(V, 4), "the value has type f32x4"),
        (ir.Ramp(ZERO, const(1, "i32"), 4), "base and stride have types index and i32"),
        (ir.Broadcast(F, 1), "a vector has more than one lane"),
        (
            ir.MaskedLoad(A, (ir.Ramp(ZERO, const(1), 4),), P),
            "the mask has type bool, not boolx4",
        ),
    ],
)
def test_4_operands_have_the_types_their_operation_takes(expr: sym.Expr, reason: str) -> None:
    error = failure(Function("f", (A, B, F, I, P), ir.Eval(expr)))
    assert error.code == "TW2033"
    assert reason in error.message


def test_4_statements_take_the_types_they_take() -> None:
    x = var("x", F32)
    assert failure(function(store(index=const(1, "i32")))).code == "TW2033"
    assert failure(function(For(x, ZERO, const(8), store()))).code == "TW2033"
    assert failure(function(For(var("i"), const(0, "i32"), const(8), store()))).code == "TW2033"
    assert failure(function(ir.If(const(1), store()))).code == "TW2033"
    assert failure(function(ir.Let(x, const(1), store()))).code == "TW2033"
    assert failure(function(store(), requires=(const(1),))).code == "TW2033"
    vector = ir.Ramp(ZERO, const(1), 4)
    assert failure(function(store(vector))).code == "TW2033"
    masked = Store(B, (vector,), ir.Broadcast(ONE, 4), const(True, BOOL))
    assert failure(function(masked)).code == "TW2033"
    bad = Update(builtin("sum", dtype("i32")), (B,), (ZERO,), (ONE,))
    assert failure(function(bad)).code == "TW2033"
    assert failure(function(replace(bad, values=(ONE, ONE)))).code == "TW2033"


def test_5_accesses_have_an_index_per_dimension() -> None:
    error = failure(function(Store(B, (ZERO, ZERO), ONE)))
    assert (error.code, error.message) == ("TW2034", "%B is accessed with 2 indices, it has 1")
    region = ir.Region(B, (ir.Range(ZERO, const(8)),) * 2)
    assert failure(function(ir.ExternCall("g", (region,)))).code == "TW2034"
    assert failure(function(ir.ExternCall("g", (), 0))).code == "TW2034"


def test_6_sequences_are_flat_and_of_several() -> None:
    s = store()
    assert failure(function(Seq((s,)))).message == "a sequence holds one statement"
    nested = Seq((store(), Seq((store(), store()))))
    assert failure(function(nested)).message == "a sequence holds a sequence"
    verify(function(Seq(())))


def test_7_loops_are_of_known_kinds() -> None:
    loop = For(var("i"), ZERO, const(8), store())
    for fields, message in (
        ({"kind": "sideways"}, "loop %i is of unknown kind sideways"),
        ({"kind": "thread", "thread": "warpIdx"}, "loop %i is bound to unknown axis 'warpIdx'"),
        ({"thread": "threadIdx.x"}, "serial loop %i names thread axis threadIdx.x"),
    ):
        error = failure(function(replace(loop, **fields)))  # type: ignore[arg-type]
        assert (error.code, error.message) == ("TW2036", message)


@pytest.mark.parametrize(
    ("loops", "message"),
    [
        (
            "thread(threadIdx.x) 0..8 { for %b in thread(threadIdx.x) 0..4 {",
            "loop %b has extent 4, loop %a of the same axis threadIdx.x has 8",
        ),
        (
            "thread(blockIdx.x) 0..8 { for %b in thread(threadIdx.x) 0..%a {",
            "the extent of thread loop %b depends on %a, which the kernel itself binds",
        ),
        (
            "thread(blockIdx.x) 0..8 { for %b in parallel 0..4 {",
            "parallel loop %b stands inside a kernel",
        ),
        (
            "parallel 0..8 { for %b in thread(blockIdx.x) 0..4 {",
            "thread loop %b stands inside a parallel loop",
        ),
    ],
)
def test_8_kernels(loops: str, message: str) -> None:
    error = failure(f"func @f(%y: f32[8]) stage device {{ for %a in {loops} %y[%a] = 1.0 }} }} }}")
    assert (error.code, error.message) == ("TW2037", message)


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        ("0..4", "a barrier stands outside the thread loops of a kernel"),
        (
            "thread(threadIdx.x) 0..4 { for %v in vector 0..2",
            "a barrier stands inside a vector loop",
        ),
    ],
)
def test_9_barriers(loop: str, message: str) -> None:
    close = "}" * (loop.count("{") + 2)
    error = failure(f"func @f() stage device {{ for %i in {loop} {{ eval barrier.shared() {close}")
    assert (error.code, error.message) == ("TW2038", message)


def test_9_virtual_threads_meet_at_barriers() -> None:
    verify(parse("func @f() stage device { for %i in vthread 0..2 { eval barrier.shared() } }"))


@pytest.mark.parametrize(
    ("expr", "message"),
    [
        (ir.Address(A, (ZERO,)), "address(%A[0]) is not an argument of an instruction"),
        (
            sym.Cast(ir.Address(A, (ZERO,)), F32),
            "address(%A[0]) is not an argument of an instruction",
        ),
        (
            ir.Call("abs", (ir.Address(A, (ZERO,)),), dtype("u64")),
            "address(%A[0]) is not an argument of an instruction",
        ),
        (ir.Call("exp", (ONE, ONE), F32), "exp takes 1 arguments, got 2"),
        (ir.Call("exp", (I,), dtype("i32")), "exp does not take i32 to i32"),
        (ir.Call("pow", (ONE, I), F32), "pow does not take f32, i32 to f32"),
        (ir.Call("exp", (ONE,), dtype("f64")), "exp does not take f32 to f64"),
        (sym.Not(ir.Call("barrier.shared", (), BOOL)), "barrier.shared has no value"),
        (
            ir.Call("hardware", (ir.Call("barrier.shared", (), BOOL),), BOOL),
            "barrier.shared has no value",
        ),
    ],
)
def test_10_calls(expr: sym.Expr, message: str) -> None:
    error = failure(Function("f", (A, B, I), ir.Eval(expr)))
    assert (error.code, error.message) == ("TW2039", message)


def test_10_instructions_take_addresses() -> None:
    verify(function(ir.Eval(ir.Call("hardware", (ir.Address(A, (ZERO,)), I), BOOL)), params=(A, I)))


def change(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


def test_11_block_names_are_unique() -> None:
    error = failure(change("block @C(", "block @T("))
    assert (error.code, error.message) == ("TW2040", "there are two blocks called @T")


def test_12_a_block_binds_each_iterator() -> None:
    v = var("v")
    block = ir.Block("b", (ir.Iter(v, const(8)),), (), (), (), store())
    assert failure(function(block)).message == "block @b has 1 iterators and 0 bindings"
    block = ir.Block("b", (ir.Iter(v, const(8), "odd"),), (ZERO,), (), (), store())
    assert failure(function(block)).message == "iterator %v is of unknown kind odd"
    block = ir.Block("b", (ir.Iter(v, const(8)),), (ONE,), (), (), store())
    assert failure(function(block)).code == "TW2033"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("%C[%wi, %wj] = %T", "%C[%i, %wj] = %T"),
        ("%T[%wi, %wj] * %s", "%T[%wi, %wj] * f32(%j)"),
        ("reads %T[%wi, %wj]", "reads %T[%i, %wj]"),
        ("{\n            %T[%vi, %vj] = 0.0", "{\n            %T[%i, %vj] = 0.0"),
        ("%wj: spatial m = %j", "%wj: spatial %i = %j"),
    ],
)
def test_13_a_block_uses_its_own_iterators(old: str, new: str) -> None:
    error = failure(change(old, new))
    assert error.code == "TW2042"
    assert "which is bound outside it" in error.message


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("reads %T[%wi, %wj]\n", "", "block @C does not declare that it reads %T"),
        ("writes %C[%wi, %wj]\n", "", "block @C does not declare that it writes %C"),
        ("reads %A[%vi, %vr], ", "reads ", "block @T does not declare that it reads %A"),
        (
            "reads %T[%wi, %wj]",
            "reads %T[%wi + 1, %wj]",
            "block @C reads %T[%wi, %wj], outside the region it declares",
        ),
        (
            "writes %C[%wi, %wj]",
            "writes %C[%wi, %wj + 1 +: 4]",
            "block @C writes %C[%wi, %wj], outside the region it declares",
        ),
    ],
)
def test_14_a_block_declares_what_it_touches(old: str, new: str, message: str) -> None:
    error = failure(change(old, new))
    assert (error.code, error.message) == ("TW2043", message)


def test_14_what_cannot_be_proved_passes() -> None:
    verify(parse(change("reads %T[%wi, %wj]", "reads %T[%wi * %wi, %wj]")))
    verify(parse(change("reads %T[%wi, %wj]", "reads %T[0 +: n, %wj]")))


def test_14_a_block_declares_what_blocks_inside_touch() -> None:
    text = """
    func @f(%x: f32[8], %y: f32[8]) stage scheduled {
      block @outer() {
        reads %x[0 +: 8]
        writes %y[0 +: 8]
        for %i in 0..8 {
          block @inner(%v: spatial 8 = %i) {
            reads %x[%v]
            writes %y[%v]
            %y[%v] = %x[%v]
          }
        }
      }
    }
    """
    verify(parse(text))
    error = failure(text.replace("reads %x[0 +: 8]\n", ""))
    assert error.message == (
        "block @outer does not declare that it reads %x, as block @inner inside it does"
    )


def test_14_calls_are_accesses_too() -> None:
    copy = """
    func @copy(%a: f32[4], %b: f32[4]) stage scheduled {
      for %i in 0..4 { %b[%i] = %a[%i] }
    }
    """
    declare(TensorIntrin("test.verify", parse(copy)))
    text = """
    func @f(%x: f32[8], %y: f32[8]) stage scheduled {
      block @outer() {
        reads %x[0 +: 4]
        writes %y[0 +: 4]
        call test.verify.compute(%x[0 +: 4], %y[0 +: 4])
      }
    }
    """
    verify(parse(text))
    assert failure(text.replace("reads %x[0 +: 4]\n", "")).code == "TW2043"
    assert failure(text.replace("compute(%x[0 +: 4]", "compute(%x[4 +: 4]")).code == "TW2043"


def test_15_intermediates_stand_in_allocs_while_there_are_blocks() -> None:
    t = Buffer("T", (const(8),), F32)
    block = ir.Block("b", (), (), (), (ir.Region(t, (ir.Range(ZERO, const(1)),)),), store(to=t))
    assert failure(function(ir.Alloc(t, block))).code == "TW2044"
    verify(function(ir.Alloc(t, store(to=t))))  # lowering has begun


def test_16_flat_programs_hold_plain_statements() -> None:
    i = var("i")
    v = var("v")
    block = ir.Block("b", (ir.Iter(v, const(8)),), (i,), (), (), store(v))
    for stmt, what in (
        (For(i, ZERO, const(8), block), "block @b"),
        (Update(builtin("sum", F32), (B,), (ZERO,), (ONE,)), "an update"),
        (ir.TensorCall("test.verify", "compute", ()), "a tensor call"),
    ):
        error = failure(function(stmt, ir.FLAT))
        assert (error.code, error.message) == ("TW2045", f"{what} stands at stage flat")
    t = Buffer("T", (const(8),), F32)
    assert failure(function(store(to=t), ir.FLAT, allocs=(t,))).code == "TW2045"


def test_17_flat_accesses_are_offsets() -> None:
    square = Buffer("S", (const(4), const(4)), F32)
    stmt = Store(square, (ZERO, ZERO), ONE)
    error = failure(Function("f", (square,), stmt, stage=ir.FLAT))
    assert error.message == ("%S is accessed with 2 indices, stage flat takes the row-major offset")
    verify(Function("f", (square,), Store(square, (ZERO,), ONE), stage=ir.FLAT))


def test_17_flat_intermediates_have_one_dimension() -> None:
    square = Buffer("S", (const(4), const(4)), F32)
    body: Stmt = Store(square, (ZERO,), ONE)
    error = failure(function(ir.Alloc(square, body), ir.FLAT))
    assert (error.code, error.message) == ("TW2046", "%S has 2 dimensions")
    region = ir.Region(square, (ir.Range(ZERO, const(4)),) * 2)
    body = seq(body, ir.ExternCall("g", (region,)))
    verify(function(ir.Alloc(square, body), ir.FLAT))


@pytest.mark.parametrize("kind", ["vector", "unroll"])
def test_18_expanded_loops_are_of_constant_extent(kind: str) -> None:
    text = f"func @f(%y: f32[n]) stage flat {{ for %i in {kind} 0..n {{ %y[%i] = 1.0 }} }}"
    assert failure(text).message == f"{kind} loop %i has extent n, no constant"
    verify(parse(text.replace("stage flat", "stage scheduled")))


def test_alignment_speaks_of_a_dimension() -> None:
    t = Buffer("T", (const(8),), F32, align=((1, 8, 0),))
    assert failure(function(store(to=t), allocs=(t,))).code == "TW2034"


def test_a_condition_over_floats_is_fine() -> None:
    verify(function(ir.If(eq(Load(A, (ZERO,)), ONE), store())))


def test_03_the_memory_of_a_buffer_is_declared() -> None:
    t = Buffer("T", (const(8),), F32, "lake")
    error = failure(function(ir.Alloc(t, store(to=t))))
    assert (error.code, error.message) == ("TW2047", "the memory of %T: no memory named lake")


def early(*body, weights="(1,)"):
    inside = "\n".join(body)
    return f"""
    func @f(%X: f32[32], %W: f32[32], %Y: f32[32]) stage device {{
      attr weights = {weights}
      for %t in thread(threadIdx.x) 0..32 {{
        {inside}
      }}
    }}
    """


LAUNCH, WAIT = "eval grid.launch()", "eval grid.wait()"
USE = "%Y[%t] = %X[%t] * %W[%t]"


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ([LAUNCH, USE], "does not wait itself"),
        ([LAUNCH, USE, WAIT], "kernels before may still use"),
        (["alloc %s: f32[1] in local", "%s[0] = %X[%t]", WAIT, "%Y[%t] = %s[0]"], "may still use"),
        (["%Y[%t] = 0.0", WAIT], "may still use"),
        (["let %x: f32 = %X[%t]", WAIT, "%Y[%t] = %x"], "may still use"),
        ([LAUNCH, "if %t < 16 {", WAIT, USE, "}"], "not every thread comes by"),
        ([LAUNCH, "for %k in 0..2 {", WAIT, USE, "}"], "not every thread comes by"),
        ([LAUNCH, WAIT, USE, WAIT], "not every thread comes by once"),
    ],
)  # fmt: skip
def test_a_kernel_uses_nothing_but_weights_before_its_wait(body, what):
    with pytest.raises(VerifyError) as caught:
        verify(parse(early(*body)))
    assert caught.value.code == "TW2336"
    assert what in caught.value.message


def test_weights_may_be_read_before_the_wait():
    read = ("alloc %s: f32[1] in local", "%s[0] = %W[%t]", WAIT, "%Y[%t] = %X[%t] * %s[0]")
    verify(parse(early(LAUNCH, *read)))
    verify(parse(early(LAUNCH, "let %w: f32 = %W[%t]", WAIT, "%Y[%t] = %X[%t] * %w")))
    with pytest.raises(VerifyError):
        verify(parse(early(LAUNCH, *read, weights="()")))
