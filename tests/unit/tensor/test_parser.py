"""The text of functions read back, where the text tests do not reach."""

from tilewright import te, tensor


def test_a_size_may_stand_alone_in_a_later_argument():
    n = te.var("n")
    A, S = te.placeholder((n + 1,), name="A"), te.placeholder((n,), name="S")
    B = te.compute((n,), lambda i: A[i] + S[i], name="B")
    fn = te.function([A, S, B])
    assert tensor.parse(str(fn)) == fn


def test_a_size_may_be_a_later_scalar():
    text = "func @f(%A: f32[n * 2], n: index) stage flat {\n  %A[0] = 1.0\n}\n"
    assert str(tensor.parse(text)) == text


def test_a_call_by_a_name_that_ends_in_a_number():
    a, b = "%A[ramp(0, 1, 64)]", "%B[ramp(0, 1, 64)]"
    call = f"llvm.x86.avx512.vpdpbusd.512:i32x16(broadcast(0, 16), {a}, {b})"
    text = (
        "func @f(%A: u8[64], %B: i8[64], %C: i32[16]) stage flat {\n"
        f"  %C[ramp(0, 1, 16)] = {call}\n}}\n"
    )
    assert str(tensor.parse(text)) == text
