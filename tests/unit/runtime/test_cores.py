"""How many cores a process may use: the compiler's count and that of the C runtime, which read the
same files."""

import os
import subprocess
from pathlib import Path

import pytest

from tilewright.base.host import _usable_cores, host_cores
from tilewright.base.target import Target
from tilewright.codegen.artifact import find_compiler
from tilewright.runtime.sources import FOLDER

MAIN = """
#include <stdio.h>
#include "cores.h"
int main(int count, char **arguments) {
  printf("%d", tw_usable_cores(count > 1 ? arguments[1] : ""));
  return 0;
}
"""
PROCESSORS = sorted(os.sched_getaffinity(0))
SIBLINGS = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
UNIFIED = {"proc/self/cgroup": "0::/kube/pod\n"}
SEPARATE = {"proc/self/cgroup": "7:memory:/pod\n4:cpu,cpuacct:/pod\n"}
ALL = len(PROCESSORS)


@pytest.fixture(scope="module")
def count_natively(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cores")
    (folder / "main.c").write_text(MAIN)
    command = [*find_compiler(Target.host()), "-Wall", "-Wextra", "-Werror", f"-I{FOLDER}"]
    subprocess.run([*command, "main.c", FOLDER / "cores.c", "-o", "main"], cwd=folder, check=True)

    def count(*root: Path) -> int:
        run = subprocess.run([folder / "main", *root], check=True, capture_output=True, text=True)
        return int(run.stdout)

    return count


def several(usable: list[int], text: str) -> dict[str, str]:
    """All processors in `text` are one core."""
    return {SIBLINGS.format(processor): text for processor in usable}


CASES = {
    "nothing is told": ({}, ALL),
    "each processor is a core": (
        {SIBLINGS.format(each): f"{each}\n" for each in PROCESSORS},
        ALL,
    ),
    "all are one core": (several(PROCESSORS, f"0-{PROCESSORS[-1]}\n"), 1),
    "the others of a core are not usable": (
        {SIBLINGS.format(each): f"{each},{each + 500}\n" for each in PROCESSORS},
        ALL,
    ),
    "a list that cannot be read": (several(PROCESSORS, "one, two"), ALL),
    "no quota": (UNIFIED | {"sys/fs/cgroup/kube/pod/cpu.max": "max 100000\n"}, ALL),
    "a quota of one": (UNIFIED | {"sys/fs/cgroup/kube/pod/cpu.max": "100000 100000\n"}, 1),
    "a quota below one": (UNIFIED | {"sys/fs/cgroup/kube/pod/cpu.max": "20000 100000\n"}, 1),
    "a quota of many": (UNIFIED | {"sys/fs/cgroup/kube/pod/cpu.max": "9999900000 100000\n"}, ALL),
    "the quota of a group that contains this one": (
        UNIFIED
        | {
            "sys/fs/cgroup/kube/pod/cpu.max": "9900000 100000\n",
            "sys/fs/cgroup/kube/cpu.max": "100000 100000\n",
        },
        1,
    ),
    "a container that sees the host's path": (
        UNIFIED | {"sys/fs/cgroup/cpu.max": "120000 100000\n"},
        1,
    ),
    "of separate controllers": (
        SEPARATE
        | {
            "sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu/pod/cpu.cfs_period_us": "100000\n",
        },
        1,
    ),
    "of separate controllers, none": (
        SEPARATE
        | {
            "sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/pod/cpu.cfs_period_us": "100000\n",
        },
        ALL,
    ),
    "files that cannot be read": (
        UNIFIED | {"sys/fs/cgroup/kube/pod/cpu.max": "\n", "sys/fs/cgroup/kube/cpu.max": "many"},
        ALL,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_cores_share_what_the_system_grants(case, tmp_path, count_natively):
    files, expected = CASES[case]
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert _usable_cores(frozenset(PROCESSORS), tmp_path) == expected
    assert count_natively(tmp_path) == expected


@pytest.mark.parametrize(("quota", "cores"), [(149, 1), (151, 2), (249, 2), (251, 3), (400, 4)])
def test_a_quota_between_whole_numbers_is_rounded(quota, cores, tmp_path):
    group = tmp_path / "sys/fs/cgroup/kube/pod/cpu.max"
    group.parent.mkdir(parents=True)
    group.write_text(f"{quota}000 100000\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(UNIFIED["proc/self/cgroup"])
    assert _usable_cores(frozenset(range(8)), tmp_path) == cores


def test_here_both_count_the_same(count_natively):
    assert host_cores() == count_natively()
