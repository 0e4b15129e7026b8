"""The worker's end of `fleet_lab.py`: builds, checks and times kernels of a model.

A worker keeps the model of the last task, with its incumbents. A task about another model, or for a
restarted worker, begins with building it. Weights that were not sent are random numbers.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from tilewright.base.dtype import dtype
from tilewright.base.target import Target
from tilewright.driver.kernels import BLAS, KernelSetting
from tilewright.driver.libraries import allowed_libraries
from tilewright.driver.sizes import ranges_of
from tilewright.driver.tuning.lab import ModelLab
from tilewright.driver.tuning.running import Measured
from tilewright.driver.tuning.sized_kernels import Kernels
from tilewright.driver.tuning.tuning import Settings, check_tunable, local_laboratory
from tilewright.graph.parser import parse
from tilewright.tune.fleet.cluster import Actor
from tilewright.tune.fleet.serve import Handler
from tilewright.tune.fleet.wire import Message
from tilewright.tune.fleet.worker import HANDLERS as OF_FUNCTIONS
from tilewright.tune.lab import Candidate
from tilewright.tune.stats import Paired

Array = np.ndarray[Any, Any]
BUILD_S = 300.0  # timeout for incumbents and candidates that another worker has checked
WEIGHT_SCALE = 0.05  # standard deviation of random weights


@dataclass
class _Opened:
    """A model that is ready to run."""

    message_text: str
    kernels: Kernels
    lab: ModelLab
    measured: Sequence[Mapping[str, Measured]]
    target: Target
    incumbents: dict[str, Candidate]


class ModelWorker:
    """Answers tasks about models."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._opened: _Opened | None = None

    def __call__(self, message: Message) -> Mapping[str, Any]:
        opened = self._open(message["model"])
        lab = opened.lab
        self._adopt(opened, _candidates(message.get("incumbents", {})))
        match message["ask"]:
            case "open":
                measured = [
                    {name: list(astuple(each)) for name, each in one.items()}
                    for one in opened.measured
                ]
                return {
                    "target": opened.target.key,
                    "kernels": list(opened.kernels.jobs),
                    "measured": measured,
                    "build_s": lab.build_s,
                }
            case "check":
                candidates = [
                    Candidate.of(task, choices) for task, choices in message["candidates"]
                ]
                places = {each: str(at) for at, each in enumerate(candidates)}
                found = lab.check(candidates, float(message["seconds"]))
                return {"errors": {places[each]: error for each, error in found}}
            case "race":
                wave = _candidates(message["wave"])
                good = {each for each, error in lab.check([*wave.values()], BUILD_S) if not error}
                sound = {task: each for task, each in wave.items() if each in good}
                times = lab.race(sound, int(message["pairs"])) if sound else {}
                return {"times": {task: _pair_message(pair) for task, pair in times.items()}}
            case "compare":
                wholes, by_task = lab.compare(int(message["pairs"]))
                return {
                    "wholes": [_pair_message(each) for each in wholes],
                    "times": {task: _pair_message(pair) for task, pair in by_task.items()},
                }
            case "whole":
                chosen = _candidates(message["chosen"])
                pairs, seconds = int(message["pairs"]), float(message["seconds"])
                return {"wholes": [_pair_message(e) for e in lab.whole(chosen, pairs, seconds)]}
            case other:
                return {"error": f"nobody here knows what {other!r} asks"}

    def _open(self, model: Message) -> _Opened:
        message_text = json.dumps(model, sort_keys=True)
        if self._opened is not None and self._opened.message_text == message_text:
            return self._opened
        self.close()
        constants = {name: _array(told) for name, told in model["constants"].items()}
        module = parse(model["graph"], constants)
        target = Target.parse(model["target"])
        libraries = allowed_libraries(target, allow_blas=BLAS in model["libraries"])
        setting = KernelSetting(
            target,
            int(model["threads"]),
            packing=bool(model["packing"]),
            ranges=ranges_of(module),
            libraries=libraries,
        )
        check_tunable(module, setting)
        settings = Settings(sizes=model["sizes"], in_place=bool(model["in_place"]))
        kernels = Kernels(module, setting, settings.sizes)
        lab, measured = self._stack.enter_context(
            local_laboratory(module, setting, settings, kernels)
        )
        self._opened = _Opened(message_text, kernels, lab, measured, setting.target, {})
        return self._opened

    def _adopt(self, opened: _Opened, wanted: Mapping[str, Candidate]) -> None:
        """Set the tuner's incumbents; one that fails the check here leaves the default."""
        new = [each for task, each in wanted.items() if opened.incumbents.get(task) != each]
        for candidate, error in opened.lab.check(new, BUILD_S) if new else ():
            if not error:
                opened.lab.adopt(candidate)
        for task in [task for task in opened.incumbents if task not in wanted]:
            opened.lab.adopt(Candidate(task, ()))
        opened.incumbents = dict(wanted)

    def close(self) -> None:
        self._stack.close()
        self._opened = None


def _candidates(told: Mapping[str, Mapping[str, str]]) -> dict[str, Candidate]:
    return {task: Candidate.of(task, choices) for task, choices in told.items()}


def _pair_message(pair: Paired) -> list[list[float]]:
    return [list(pair.first), list(pair.second)]


def _array(message: Message) -> Array:
    """A constant from a message, or random numbers of its shape if it was not sent."""
    of, shape = dtype(str(message["dtype"])).numpy, tuple(int(each) for each in message["shape"])
    if "data" in message:
        return np.frombuffer(base64.b64decode(message["data"]), of).reshape(shape)
    random = np.random.default_rng(16)
    return (WEIGHT_SCALE * random.standard_normal(shape)).astype(of)


HANDLERS: Mapping[str, Handler] = {**OF_FUNCTIONS, "model": ModelWorker()}


class ModelActor(Actor):
    """A worker for models on a Ray cluster."""

    def handlers(self) -> Mapping[str, Handler]:
        return HANDLERS
