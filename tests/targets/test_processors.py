"""The features of processors, against the instructions that LLVM chooses for them."""

import subprocess
import sys

import llvmlite.binding as binding
import pytest

from tilewright.base.known_machines import machine_of
from tilewright.base.processors import BASELINE, is_known, processor_features, processors
from tilewright.base.target import Target
from tilewright.codegen.build import can_run

WIDE = '"prefer-vector-width"="512"'


def binary(op: str, of: str, attributes: str = "") -> str:
    return f"define {of} @f({of} %x, {of} %y) {attributes} {{ %z = {op} {of} %x, %y ret {of} %z }}"


def call(name: str, of: str, *flags: str, count: int = 1, attributes: str = "") -> str:
    """A call of an intrinsic with the same value `count` times."""
    given = ", ".join((*[f"{of} %x"] * count, *flags))
    kinds = ", ".join((*[of] * count, *(flag.split()[0] for flag in flags)))
    return (
        f"declare {of} @{name}({kinds}) "
        f"define {of} @f({of} %x) {attributes} {{ %z = call {of} @{name}({given}) ret {of} %z }}"
    )


def convert(op: str, source: str, to: str, attributes: str = "") -> str:
    return (
        f"define {to} @f({source} %x) {attributes} {{ %z = {op} {source} %x to {to} ret {to} %z }}"
    )


def dot(extend: str) -> str:
    """Sums of four products of bytes, the first extended as told, the second with its sign."""
    name = "llvm.vector.partial.reduce.add.v4i32.v16i32"
    return f"""
    declare <4 x i32> @{name}(<4 x i32>, <16 x i32>)
    define <4 x i32> @f(<4 x i32> %a, <16 x i8> %x, <16 x i8> %y) {{
      %u = {extend} <16 x i8> %x to <16 x i32>
      %v = sext <16 x i8> %y to <16 x i32>
      %m = mul <16 x i32> %u, %v
      %z = call <4 x i32> @{name}(<4 x i32> %a, <16 x i32> %m)
      ret <4 x i32> %z
    }}"""


PLACES = ", ".join(f"i32 {(7 * at + 3) % 64}" for at in range(64))
PERMUTE = f"""
define <64 x i8> @f(<64 x i8> %x) {WIDE} {{
  %z = shufflevector <64 x i8> %x, <64 x i8> poison, <64 x i32> <{PLACES}>
  ret <64 x i8> %z
}}"""
SWAP = """
declare i64 @llvm.bswap.i64(i64)
define i64 @f(ptr %p) { %x = load i64, ptr %p %z = call i64 @llvm.bswap.i64(i64 %x) ret i64 %z }"""
ADD_TO_MEMORY = "define i64 @f(ptr %p) { %z = atomicrmw add ptr %p, i64 1 seq_cst ret i64 %z }"

