"""A worker: reads tasks from its input, writes answers to its output.

    python -m tilewright.tune.fleet.worker [--tag NAME] [--memory-gb N]

Any command that ends up running this serves: `ssh board ...`, an emulator, a container. It listens
on no port. With TILEWRIGHT_FLEET_TOKEN in its environment it serves only who knows the token.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.tune.fleet.kernel import Kernel
from tilewright.tune.fleet.serve import Handler, serve
from tilewright.tune.fleet.wire import TOKEN_VARIABLE, Message
from tilewright.tune.process import limit_this_process

MAX_OUTPUT_BYTES = 1 << 30
MAX_FUNCTIONS = 4  # that are kept with their inputs and results


class Measurer:
    """Measures functions; keeps the last few."""

    def __init__(self) -> None:
        self._kernels: dict[tuple[str, str, int], Kernel] = {}

    def __call__(self, message: Message) -> Mapping[str, Any]:
        key = (str(message["function"]), str(message["target"]), int(message["threads"]))
        kernel = self._kernels.pop(key, None)
        if kernel is None:
            sizes = {str(name): int(size) for name, size in message.get("sizes", {}).items()}
            kernel = Kernel(*key, sizes)
        self._kernels[key] = kernel
        while len(self._kernels) > MAX_FUNCTIONS:
            del self._kernels[next(iter(self._kernels))]
        return kernel.measure(
            str(message["trace"]),
            str(message.get("against", "")),
            pairs=int(message.get("pairs", 5)),
            seconds=float(message.get("seconds", 1.0)),
        )


HANDLERS: Mapping[str, Handler] = {
    "measure": Measurer(),
    "echo": lambda message: {"said": message.get("say"), "pid": os.getpid()},
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve measurements on this process's input and output."""
    parser = argparse.ArgumentParser(prog="tilewright.tune.fleet.worker")
    parser.add_argument("--tag", action="append", default=[], help="what this machine is")
    parser.add_argument("--memory-gb", type=float, default=16.0, help="that it may take")
    given = parser.parse_args(arguments)
    serve_here(HANDLERS, given.tag, given.memory_gb)


def serve_here(handlers: Mapping[str, Handler], tags: Sequence[str], memory_gb: float) -> None:
    """Answer on this process's input and output, within limits."""
    sink = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    source = os.fdopen(os.dup(sys.stdin.fileno()), "rb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever prints does not disturb answers
    limit_this_process(int(memory_gb * (1 << 30)), MAX_OUTPUT_BYTES)
    serve(source, sink, handlers, tags=tags, token=os.environ.get(TOKEN_VARIABLE, ""))


if __name__ == "__main__":
    main()
