"""Schedules: primitives that transform a program without changing its results, and traces of
them."""

from tilewright.tensor.schedule.refs import BlockRef, Decision, LoopRef
from tilewright.tensor.schedule.schedule import Schedule
from tilewright.tensor.schedule.trace import Trace
