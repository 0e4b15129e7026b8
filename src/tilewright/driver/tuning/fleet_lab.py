"""The tuner's lab on other machines: workers of a fleet build, check and time a model's kernels.

    lab = FleetLab(fleet, model_message(module, setting, sizes), jobs)

Messages contain text and numbers: the graph, small constants, choices, times. Each task describes
the model completely, so that any worker can take it, and a worker that restarted can go on
(`model_worker.py`). Large weights are not sent, since their values do not affect speed.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
# larger float constants are not sent; smaller ones may affect the kernel's code
SMALL_BYTES = 1 << 16
LEASE_S = 900.0  # a worker may have to build the whole model first


def model_message(
    module: Module, setting: KernelSetting, sizes: Sizes, *, in_place: bool = True
) -> Message:
    """A model as JSON-serializable data."""
    return {
        "graph": format_module(module),
        "constants": {name: _array_message(each) for name, each in module.constants.items()},
        "target": str(setting.target),
        "threads": setting.threads,
        "packing": setting.packing,
        "libraries": list(setting.libraries),
        "in_place": in_place,
        "sizes": {name: each if isinstance(each, int) else [*each] for name, each in sizes.items()},
    }


def _array_message(array: np.ndarray[Any, Any]) -> Message:
    of = from_numpy(array.dtype)
    message: dict[str, Any] = {"dtype": str(of), "shape": list(array.shape)}
    if array.nbytes <= SMALL_BYTES or not of.is_float:
        message["data"] = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return message


def candidate_choices(candidates: Mapping[str, Candidate]) -> dict[str, dict[str, str]]:
    """The choices of candidates, by task."""
    return {task: dict(each.choices) for task, each in candidates.items()}


class FleetLab:
    """The lab for a model that runs on other machines."""

    def __init__(self, fleet: Fleet, model: Message, jobs: Mapping[str, Job]) -> None:
        self._fleet, self._model, self._jobs = fleet, model, jobs
        self._incumbents: dict[str, Candidate] = {}
        self.build_s = 0.0

    def open(self, target: Target) -> Sequence[Mapping[str, Measured]]:
        """Times of the untuned kernels on one of the machines, by set of sizes."""
        (answer,) = self._ask([{"ask": "open"}], strict=True)
        self.build_s = float(answer.get("build_s", 0.0))
        if answer["target"] != target.key:
            raise UserError(
                "TW6045",
                f"a worker is another machine than the target says: {answer['target']}",
                help="name the target of the workers in full, as `tilewright targets` tells there",
            )
        if sorted(answer["kernels"]) != sorted(self._jobs):
            raise UserError(
                "TW6046",
                "a worker makes other kernels of the model",
                help="install the same version of Tilewright there",
            )
        return [
            {name: Measured(*numbers) for name, numbers in each.items()}
            for each in answer["measured"]
        ]

    def _ask(
        self, questions: Sequence[Message], *, strict: bool = False
    ) -> list[Mapping[str, Any]]:
        """The answers to some questions, each asked of one worker; empty for workers that
        failed."""
        common = {"kind": KIND, "model": self._model, "lease_s": LEASE_S}
        incumbents = candidate_choices(self._incumbents)
        messages = [{**common, "incumbents": incumbents, **each} for each in questions]
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
        """The tasks divided among the workers that are alive."""
        alive = sum(worker.is_alive for worker in self._fleet.workers) or 1
        return [part for at in range(alive) if (part := tasks[at::alive])]

    # ------------------------------------------------------------------ the tuner's interface

    def check(
        self, candidates: Iterable[Candidate], seconds: float
    ) -> Iterator[tuple[Candidate, str]]:
        shares = self._shares(list(candidates))
        questions = [
            {
                "ask": "check",
                "candidates": [[each.task, dict(each.choices)] for each in share],
                "seconds": seconds,
            }
            for share in shares
        ]
        for share, answer in zip(shares, self._ask(questions), strict=True):
            for at, error in answer.get("errors", {}).items():
                yield share[int(at)], error

    def race(self, wave: Mapping[str, Candidate], pairs: int) -> Mapping[str, Paired]:
        questions = [
            {"ask": "race", "wave": candidate_choices(dict(share)), "pairs": pairs}
            for share in self._shares(list(wave.items()))
        ]
        return {
            task: pair
            for answer in self._ask(questions)
            for task, pair in paired(answer.get("times", {}))
        }

    def adopt(self, candidate: Candidate) -> None:
        self._incumbents.pop(candidate.task, None)
        if candidate.choices:
            self._incumbents[candidate.task] = candidate

    def compare(self, pairs: int) -> tuple[Sequence[Paired], Mapping[str, Paired]]:
        (answer,) = self._ask([{"ask": "compare", "pairs": pairs}], strict=True)
        return [Paired(tuple(a), tuple(b)) for a, b in answer["wholes"]], dict(
            paired(answer["times"])
        )

    def whole(
        self, chosen: Mapping[str, Candidate], pairs: int, seconds: float
    ) -> Sequence[Paired]:
        choices = candidate_choices(chosen)
        question = {"ask": "whole", "chosen": choices, "pairs": pairs, "seconds": seconds}
        (answer,) = self._ask([question])
        return [Paired(tuple(first), tuple(second)) for first, second in answer.get("wholes", ())]


def paired(times: Mapping[str, Any]) -> Iterator[tuple[str, Paired]]:
    """Times by task, from a message."""
    for task, (first, second) in times.items():
        yield task, Paired(tuple(first), tuple(second))
