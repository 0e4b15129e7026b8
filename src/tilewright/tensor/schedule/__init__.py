"""Schedules: primitives that transform a program without changing its answer, and traces."""

from tilewright.tensor.schedule.refs import BlockRef, Decision, LoopRef
from tilewright.tensor.schedule.schedule import Schedule
from tilewright.tensor.schedule.trace import Trace
