"""Many machines: workers behind any command, or Ray; messages are text and numbers."""

from tilewright.tune.fleet.pool import Fleet, Job, Pipe, Result
