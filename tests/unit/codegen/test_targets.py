"""Targets that no code can be generated for are refused before LLVM sees them."""

import pytest

from tilewright.base.errors import Unsupported, UserError, UserTypeError
from tilewright.base.target import Target
from tilewright.codegen import nvptx
from tilewright.codegen.build import build
from tilewright.tensor import parse

FILL = "func @f(%x: f32[4]) stage flat { %x[0] = 0 }"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("x86_64-linux-gnu -mcpu=foo", "unknown processor 'foo'"),
        ("x86_64-linux-gnu -mcpu=help", "unknown processor 'help'"),
        ("x86_64-linux-gnu -mcpu=cortex-a53", "cortex-a53 is a processor of aarch64, not of x86"),
        ("riscv64-linux-gnu -mcpu=foo", "unknown processor 'foo'"),
        ("x86_64-linux-gnu -mattr=+nonsense", "unknown feature 'nonsense'"),
        ("cpu -mattr=-nonsense", "unknown feature 'nonsense'"),
        ("cpu -mattr=+help", "unknown feature 'help'"),
        ("x86_64-linux-gnu -mcpu=i686", "LLVM generates no code for it: 64-bit code requested"),
        ("x86_64-linux-gnu -mattr=-sse2", "LLVM generates no code for it: "),
    ],
)
def test_processors_and_features_that_llvm_does_not_know(target, message):
    with pytest.raises(UserError) as caught:
        build(parse(FILL), target)
    assert caught.value.code == "TW0305"
    assert caught.value.message.startswith(f"target {target!r}: {message}")
    assert "-mcpu" in caught.value.help


@pytest.mark.parametrize(
    "target", ["x86_64-linux-gnu -mcpu=btver2", "x86_64-linux-gnu -mcpu=skylake -mattr=-avx2,+sha"]
)
def test_what_only_llvm_knows_is_fine(target):
    assert build(parse(FILL), target).assembly


def test_the_accelerator_has_no_code_generator():
    with pytest.raises(Unsupported) as caught:
        build(parse(FILL), "vta-sim")
    assert caught.value.code == "TW3006"


def test_a_target_is_text():
    with pytest.raises(UserTypeError) as caught:
        build(parse(FILL), None)
    assert caught.value.code == "TW0306"


def test_a_gpu_tells_the_code_generator_of_its_own_registers():
    target = Target.parse("cuda -arch=sm_90a")
    assert nvptx.machine(target).vector_registers == target.vector_registers == 255
