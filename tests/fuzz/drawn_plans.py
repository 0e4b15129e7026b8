"""Kernels scheduled by rules and plans drawn at random from all that could take their blocks.

    with random_plans(seed): tilewright.compile(model)

A plan that no tuner was ever given and no cost model prefers must keep the answer too. They enter
as recorded plans do.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from unittest import mock

import numpy as np

from tilewright.base.errors import UserError
from tilewright.driver import build
from tilewright.driver.kernel_code import function_of
from tilewright.driver.kernels import Job
from tilewright.driver.lowering import Choices, Recorded
from tilewright.rules import Choice, alternatives, schedule
from tilewright.rules.rule import Offer
from tilewright.rules.space import plan_text
from tilewright.tensor.ir import Function

LEFT = 0.2  # of the blocks: as by default
ATTEMPTS = 3  # a space is that of a block as the rules before left it: not every plan still fits


@contextmanager
def random_plans(seed: int) -> Iterator[None]:
    def drawn(jobs: Mapping[str, Job], _: object) -> Choices:
        return {key: Recorded(choices_of(job, random.Random(seed))) for key, job in jobs.items()}

    with mock.patch.object(build, "recorded_choices", drawn):
        yield


def choices_of(job: Job, rng: random.Random) -> dict[str, Choice]:
    """Rules and plans for some blocks of a kernel, all of which apply together."""
    fn, setting = function_of(job), job.setting
    weights = [fn.params[at].name for at in sorted(job.constants)]
    given: dict[str, Choice] = {}
    found = alternatives(fn, setting.target, threads=setting.threads, constants=weights)
    for offers in found:
        offer = rng.choice([each for each in offers if each.is_open] or [None])
        if offer is None or rng.random() < LEFT:
            continue
        for choice in drawn_plans(offer, rng):
            asked = {**given, offer.block: choice}
            if applies(fn, job, weights, asked):
                given = asked
                break
    return given


def drawn_plans(offer: Offer, rng: random.Random) -> Iterator[Choice]:
    space = offer.space
    drawn = space.sample(ATTEMPTS, np.random.default_rng(rng.getrandbits(32)))
    for at in range(len(next(iter(drawn.values())))):
        yield Choice(offer.rule.name, plan_text(space.plan_at(drawn, at)))


def applies(fn: Function, job: Job, weights: list[str], choices: dict[str, Choice]) -> bool:
    setting = job.setting
    try:
        schedule(fn, setting.target, threads=setting.threads, constants=weights, choices=choices)
    except UserError:
        return False
    return True
