"""The options of `compile`, and access to the tuning database they name."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from tilewright.base.errors import UserTypeError
from tilewright.driver.tuning.inputs import Sizes
from tilewright.tune.budget import Budget
from tilewright.tune.database import Database, Records, default_path
from tilewright.tune.fleet import Fleet
from tilewright.tune.outcome import Snapshot
from tilewright.tune.reader import Reader

# named parameters of `compile` that are not fields of Options
NAMED = ("target", "args", "kwargs", "dynamic")


@dataclass(frozen=True)
class Options:
    """How a model is compiled, beyond its target."""

    threads: int = 0  # 0: as many as cores
    precision: str = "f32"
    without: tuple[str, ...] = ()  # names of passes to skip
    schedule: bool = True
    packing: bool = True  # weights are packed at compile time
    in_place: bool = True  # results may reuse the memory of operands that are dead
    # GPUs: join chains of GEMV kernels; None: where tuning found that faster
    chains: bool | None = None
    cache: bool = True
    tune: Budget | None = None  # tune kernels first, within this budget
    # of tuning records; None: the default file, "": none
    database: Database | Reader | str | Path | None = None
    # Values of dynamic sizes while tuning. Default: 1, or the ends and the geometric middle of a
    # range given as `dynamic`.
    sizes: Sizes = field(default_factory=dict)
    allow_blas: bool = False  # BLAS competes in tuning, and may be called
    search: str = "ranked"  # how tuning proposes candidates
    # Learned by tuning: trees, rank, gaussian, treegru, estimate; "": the best that is installed
    cost_model: str = ""
    fleet: Fleet | None = None  # machines that measure candidates; None: this one
    tuning: Callable[[Snapshot], None] = lambda snapshot: None  # called with the progress of tuning
    progress: Callable[[str, int, int], None] = lambda stage, count, total: None


def check_options(given: Mapping[str, Any]) -> None:
    """Refuse unknown options, with the nearest known name."""
    known = [each.name for each in fields(Options)]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, [*known, *NAMED], 1)
            help = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known))}"
            raise UserTypeError("TW6009", f"compile has no option {name!r}", help=help)


@contextlib.contextmanager
def reading_records(settings: Options) -> Iterator[Options]:
    """Options with the tuning database opened once, for compilations that only read it."""
    given = settings.database
    if settings.tune is not None or isinstance(given, Database | Reader):
        yield settings
        return
    path = default_path() if given is None else Path(given) if given else None
    if path is None or not path.exists():
        yield replace(settings, database="")
        return
    with Reader(path) as records:
        yield replace(settings, database=records)


@contextlib.contextmanager
def writing_records(options: Options) -> Iterator[Records]:
    """The tuning records, writable; a database that the caller passed stays open."""
    given = options.database
    assert not isinstance(given, Reader)  # a Reader belongs to a compilation that does not tune
    if isinstance(given, Database):
        records = Records(given)
    else:
        records = Records.open(default_path() if given is None else given or None)
    try:
        yield records
    finally:
        records.close(keep=isinstance(given, Database))
