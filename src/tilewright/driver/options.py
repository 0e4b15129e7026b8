"""What `compile` takes beyond a model and its target, and the records that it opens for that."""

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

NAMED = ("target", "args", "kwargs", "dynamic")  # what compile takes beside its options


@dataclass(frozen=True)
class Options:
    """How a model is compiled, beyond its target."""

    threads: int = 0  # 0: as many as cores
    precision: str = "f32"
    without: tuple[str, ...] = ()  # passes switched off
    schedule: bool = True
    packing: bool = True  # weights lie as kernels read them
    in_place: bool = True  # results may take the memory of operands that end
    chains: bool | None = None  # GPUs: kernels that follow each other may be one; None: where
    # tuning finds that faster
    cache: bool = True
    tune: Budget | None = None  # kernels are tuned first, for so long
    database: Database | Reader | str | Path | None = None  # of records; None: the user's, "": none
    sizes: Sizes = field(default_factory=dict)  # of dynamic dimensions, while tuning; else 1,
    # or where `dynamic` tells a range, its ends and its middle
    allow_blas: bool = False  # a library's kernel competes, and may be called
    search: str = "ranked"  # how tuning proposes candidates
    cost_model: str = ""  # that it learns: trees, rank, gaussian, treegru, estimate; "": the best
    # that is installed
    fleet: Fleet | None = None  # machines that tuning measures on; None: this one
    tuning: Callable[[Snapshot], None] = lambda snapshot: None  # hears how tuning goes
    progress: Callable[[str, int, int], None] = lambda stage, count, total: None


def check_options(given: Mapping[str, Any]) -> None:
    """Only what there is; a misspelt name is told the nearest."""
    known = [each.name for each in fields(Options)]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, [*known, *NAMED], 1)
            help = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known))}"
            raise UserTypeError("TW6009", f"compile has no option {name!r}", help=help)


@contextlib.contextmanager
def reading_records(settings: Options) -> Iterator[Options]:
    """Options whose records are opened at most once, where only reading them is asked for."""
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
    """The records that tuning adds to; whose database it is closes it."""
    given = options.database
    assert not isinstance(given, Reader)  # of compilations that do not tune
    if isinstance(given, Database):
        records = Records(given)
    else:
        records = Records.open(default_path() if given is None else given or None)
    try:
        yield records
    finally:
        records.close(keep=isinstance(given, Database))
