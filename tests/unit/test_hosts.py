"""Processors that a machine is pretended to be: those whose code it runs."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from hosts import LESSER, pretended

from tilewright.base.host import host_arch, host_features
from tilewright.base.processors import processor_features


def test_a_machine_with_amx_is_pretended_to_lack_it_and_avx512() -> None:
    features = processor_features("x86_64", "emeraldrapids")
    chosen, missing = pretended("x86_64", features)
    assert (chosen, missing) == (["haswell", "cascadelake", "skylake-avx512"], [])
    assert all("amx-tile" not in processor_features("x86_64", name) for name in chosen)
    assert "avx512f" not in processor_features("x86_64", chosen[0])


def test_code_that_the_machine_cannot_run_is_left_out() -> None:
    assert pretended("x86_64", processor_features("x86_64", "znver3")) == (
        ["haswell"],
        ["cascadelake", "skylake-avx512"],
    )
    assert pretended("riscv64", frozenset()) == ([], [])


def test_a_machine_is_not_pretended_to_be_itself() -> None:
    features = processor_features("x86_64", "cascadelake")
    assert pretended("x86_64", features) == (["haswell", "skylake-avx512"], [])
    features = processor_features("x86_64", "skylake-avx512")
    assert pretended("x86_64", features) == (["haswell"], ["cascadelake"])


def test_arm_is_pretended_to_lack_dot_products() -> None:
    assert "dotprod" not in processor_features("aarch64", *LESSER["aarch64"])


def test_a_failure_under_pretence_is_a_failure() -> None:
    if not pretended(host_arch(), host_features())[0]:
        pytest.skip("this machine is not pretended to be any other")
    script = Path(__file__).parents[1] / "hosts.py"
    command = (sys.executable, str(script), "--", "-q", "tests/unit/no_such_test.py")
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, "failed: " in done.stdout) == (1, True)
