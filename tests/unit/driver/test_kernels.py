"""What kernels and packers are known by: everything that they depend on."""

import subprocess
import sys
from dataclasses import replace

import pytest

import tilewright as tw
from tilewright import graph
from tilewright.base.target import Target
from tilewright.driver import kernels
from tilewright.driver.kernels import Job, Kernel, KernelSetting, PackerJob
from tilewright.sym import const
from tilewright.tensor import parse

SMALL = Target.parse("x86_64-linux-gnu -mcpu=cascadelake -l2=1M")
LARGE = Target.parse("x86_64-linux-gnu -mcpu=cascadelake -l2=2M")
FN = "func @pack(%w: f32[4], %p: f32[4]) stage flat { for %i in 0..4 { %p[%i] = %w[%i] } }"


@pytest.fixture(autouse=True)
def cache_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))


def job_for(target):
    module = graph.parse("graph @main(%x: f32[40]) -> (f32[40]) { %y = relu(%x) return %y }")
    return Job("relu", module.main, {}, frozenset(), KernelSetting(target, 1))


def host_with(l2_bytes):
    """This machine by name, as another that LLVM knows by the same name would see itself."""
    machine = Target.host().machine
    l2 = replace(machine.l2, size_bytes=l2_bytes)
    return replace(Target.host(), machine=replace(machine, l2=l2))


@pytest.mark.parametrize(
    ("a", "b"), [(SMALL, LARGE), (host_with(1 << 20), host_with(2 << 20))], ids=["named", "host"]
)
def test_targets_that_differ_in_l2_alone_have_different_keys(a, b):
    assert a.key != b.key
    assert job_for(a).key != job_for(b).key
    assert job_for(a).name != job_for(b).name


def test_a_kernel_is_not_found_for_another_l2():
    a, b = host_with(1 << 20), host_with(2 << 20)
    made = Kernel("relu", b"code", (), (), (), const(0), (), None, "")
    kernels.store(job_for(a), made)
    assert kernels.try_cached(job_for(a)) is not None
    assert kernels.try_cached(job_for(b)) is None


def test_a_packer_is_not_found_for_another_l2():
    a, b = host_with(1 << 20), host_with(2 << 20)
    kernels.store_packer(PackerJob("pack", "text", parse(FN), a), b"code")
    assert kernels.try_cached_packer("text", a) == b"code"
    assert kernels.try_cached_packer("text", b) is None


@pytest.mark.parametrize("target", ["cpu", "cuda -arch=sm_90a"])
def test_who_finds_all_kernels_in_the_cache_loads_no_rules_and_no_tuner(target):
    model = "graph @main(%x: f32[40]) { %y = relu(%x) return %y }"
    tw.compile(graph.parse(model), target=target)
    program = f"""
import sys
import tilewright as tw
from tilewright import graph
tw.compile(graph.parse({model!r}), target={target!r})
print(*sys.modules)
"""
    run = [sys.executable, "-c", program]
    done = subprocess.run(run, capture_output=True, check=True, text=True)
    loaded = done.stdout.split()
    assert "tilewright.driver.compile" in loaded
    kinds = "tilewright.rules.cpu", "tilewright.rules.gpu", "tilewright.tune.tuner"
    assert not [name for name in loaded if name in kinds]
