"""Targets: parsed from text, printed back, read from the host."""

import pickle

import pytest

from tilewright.base import cpuinfo
from tilewright.base import host as module
from tilewright.base import target as targets
from tilewright.base.errors import UserError
from tilewright.base.geometry import Geometry
from tilewright.base.known_machines import machine_of
from tilewright.base.machine import Cache
from tilewright.base.processors import processors
from tilewright.base.target import ACCEL, CPU, CUDA, EXAMPLES, WASM, Target


@pytest.mark.parametrize("text", EXAMPLES)
def test_the_text_of_a_target_parses_back_to_it(text):
    target = Target.parse(text)
    assert str(target) == text
    assert Target.parse(str(target)) == target
    assert pickle.loads(pickle.dumps(target)) == target


def test_a_target_stands_for_itself():
    host = Target.host()
    assert Target.parse(host) is host


@pytest.mark.parametrize(
    ("text", "kind", "arch"),
    [
        ("cpu", CPU, Target.host().arch),
        ("x86_64-linux-gnu", CPU, "x86_64"),
        ("aarch64-linux-gnu", CPU, "aarch64"),
        ("riscv64-linux-gnu", CPU, "riscv64"),
        ("arm-linux-gnueabihf", CPU, "arm"),
        ("cuda", CUDA, "nvptx64"),
        ("wasm32", WASM, "wasm32"),
        ("vta-sim", ACCEL, Target.host().arch),
        ("vta-cycle -geometry=1x4x4", ACCEL, Target.host().arch),
    ],
)
def test_kinds_and_architectures(text, kind, arch):
    target = Target.parse(text)
    assert (target.kind, target.arch) == (kind, arch)


def test_an_accelerator_has_a_geometry():
    text = "vta-sim -geometry=2x8x16 -inp=16K -wgt=128K -acc=64K -uop=8K -bus=128 -latency=32"
    geometry = Target.parse(text).geometry
    assert geometry == Geometry(2, 8, 16, 16 << 10, 128 << 10, 64 << 10, 8 << 10, 128, 32)
    assert f"vta-sim {geometry.options}" == text
    assert Target.parse("vta-sim").geometry == Geometry()
    assert Target.parse("cpu").geometry is None
    assert Target.parse("vta-sim").key != Target.parse("vta-sim -bus=128").key


def test_a_triple_gets_its_vendor():
    assert Target.parse("aarch64-linux-gnu").triple == "aarch64-unknown-linux-gnu"
    assert Target.parse("aarch64-unknown-linux-gnu").triple == "aarch64-unknown-linux-gnu"


def test_the_order_of_options_does_not_matter():
    a = Target.parse("x86_64-linux-gnu -mattr=+avx2   -mcpu=x86-64")
    b = Target.parse("x86_64-linux-gnu -mcpu=x86-64 -mattr=+avx2")
    assert a == b


@pytest.mark.parametrize(
    ("text", "bits", "registers"),
    [
        ("x86_64-linux-gnu", 128, 16),
        ("x86_64-linux-gnu -mcpu=haswell", 256, 16),
        ("x86_64-linux-gnu -mcpu=skylake-avx512", 512, 32),
        ("x86_64-linux-gnu -mcpu=skylake-avx512 -mattr=-avx512f", 256, 16),
        ("aarch64-linux-gnu", 128, 32),
        ("riscv64-linux-gnu", 64, 32),
        ("riscv64-linux-gnu -mattr=+v", 128, 32),
        ("wasm32", 128, 16),
        ("arm-none-eabi -mcpu=cortex-m4", 32, 16),
    ],
)
def test_vector_registers(text, bits, registers):
    target = Target.parse(text)
    assert (target.vector_bits, target.vector_registers) == (bits, registers)


def test_features_by_llvms_and_by_common_names():
    spr = Target.parse("x86_64-linux-gnu -mcpu=sapphirerapids")
    for name in ("avx2", "avx512f", "avx512vnni", "vnni", "bf16", "amx", "amx-int8", "fma"):
        assert spr.has(name)
    skylake = Target.parse("x86_64-linux-gnu -mcpu=skylake")
    assert skylake.has("avx2")
    assert not any(skylake.has(name) for name in ("avx512f", "vnni", "bf16", "amx"))
    assert Target.parse("aarch64-linux-gnu -mcpu=neoverse-n1").has("dot")
    assert Target.parse("cuda -arch=sm_90a").has("wgmma")
    assert not Target.parse("cuda -arch=sm_90").has("wgmma")


def test_switching_a_feature_takes_along_what_depends_on_it():
    off = Target.parse("x86_64-linux-gnu -mcpu=sapphirerapids -mattr=-avx512f")
    assert not any(off.has(name) for name in ("avx512bw", "avx512vnni", "avx512bf16"))
    assert off.has("avx2")
    on = Target.parse("x86_64-linux-gnu -mattr=+avx512vnni")
    assert all(on.has(name) for name in ("avx512f", "avx2", "avx"))


