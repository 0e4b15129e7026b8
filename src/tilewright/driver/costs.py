"""Costs of kernels that graph passes choose between: measured by tuning, or estimated by rules.

    costs = KernelCosts(KernelSetting(target, threads), times)
    run_passes(module, passes, PassContext(target=target, costs=costs))
    costs.asked             if it is a list: the comparisons, for a tuner to measure

Estimates are cached in memory and on disk, by the kernel's key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tilewright import sym
from tilewright.base.errors import Unsupported, UserError
from tilewright.base.extents import ASSUMED
from tilewright.codegen import cache
from tilewright.driver.kernels import COMPILER, Job, KernelSetting, within_ranges
from tilewright.driver.sizes import Ranges
from tilewright.driver.tuning.records import task_key
from tilewright.graph.collapse import collapse_axes, collapse_rows, split_groups
from tilewright.graph.costs import ESTIMATED, MEASURED, Candidate, Price
from tilewright.lower.graph import lower_graph
from tilewright.rules.estimate import estimate_ns
from tilewright.rules.match.nest import likely_sizes
from tilewright.sym import Var
from tilewright.tensor.ir import Function, sizes_of
from tilewright.tune.database import Database, default_path
from tilewright.tune.reader import Reader

Measured = Callable[[Job], float | None]  # nanoseconds per call of a kernel; None: not measured


@dataclass(eq=False)
class KernelCosts:
    """Costs of kernels for one target and number of threads."""

    setting: KernelSetting
    times: Measured | None = None  # None: nothing was measured
    use_cache: bool = True
    # collects what passes compare; None: no tuner will measure it
    asked: list[tuple[Candidate, ...]] | None = None
    is_lowered: bool = False  # whether matmuls of f32 will be lowered to fewer bits
    ranges: Ranges = ()  # of the dynamic sizes of the model
    missed: Callable[[], None] = lambda: None  # called when an estimate was not in the disk cache
    _estimates: dict[str, float | None] = field(default_factory=dict)

    @property
    def threads(self) -> int:
        """The number of threads that run a kernel."""
        return self.setting.threads

    @property
    def has_times(self) -> bool:
        """Whether measured times exist, or will."""
        return self.times is not None or self.asked is not None

    def job(self, candidate: Candidate) -> Job:
        """The compilation job of a candidate's kernel."""
        graph = collapse_axes(candidate.kernel, self.setting.target.kind)
        setting = replace(self.setting, ranges=self.ranges)
        return Job(candidate.kernel.name, graph, {}, candidate.weights, setting)

    def measured(self, candidates: Sequence[Candidate]) -> tuple[Price, ...] | None:
        """The measured times of candidates; None unless all of them are known."""
        if self.asked is not None:
            self.asked.append(tuple(candidates))
        if self.times is None:
            return None
        found = [self.times(self.job(each)) for each in candidates]
        prices = [
            Price(each.name, ns, MEASURED)
            for each, ns in zip(candidates, found, strict=True)
            if ns is not None
        ]
        return tuple(prices) if len(prices) == len(candidates) else None

    def prices(self, candidates: Sequence[Candidate]) -> tuple[Price, ...] | None:
        """Measured times if all are known, else estimates; None if some candidate has neither."""
        known = self.measured(candidates)
        if known is not None:
            return known
        found = [(each.name, self.estimated(each)) for each in candidates]
        prices = [Price(name, ns, ESTIMATED) for name, ns in found if ns is not None]
        return tuple(prices) if len(prices) == len(candidates) else None

    def estimated(self, candidate: Candidate) -> float | None:
        """The estimate of a kernel, in nanoseconds; None if no rule has a price for it."""
        job = self.job(candidate)
        spatial = sorted(size.name for size in candidate.spatial)
        signals = sorted(size.name for size in _signal_sizes(candidate))
        key = f"{job.key}\nin_cache={candidate.in_cache}\nspatial={spatial}\nsignals={signals}"
        if key not in self._estimates:
            stored = f"estimate\n{cache.fingerprint(COMPILER)}\n{key}"
            kept = cache.try_read(stored) if self.use_cache else None
            if kept is None:
                self.missed()
                kept = json.dumps(_estimated(job, candidate)).encode()
                if self.use_cache:
                    cache.write(stored, kept)
            self._estimates[key] = json.loads(kept)
        return self._estimates[key]


def _estimated(job: Job, candidate: Candidate) -> float | None:
    setting = job.setting
    if candidate.is_empty:
        return None
    try:
        # Sizes are assumed one by one: dynamic axes of images stay apart.
        if candidate.is_dynamic:
            kernel = split_groups(collapse_rows(candidate.kernel))
        else:
            kernel = collapse_axes(candidate.kernel, setting.target.kind)
        fn = within_ranges(lower_graph(kernel, "candidate"), job)
        fn = _with_image_sizes(fn, candidate)
    except (Unsupported, UserError):
        return None  # no kernel of its own: not a candidate
    weights = [fn.params[at].name for at in sorted(job.constants)]
    return estimate_ns(
        fn,
        setting.target,
        threads=setting.threads,
        constants=weights,
        in_cache=candidate.in_cache,
        several=candidate.has_stages,
    )


def _with_image_sizes(fn: Function, candidate: Candidate) -> Function:
    """The function with bounds on its dynamic image sizes whose middle is the default image size,
    so that candidates are compared at the same size."""
    known, signals = likely_sizes(fn), _signal_sizes(candidate)
    sizes = [size for size in sizes_of(fn) if size in candidate.spatial and size not in known]
    more: list[sym.Expr] = []
    for size in sizes:
        likely = ASSUMED.image_pixels**2 if size in signals else ASSUMED.image_pixels
        # the likely size is the geometric middle of the range
        more += [sym.le(1, size), sym.le(size, likely**2)]
    return replace(fn, requires=(*fn.requires, *more))


def _signal_sizes(candidate: Candidate) -> frozenset[Var]:
    """Dynamic sizes that must be longer than the default image size, as in audio: at the default
    one, a layer's output would be empty or a single element."""
    found: set[Var] = set()
    for extent in candidate.extents:
        sizes = sym.free_vars(extent)
        if sizes and sym.evaluate(extent, dict.fromkeys(sizes, ASSUMED.image_pixels)) <= 1:
            found.update(sizes)
    return candidate.spatial & found


def recorded_times(database: str | Path | Database | Reader | None) -> Measured | None:
    """The kernel times in a tuning database; None if there are none.

    An unreadable database must not prevent compilation: it counts as empty.
    """
    try:
        if isinstance(database, Database | Reader):
            timed = database.timed()
            return RecordedTimes(database, timed) if timed else None
        path = default_path() if database is None else Path(database) if database else None
        if path is None or not path.exists():
            return None
        with Reader(path) as records:
            timed = records.timed()
    except UserError:
        return None
    return RecordedTimes(path, timed) if timed else None


@dataclass(frozen=True)
class RecordedTimes:
    """The times in a database; a file is opened only when it has an answer."""

    source: Database | Reader | Path
    timed: frozenset[str]  # digests of the tasks with measured times, so that others need no query

    def __call__(self, job: Job) -> float | None:
        key = task_key(job)
        if key.digest not in self.timed:
            return None
        try:
            if isinstance(self.source, Path):
                with Reader(self.source) as records:
                    seconds = records.measured(key)
            else:
                seconds = self.source.measured(key)
        except UserError:  # locked or damaged meanwhile: must not prevent compilation
            return None
        return None if seconds is None else seconds * 1e9
