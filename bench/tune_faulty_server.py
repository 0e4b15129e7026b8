"""The server that checks candidates, with injected faults: see tune_faults.py.

A fault happens where a candidate's own code would have it: while it runs, or in one element of its
result. Which candidate has which is told by its name alone, so that whoever asks knows too.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

from tilewright.driver.kernels import Job
from tilewright.driver.tuning.check import Checker
from tilewright.driver.tuning.inputs import Sizes
from tilewright.driver.tuning.server import Server, serve
from tilewright.driver.tuning.table import Built

CRASH, HANG, MEMORY, WRONG = KINDS = ("crash", "hang", "memory", "wrong")
NONE = ""


def planted(kernel: str) -> str:
    """The fault of a kernel, by the digest at the end of its name; half of them have none."""
    number = int(kernel[-12:], 16) % (2 * len(KINDS))
    return KINDS[number] if number < len(KINDS) else NONE


class FaultyChecker(Checker):
    """Runs kernels, and what was planted in them."""

    def results(self, candidate: Built, inputs: list[Any]) -> list[Any]:
        made = super().results(candidate, inputs)
        kind = planted(candidate.kernel.name) if candidate.kernel.tuned else NONE
        if kind == CRASH:
            ctypes.string_at(0)
        if kind == HANG:
            time.sleep(3600)
        if kind == MEMORY:
            bytearray(100 << 30)
        if kind == WRONG:
            place = int(candidate.kernel.name[-6:], 16) % made[0].size
            made[0].reshape(-1)[place] += 1.0
        return made


class FaultyServer(Server):
    def checker(self, job: Job, default: Built, sizes: Sizes) -> Checker:
        return FaultyChecker(job, default, sizes)


if __name__ == "__main__":
    serve(FaultyServer())
