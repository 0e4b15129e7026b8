"""A process that compiles kernels: jobs come in, kernels or errors go out."""

from __future__ import annotations

import gc
import os
import sys

from tilewright.base.errors import TilewrightError
from tilewright.driver.kernel_code import compile_kernel, compile_packer
from tilewright.driver.kernels import Job
from tilewright.driver.workers import read_message, write_message


def main() -> None:
    """Serve until the other end closes."""
    gc.disable()  # programs have no cycles to speak of: once after each kernel is often enough
    gc.freeze()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever prints does not disturb answers
    jobs = sys.stdin.buffer
    while True:
        try:
            job, use_cache = read_message(jobs)
        except EOFError:
            return
        try:
            build = compile_kernel if isinstance(job, Job) else compile_packer
            answer: object = build(job, use_cache=use_cache)
        except TilewrightError as error:
            answer = error
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        write_message(answers, answer)
        answer = None
        gc.collect(1)


if __name__ == "__main__":
    main()
