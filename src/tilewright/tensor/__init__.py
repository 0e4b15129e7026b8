"""The loop IR: text, verifier, interpreter, schedules, lowering."""

from tilewright.tensor.calls import call
from tilewright.tensor.interp import interpret
from tilewright.tensor.ir import (
    Buffer,
    Function,
)
from tilewright.tensor.parser import parse, parse_all
from tilewright.tensor.passes import lower
from tilewright.tensor.printer import format_function
from tilewright.tensor.schedule import BlockRef, Decision, LoopRef, Schedule, Trace
from tilewright.tensor.verify import VerifyError, verify
