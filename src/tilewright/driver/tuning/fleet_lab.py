"""The tuner's lab on other machines: workers of a fleet build, check and time a model's kernels.

    lab = FleetLab(fleet, told_model(module, setting, sizes), jobs)

What travels is text and numbers: the graph, small constants, choices, times. Every task tells all
of it, so that any worker can take it, and one that comes back empty can go on
(`model_worker.py`). Large weights stay here: their values do not change what a kernel takes.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.base.dtype import from_numpy
from tilewright.base.errors import UserError
from tilewright.base.target import Target
from tilewright.driver.kernels import Job, KernelSetting
from tilewright.driver.tuning.inputs import Sizes
from tilewright.driver.tuning.running import Measured
from tilewright.graph.ir import Module
from tilewright.graph.printer import format_module
from tilewright.tune.fleet.pool import Fleet
from tilewright.tune.fleet.wire import Message
from tilewright.tune.lab import Candidate
from tilewright.tune.stats import Paired

KIND = "model"  # of the tasks
SMALL_BYTES = 1 << 16  # constants up to here travel whole: a kernel may be made for their values
LEASE_S = 900.0  # a worker may have to build the whole model first


def told_model(
    module: Module, setting: KernelSetting, sizes: Sizes, *, in_place: bool = True
) -> Message:
    """A model as text and numbers."""
    return {
        "graph": format_module(module),
        "constants": {name: _told_array(each) for name, each in module.constants.items()},
        "target": str(setting.target),
        "threads": setting.threads,
        "packing": setting.packing,
        "libraries": list(setting.libraries),
        "in_place": in_place,
        "sizes": {name: each if isinstance(each, int) else [*each] for name, each in sizes.items()},
    }


def _told_array(array: np.ndarray[Any, Any]) -> Message:
    of = from_numpy(array.dtype)
    told: dict[str, Any] = {"dtype": str(of), "shape": list(array.shape)}
    if array.nbytes <= SMALL_BYTES or not of.is_float:
        told["data"] = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return told


def told_candidates(candidates: Mapping[str, Candidate]) -> dict[str, dict[str, str]]:
    """Choices by task."""
    return {task: dict(each.choices) for task, each in candidates.items()}


class FleetLab:
    """What the tuner is handed for a model that other machines run."""

    def __init__(self, fleet: Fleet, model: Message, jobs: Mapping[str, Job]) -> None:
        self._fleet, self._model, self._jobs = fleet, model, jobs
        self._incumbents: dict[str, Candidate] = {}
        self.build_s = 0.0

    def open(self, target: Target) -> Sequence[Mapping[str, Measured]]:
        """What kernels take untuned on one of the machines, by set of sizes."""
        (told,) = self._ask([{"ask": "open"}], strict=True)
        self.build_s = float(told.get("build_s", 0.0))
        if told["target"] != target.key:
            raise UserError(
                "TW6045",
                f"a worker is another machine than the target says: {told['target']}",
                help="name the target of the workers in full, as `tilewright targets` tells there",
            )
        if sorted(told["kernels"]) != sorted(self._jobs):
            raise UserError(
                "TW6046",
                "a worker makes other kernels of the model",
                help="install the same version of Tilewright there",
            )
        return [
            {name: Measured(*numbers) for name, numbers in each.items()}
            for each in told["measured"]
        ]

    def _ask(self, asked: Sequence[Message], *, strict: bool = False) -> list[Mapping[str, Any]]:
        """Answers of as many workers as there are questions; empty ones of those that failed."""
        common = {"kind": KIND, "model": self._model, "lease_s": LEASE_S}
        incumbents = told_candidates(self._incumbents)
        messages = [{**common, "incumbents": incumbents, **each} for each in asked]
        results = self._fleet.submit(messages).results()
        for result in results:
            if result.error and strict:
                raise UserError(
                    "TW6047",
                    f"no worker of the fleet can run the model: {result.error}",
                    help="it must run there: `tilewright run` with the same target tells more",
                )
        return [result.value for result in results]

    def _shares(self, tasks: Sequence[Any]) -> list[Sequence[Any]]:
        """As many parts as there are workers."""
        alive = sum(worker.is_alive for worker in self._fleet.workers) or 1
        return [part for at in range(alive) if (part := tasks[at::alive])]

    # ------------------------------------------------------------------ as the tuner sees it

    def check(
        self, candidates: Sequence[Candidate], seconds: float
    ) -> Iterator[tuple[Candidate, str]]:
        shares = self._shares(candidates)
        asked = [
            {
                "ask": "check",
                "candidates": [[each.task, dict(each.choices)] for each in share],
                "seconds": seconds,
            }
            for share in shares
        ]
        for share, told in zip(shares, self._ask(asked), strict=True):
            for at, error in told.get("errors", {}).items():
                yield share[int(at)], error

    def race(self, wave: Mapping[str, Candidate], pairs: int) -> Mapping[str, Paired]:
        asked = [
            {"ask": "race", "wave": told_candidates(dict(share)), "pairs": pairs}
            for share in self._shares(list(wave.items()))
        ]
        return {
            task: pair for told in self._ask(asked) for task, pair in paired(told.get("times", {}))
        }

    def adopt(self, candidate: Candidate) -> None:
        self._incumbents.pop(candidate.task, None)
        if candidate.choices:
            self._incumbents[candidate.task] = candidate

    def compare(self, pairs: int) -> tuple[Sequence[Paired], Mapping[str, Paired]]:
        (told,) = self._ask([{"ask": "compare", "pairs": pairs}], strict=True)
        return [Paired(tuple(a), tuple(b)) for a, b in told["wholes"]], dict(paired(told["times"]))

    def whole(
        self, chosen: Mapping[str, Candidate], pairs: int, seconds: float
    ) -> Sequence[Paired]:
        said = told_candidates(chosen)
        asked = {"ask": "whole", "chosen": said, "pairs": pairs, "seconds": seconds}
        (told,) = self._ask([asked])
        return [Paired(tuple(first), tuple(second)) for first, second in told.get("wholes", ())]


def paired(times: Mapping[str, Any]) -> Iterator[tuple[str, Paired]]:
    """Times by task, from numbers."""
    for task, (first, second) in times.items():
        yield task, Paired(tuple(first), tuple(second))
