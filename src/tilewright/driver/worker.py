"""A compile worker process: reads jobs, writes kernels or errors."""

from __future__ import annotations

import gc
import os
import sys
from typing import IO

from tilewright.base.errors import TilewrightError
from tilewright.driver.kernel_code import compile_kernel, compile_packer
from tilewright.driver.kernels import Job
from tilewright.driver.workers import read_message, write_message
from tilewright.rules import RULES


def main() -> None:
    """Serve until the parent closes the pipe; the arguments are the pipes of processes to fork."""
    for kind in RULES:  # load the rules before forking, so that all processes share them
        RULES[kind]
    gc.disable()  # few reference cycles: one collection per kernel is enough
    gc.freeze()
    ends = [int(end) for end in sys.argv[1:]]
    pipes = list(zip(ends[::2], ends[1::2], strict=True))
    for jobs, answers in pipes:
        if os.fork() == 0:
            # A process that kept an end of another's pipe would keep it open after its owner's
            # death.
            for end in {0, 1, *ends} - {jobs, answers}:
                os.close(end)
            serve(os.fdopen(jobs, "rb"), os.fdopen(answers, "wb"))
            os._exit(0)
    for end in ends:
        os.close(end)
    serve(sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb"))


def serve(jobs: IO[bytes], answers: IO[bytes]) -> None:
    os.dup2(sys.stderr.fileno(), 1)  # prints must not corrupt the answers
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
        try:
            write_message(answers, answer)
        except BrokenPipeError:
            return  # the parent has exited
        answer = None
        gc.collect(1)


if __name__ == "__main__":
    main()