# feature: (a function, what its assembly contains if and only if the processor has the feature)
X86 = {
    "avx": (binary("fadd", "<8 x float>"), "%ymm"),
    "avx2": (binary("add", "<8 x i32>"), "vpaddd\t%ymm"),
    "avx512f": (binary("fadd", "<16 x float>", WIDE), "%zmm"),
    "avx512bw": (binary("add", "<64 x i8>", WIDE), "%zmm"),
    "avx512dq": (binary("mul", "<8 x i64>", WIDE), "vpmullq"),
    "avx512vl": (binary("mul", "<4 x i64>"), "vpmullq\t%ymm"),
    "avx512fp16": (binary("fadd", "<32 x half>", WIDE), "vaddph"),
    "avx512bf16": (
        convert("fptrunc", "<16 x float>", "<16 x bfloat>", WIDE),
        "vcvtneps2bf16\t%zmm",
    ),
    "avx512cd": (
        call("llvm.ctlz.v16i32", "<16 x i32>", "i1 false", attributes=WIDE),
        "vplzcntd",
    ),
    "avx512vpopcntdq": (call("llvm.ctpop.v16i32", "<16 x i32>", attributes=WIDE), "vpopcntd"),
    "avx512bitalg": (call("llvm.ctpop.v64i8", "<64 x i8>", attributes=WIDE), "vpopcntb"),
    "avx512vbmi": (PERMUTE, "vpermb"),
    "avx512vbmi2": (
        "declare <32 x i16> @llvm.fshl.v32i16(<32 x i16>, <32 x i16>, <32 x i16>) "
        f"define <32 x i16> @f(<32 x i16> %x, <32 x i16> %y, <32 x i16> %n) {WIDE} {{ "
        "%z = call <32 x i16> @llvm.fshl.v32i16(<32 x i16> %x, <32 x i16> %y, <32 x i16> %n) "
        "ret <32 x i16> %z }",
        "vpshldvw",
    ),
    "gfni": (call("llvm.bitreverse.v16i8", "<16 x i8>"), "gf2p8affineqb"),
    "fma": (call("llvm.fma.f32", "float", count=3), "vfmadd"),
    "f16c": (convert("fpext", "<8 x half>", "<8 x float>"), "vcvtph2ps"),
    "sse4.1": (call("llvm.floor.v4f32", "<4 x float>"), "roundps"),
    "popcnt": (call("llvm.ctpop.i64", "i64"), "popcnt"),
    "lzcnt": (call("llvm.ctlz.i64", "i64", "i1 false"), "lzcnt"),
    "bmi2": (binary("shl", "i64"), "shlx"),
    "movbe": (SWAP, "movbe"),
}
AARCH64 = {
    "fullfp16": (binary("fadd", "<8 x half>"), "fadd\tv0.8h"),
    "bf16": (convert("fptrunc", "<4 x float>", "<4 x bfloat>"), "bfcvtn"),
    "lse": (ADD_TO_MEMORY, "ldaddal"),
    "dotprod": (dot("sext"), "sdot"),
    "i8mm": (dot("zext"), "usdot"),
}
RISCV64 = {
    "v": (binary("add", "<4 x i32>"), "vadd.vv"),
    "zvfh": (binary("fadd", "<8 x half>"), "vfadd.vv"),
    "zfh": (binary("fadd", "half"), "fadd.h"),
    "zbb": (call("llvm.ctpop.i64", "i64"), "cpop"),
}
FEATURES = [
    *(("x86_64", feature, *how) for feature, how in X86.items()),
    *(("aarch64", feature, *how) for feature, how in AARCH64.items()),
    *(("riscv64", feature, *how) for feature, how in RISCV64.items()),
]


@pytest.fixture(autouse=True)
def all_targets():
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()


def assembly(arch: str, processor: str, program: str) -> str:
    target = binding.Target.from_triple(f"{arch}-unknown-linux-gnu")
    module = binding.parse_assembly(program)
    return target.create_target_machine(cpu=processor, opt=2).emit_assembly(module)


@pytest.mark.parametrize(
    ("arch", "feature", "program", "instruction"), FEATURES, ids=[f[1] for f in FEATURES]
)
def test_processors_have_the_features_whose_instructions_llvm_uses(
    arch, feature, program, instruction
):
    used = {p for p in processors(arch) if instruction in assembly(arch, p, program)}
    assert used == {p for p in processors(arch) if feature in processor_features(arch, p)}


COMPILES = """
import sys
from tilewright import te
from tilewright.codegen.build import build
from tilewright.rules import schedule
A, B = te.placeholder((96, 64), name="A"), te.placeholder((64, 80), name="B")
k = te.reduce_axis((0, 64))
C = te.compute((96, 80), lambda i, j: te.sum(A[i, k] * B[k, j], [k]), name="C")
D = te.compute((80, 96), lambda i, j: te.tanh(C[j, i]), name="D")
fn = te.function([A, B, D])
build(schedule(fn, sys.argv[1]).schedule.function, sys.argv[1], use_cache=False)
"""


@pytest.mark.parametrize("processor", ["ampere1b", "oryon-1"])
def test_a_processor_with_an_incomplete_scheduling_model_has_code(processor):
    """LLVM would end the process."""
    target = f"aarch64-linux-gnu -mcpu={processor}"
    subprocess.run([sys.executable, "-c", COMPILES, target], check=True)


def test_code_for_a_processor_whose_features_are_not_listed_runs_elsewhere():
    """LLVM may use features of it that this machine lacks."""
    arch = Target.host().arch
    other = {"x86_64": "bdver2", "aarch64": "exynos-m3"}[arch]
    assert not is_known(arch, other)
    assert not can_run(Target.parse(f"cpu -mcpu={other}"))
    assert can_run(Target.parse(f"cpu -mcpu={BASELINE[arch]}"))


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_processors_with_vectors_beyond_the_baseline_have_a_machine_model(arch):
    of_any = {BASELINE[arch], "x86-64-v2"}  # stand for many processors
    guessed = [p for p in processors(arch) if machine_of(arch, p).source == "guessed"]
    assert set(guessed) <= of_any
