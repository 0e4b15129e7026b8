"""Many machines: workers behind any command, or Ray; what travels is text and numbers."""

from tilewright.tune.fleet.pool import Fleet, Job, Pipe, Result
