"""Run the examples of docs/errors given as JSON; the messages they end with, as JSON."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
import tempfile

from tilewright.base.errors import TilewrightError

# What differs from run to run.
TEMPORARY = re.compile(re.escape(tempfile.gettempdir()) + r"/[\w.-]+")
ADDRESS = re.compile(r"0x[0-9a-f]{6,}")


def message(example: str) -> str | None:
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            exec(compile(example, "example.py", "exec"), {})
    except TilewrightError as error:
        return ADDRESS.sub("0x…", TEMPORARY.sub("/tmp/…", str(error)))
    except ImportError:  # of an extra that is not installed here
        return None
    return None


def main() -> None:
    examples = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        found = [message(example) for example in examples]
        os.chdir("/")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