def test_sizes_and_cores_can_be_told():
    target = Target.parse("aarch64-linux-gnu -cores=8 -l1d=64K -l2=1M -l3=12M")
    assert (target.cores, target.l1d_bytes) == (8, 65536)
    assert (target.l2_bytes, target.machine.l3.size_bytes) == (1 << 20, 12 << 20)


def test_every_number_of_the_machine_model_can_be_told():
    plain = Target.parse("x86_64-linux-gnu -mcpu=cascadelake")
    for name, value in plain.machine.numbers().items():
        given = int(value) * 2 + 1 if isinstance(value, int) else value * 2 + 0.5
        told = Target.parse(f"x86_64-linux-gnu -mcpu=cascadelake -{name}={given}")
        changed = {
            n: v for n, v in told.machine.numbers().items() if v != plain.machine.numbers()[n]
        }
        assert changed == {name: given}
        assert told.key != plain.key


def test_a_named_processor_never_reads_the_host(monkeypatch):
    before = Target.parse("cpu -mcpu=generic").machine
    monkeypatch.setattr(module, "_as_described", lambda *_: pytest.fail("read the host"))
    module.host_machine.cache_clear()
    text = f"{Target.host().triple} -mcpu=generic -cores=7"
    try:
        assert Target.parse(text).machine.with_numbers({"cores": before.cores}) == before
    finally:
        monkeypatch.undo()
        module.host_machine.cache_clear()


def test_options_of_cpu_come_on_top_of_what_it_is_pretended_to_be(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_HOST", "-mcpu=generic -mattr=+crc32")
    read = targets._parse.__wrapped__
    host, less, other = (read(f"cpu{more}") for more in ("", " -mattr=-crc32", " -l2=3M"))
    assert (host.mcpu, host.attrs, host.text) == ("generic", ("+crc32",), "cpu")
    assert less.features == host.features - {"crc32"}
    assert (other.features, other.l2_bytes) == (host.features, 3 << 20)
    assert str(less) == "cpu -mattr=-crc32"


def test_what_was_measured_is_used_for_this_machine_alone(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    assert module.try_measured() is None
    path = module.measured_file()
    path.parent.mkdir(parents=True)
    path.write_text('{"l2-bytes-per-cycle": 21.5, "fma-latency-cycles": 3}')
    assert module.try_measured() == {"l2-bytes-per-cycle": 21.5, "fma-latency-cycles": 3}
    path.write_text('{"something-else": 1}')
    assert module.try_measured() is None
    path.write_text("{")
    assert module.try_measured() is None


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        ("vendor_id : GenuineIntel\ncpu family : 6\nmodel : 207", "emeraldrapids"),
        ("vendor_id : GenuineIntel\ncpu family : 6\nmodel : 106", "icelake-server"),
        ("vendor_id : GenuineIntel\ncpu family : 6\nmodel : 140", "tigerlake"),
        ("vendor_id : AuthenticAMD\ncpu family : 23\nmodel : 49", "znver2"),
        ("vendor_id : HygonGenuine\ncpu family : 24\nmodel : 1", "znver1"),
        ("vendor_id : AuthenticAMD\ncpu family : 26\nmodel : 2", "znver5"),
        ("flags : avx2 avx512f avx512_vnni", "cascadelake"),
        ("flags : avx2", "haswell"),
    ],
)
def test_processors_are_told_by_what_the_system_says(monkeypatch, lines, name):
    monkeypatch.setattr(module.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(cpuinfo, "processors", lambda: (cpuinfo._pairs(lines),))
    module.host_features.cache_clear()
    try:
        assert module.host_processor() == name
    finally:
        monkeypatch.undo()
        module.host_features.cache_clear()


def test_of_fast_and_frugal_cores_the_fast_ones_are_compiled_for(monkeypatch):
    cores = [{"CPU implementer": "0x41", "CPU part": part} for part in ("0xd05", "0xd0b", "0xfff")]
    monkeypatch.setattr(cpuinfo, "processors", lambda: tuple(cores))
    assert cpuinfo.processor("aarch64", frozenset()) == "cortex-a76"


def test_every_processor_that_the_kernel_may_report_has_features_and_a_machine_model():
    parts = {name for parts in cpuinfo._ARM_PARTS.values() for name in parts.values()}
    families = {name for pair in cpuinfo._AMD_FAMILIES.values() for name in pair}
    for arch, names in (
        ("aarch64", parts),
        ("x86_64", families | {*cpuinfo._INTEL_MODELS.values()}),
    ):
        assert names <= {*processors(arch)}
        assert all(machine_of(arch, name).source == "known" for name in names)


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("aarch64-linux-gnu -mcpu=cascadelake", "x86_64-linux-gnu -mcpu=cascadelake"),
        ("x86_64-linux-gnu -mcpu=neoverse-n1", "aarch64-linux-gnu -mcpu=neoverse-n1"),
        ("riscv64-linux-gnu -mcpu=cortex-m4", "arm-linux-gnu -mcpu=cortex-m4"),
    ],
)
def test_a_processor_of_another_architecture_is_refused_when_the_target_is_made(text, instead):
    with pytest.raises(UserError) as caught:
        Target.parse(text)
    assert caught.value.code == "TW0305"
    assert f"write {instead}," in caught.value.help
    assert Target.parse(instead).mcpu


