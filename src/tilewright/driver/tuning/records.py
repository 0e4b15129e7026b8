"""Convert jobs to keys of the tuning database, and its winners to choices."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tilewright.base.errors import UserError
from tilewright.driver.kernels import Job
from tilewright.driver.lowering import Choices, Recorded
from tilewright.driver.size_variants import Limit
from tilewright.rules.rule import Choice
from tilewright.tune.database import Database, default_path
from tilewright.tune.plans import parse_choice
from tilewright.tune.reader import Reader
from tilewright.tune.record import TaskKey, Winner

# winners of those tasks that have one
Winners = Callable[[Sequence[TaskKey]], Mapping[TaskKey, Winner]]

_log = logging.getLogger("tilewright")


def task_key(job: Job, key: str = "") -> TaskKey:
    """The database key of a kernel; `key` is its job's, if the caller has it."""
    text = (key or job.key)[len(job.setting.key) :].lstrip()
    return TaskKey(text, job.setting.target.key, job.setting.threads)


def recorded_choices(
    jobs: Mapping[str, Job], database: str | Path | Database | Reader | None
) -> Choices:
    """The recorded choices of jobs, by their keys."""
    return winning_choices(jobs, lambda keys: recorded_winners(keys, database))


def recorded_winners(
    keys: Sequence[TaskKey], database: str | Path | Database | Reader | None
) -> Mapping[TaskKey, Winner]:
    """The recorded winners of tasks.

    An unreadable database must not prevent compilation: it counts as empty.
    """
    try:
        if isinstance(database, Database | Reader):
            return database.winners(keys)
        path = default_path() if database is None else Path(database) if database else None
        if path is None or not path.exists():
            return {}
        with Reader(path) as records:
            return records.winners(keys)
    except UserError as error:
        _log.warning("kernels are compiled untuned: %s", error.message)
        return {}


def winning_choices(jobs: Mapping[str, Job], winners_of: Winners) -> Choices:
    """The choices of winners, by the keys of their jobs."""
    tasks = {key: task_key(job, key) for key, job in jobs.items()}
    winners = winners_of(list(tasks.values()))
    found = {}
    for key, task in tasks.items():
        winner = winners.get(task)
        if winner is not None and (winner.choices or winner.variants):
            variants = tuple(
                (Limit(each.size, each.most), choices_of(each.choices)) for each in winner.variants
            )
            found[key] = Recorded(choices_of(winner.choices), variants)
    return found


def choices_of(texts: Mapping[str, str]) -> dict[str, Choice]:
    """Rules and plans by block, parsed."""
    return {block: parse_choice(text) for block, text in texts.items()}
