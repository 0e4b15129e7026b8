"""A worker for tests: it answers, fails, hangs, dies or babbles, as tasks say."""

import os
import sys
import time
from pathlib import Path

from tilewright.tune.fleet.serve import serve
from tilewright.tune.fleet.wire import TOKEN_VARIABLE


def double(message):
    return {"twice": 2 * message["number"], "pid": os.getpid()}


def die(message):
    os._exit(7)


def die_once(message):
    """Die, unless somebody has died of this task before."""
    if _first(message["mark"]):
        os._exit(7)
    return double(message)


def hang_once(message):
    if _first(message["mark"]):
        time.sleep(3600)
    return double(message)


def meet(message):
    """Wait until as many workers as are asked for are here at the same time."""
    Path(message["mark"], str(os.getpid())).touch()
    while len(os.listdir(message["mark"])) < message["workers"]:
        time.sleep(0.01)
    return double(message)


def babble(message):
    os.write(OUT.fileno(), b"what?\n")
    return {}


def wait(message):
    time.sleep(message["seconds"])
    return double(message)


def _first(mark):
    try:
        Path(mark).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


OUT = os.fdopen(os.dup(1), "wb", buffering=0)
HANDLERS = {each.__name__: each for each in (double, die, die_once, hang_once, meet, babble, wait)}
serve(
    os.fdopen(os.dup(0), "rb", buffering=0),
    OUT,
    HANDLERS,
    tags=sys.argv[1:],
    token=os.environ.get(TOKEN_VARIABLE, ""),
)
