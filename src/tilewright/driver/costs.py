"""What candidates of graph passes take: measured by tuning, or estimated by schedule rules.

    costs = KernelCosts(KernelSetting(target, threads), database)
    run_passes(module, passes, PassContext(target=target, costs=costs))
    costs.asked             where it is a list: what was compared, for a tuner to measure

Estimates are kept in memory and on disk by the kernel's key, like kernels themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tilewright import sym
from tilewright.base.errors import Unsupported, UserError
from tilewright.codegen import cache
from tilewright.driver.kernels import COMPILER, Job, KernelSetting, within_ranges
from tilewright.driver.sizes import Ranges
from tilewright.driver.tuning.records import task_key
from tilewright.graph.collapse import collapse_axes, collapse_rows
from tilewright.graph.costs import ESTIMATED, MEASURED, Candidate, Price
from tilewright.lower.graph import lower_graph
from tilewright.rules.estimate import estimate_ns
from tilewright.rules.match.nest import DYNAMIC_SPATIAL, likely_sizes
from tilewright.sym import Var
from tilewright.tensor.ir import Function, sizes_of
from tilewright.tune.database import Database, default_path
from tilewright.tune.reader import Reader

Measured = Callable[[Job], float | None]  # nanoseconds of a call of a kernel


@dataclass(eq=False)
class KernelCosts:
    """Prices of kernels for one target and number of threads."""

    setting: KernelSetting
    times: Measured | None = None  # None: nothing was measured
    use_cache: bool = True
    asked: list[tuple[Candidate, ...]] | None = None  # None: nobody is going to measure
    is_lowered: bool = False  # whether products of f32 are to be those of fewer bits
    ranges: Ranges = ()  # of sizes of the model whose candidates these are
    missed: Callable[[], None] = lambda: None  # hears that an estimate was not kept on disk
    _estimates: dict[str, float | None] = field(default_factory=dict)

    @property
    def threads(self) -> int:
        """That kernels are shared out to."""
        return self.setting.threads

    @property
    def has_times(self) -> bool:
        """Whether anything was measured, or is going to be."""
        return self.times is not None or self.asked is not None

    def job(self, candidate: Candidate) -> Job:
        """The kernel of a candidate."""
        graph = collapse_axes(candidate.kernel)
        setting = replace(self.setting, ranges=self.ranges)
        return Job(candidate.kernel.name, graph, {}, candidate.weights, setting)

    def measured(self, candidates: Sequence[Candidate]) -> tuple[Price, ...] | None:
        """Times of candidates; None where not all of them are known."""
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
        """Times that were measured, or else estimates; None where there are neither of some."""
        known = self.measured(candidates)
        if known is not None:
            return known
        found = [(each.name, self._estimate(each)) for each in candidates]
        prices = [Price(name, ns, ESTIMATED) for name, ns in found if ns is not None]
        return tuple(prices) if len(prices) == len(candidates) else None

    def _estimate(self, candidate: Candidate) -> float | None:
        job = self.job(candidate)
        spatial = sorted(size.name for size in candidate.spatial)
        signals = sorted(size.name for size in _signals(candidate))
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
        # What follows a convolution may keep its axes apart: nobody knows yet.
        fn = within_ranges(lower_graph(collapse_rows(candidate.kernel), "candidate"), job)
        fn = _like_images(fn, candidate)
    except (Unsupported, UserError):
        return None  # it has no code of its own: no candidate
    weights = [fn.params[at].name for at in sorted(job.constants)]
    return estimate_ns(
        fn,
        setting.target,
        threads=setting.threads,
        constants=weights,
        in_cache=candidate.in_cache,
        several=candidate.has_stages,
    )


def _like_images(fn: Function, candidate: Candidate) -> Function:
    """A function whose extents of images without a range are as likely as those of any: prices of
    kernels are compared at one size."""
    known, signals = likely_sizes(fn), _signals(candidate)
    sizes = [size for size in sizes_of(fn) if size in candidate.spatial and size not in known]
    more: list[sym.Expr] = []
    for size in sizes:
        likely = DYNAMIC_SPATIAL**2 if size in signals else DYNAMIC_SPATIAL
        more += [sym.le(1, size), sym.le(size, likely**2)]  # it is the middle of the range
    return replace(fn, requires=(*fn.requires, *more))


def _signals(candidate: Candidate) -> frozenset[Var]:
    """Sizes that are longer than those of images: at the size of an image a layer sees nothing, or,
    if it pads, one window alone."""
    found: set[Var] = set()
    for extent in candidate.extents:
        sizes = sym.free_vars(extent)
        if sizes and sym.evaluate(extent, dict.fromkeys(sizes, DYNAMIC_SPATIAL)) <= 1:
            found.update(sizes)
    return candidate.spatial & found


def recorded_times(database: str | Path | Database | Reader | None) -> Measured | None:
    """Times of kernels that tuning left behind; None where there are none.

    Records are no reason for a model not to compile: where they cannot be read, there are none.
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
    """Times of a database, or of a file that is opened where it has an answer, and left to
    others."""

    source: Database | Reader | Path
    timed: frozenset[str]  # digests of tasks that it has times of: others need not be asked for

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
        except UserError:  # locked or damaged meanwhile: no reason for a model not to compile
            return None
        return None if seconds is None else seconds * 1e9