def test_the_key_tells_machines_apart():
    keys = {Target.parse(text).key for text in EXAMPLES}
    assert len(keys) == len(EXAMPLES)


def test_the_host_is_read_from_the_machine():
    host = Target.host()
    assert host.is_host
    assert host.cores >= 1
    assert host.l1d_bytes >= 8 * 1024
    assert host.l2_bytes >= host.l1d_bytes
    assert host.vector_bits >= 32
    assert not Target.parse("cpu -mcpu=generic").is_host


def test_a_system_that_tells_nothing_gives_the_baseline(monkeypatch):
    monkeypatch.setattr(cpuinfo, "processors", lambda: ())
    module.host_features.cache_clear()
    try:
        assert "avx512f" not in module.host_features()
    finally:
        monkeypatch.undo()
        module.host_features.cache_clear()


def test_arm_and_riscv_descriptions_are_understood(monkeypatch):
    for machine, lines, has in (
        ("aarch64", "Features : fp asimd asimddp atomics", {"neon", "dotprod", "lse"}),
        ("riscv64", "isa : rv64imafdcv_zba_zbb", {"v", "zba", "zbb"}),
    ):
        monkeypatch.setattr(module.platform, "machine", lambda name=machine: name)
        monkeypatch.setattr(cpuinfo, "processors", lambda text=lines: (cpuinfo._pairs(text),))
        module.host_features.cache_clear()
        assert has <= module.host_features()
    monkeypatch.undo()
    module.host_features.cache_clear()


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("", "TW0301", "the target is empty"),
        ("gpu", "TW0301", "unknown target 'gpu'"),
        ("x86_64", "TW0301", "unknown target 'x86_64'"),
        ("cpu -march=x", "TW0302", "target 'cpu -march=x': unknown option '-march=x'"),
        ("cpu -mcpu", "TW0302", "target 'cpu -mcpu': unknown option '-mcpu'"),
        (
            "vta-sim -geometry=16",
            "TW0303",
            "target 'vta-sim -geometry=16': -geometry=16 is not BATCHxINxOUT",
        ),
        ("vta-sim -acc=big", "TW0303", "target 'vta-sim -acc=big': -acc=big is not a size"),
        (
            "vta-sim -geometry=1x12x16",
            "TW0307",
            "the accelerator's geometry cannot be built: block_in = 12 is not a power of two",
        ),
        (
            "vta-sim -inp=100",
            "TW0307",
            "the accelerator's geometry cannot be built: inp = 100 bytes is not a whole number, "
            "at least 16, of entries of 16 bytes",
        ),
        (
            "vta-sim -taps=8",
            "TW0307",
            "the accelerator's geometry cannot be built: an accumulator does not hold 8 bytes",
        ),
        ("vta-sim -mcpu=x", "TW0302", "target 'vta-sim -mcpu=x': unknown option '-mcpu=x'"),
        ("cpu -l2=1M -l2=2M", "TW0302", "target 'cpu -l2=1M -l2=2M': -l2 is given twice"),
        ("cpu -l2=big", "TW0303", "target 'cpu -l2=big': -l2=big is not a size"),
        (
            "cpu -l2-bytes-per-cycle=-1",
            "TW0303",
            "target 'cpu -l2-bytes-per-cycle=-1': -l2-bytes-per-cycle=-1 is not a positive number",
        ),
        ("cpu -cores=²", "TW0303", "target 'cpu -cores=²': -cores=² is not a size"),
        ("cpu -cores=0", "TW0303", "target 'cpu -cores=0': -cores=0 is not a size"),
        ("cpu -mattr=avx", "TW0303", "target 'cpu -mattr=avx': the feature 'avx' has no sign"),
        ("cuda -arch=90", "TW0304", "target 'cuda -arch=90': unknown architecture '90'"),
    ],
)
def test_bad_targets_are_refused(text, code, message):
    with pytest.raises(UserError) as caught:
        Target.parse(text)
    assert (caught.value.code, caught.value.message) == (code, message)
    assert caught.value.help


def test_the_help_of_an_unknown_target_lists_targets():
    with pytest.raises(UserError) as caught:
        Target.parse("tpu")
    assert all(example in caught.value.help for example in EXAMPLES)


def test_a_gpu_counts_cycles_of_its_own_clock():
    assert Target.parse("cuda -arch=sm_90a").machine.frequency_ghz == 1.755
    assert Target.parse("cuda -arch=sm_80").machine.frequency_ghz == 1.41


def test_rows_at_powers_of_two_compete_for_few_sets() -> None:
    l2 = Cache(1 << 20, 16, 32.0)
    assert l2.kept_rows(8000, 512) == 1024  # half of it
    assert l2.kept_rows(4096, 512) == 128
    assert l2.kept_rows(1 << 16, 512) == 8
