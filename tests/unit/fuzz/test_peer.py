"""The judge of random models outlives a peer that dies."""

import os
import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "fuzz"))

from onnx_check import AGREED, EXPLAINED, INTERPRETED, REFUSED, check_case
from onnx_random import random_case

onnxruntime = pytest.importorskip("onnxruntime")


def die(*args, **options):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_peer_that_dies_of_any_model_refuses_it(monkeypatch):
    monkeypatch.setattr(onnxruntime, "InferenceSession", die)
    outcome = check_case(random_case(0), INTERPRETED)
    assert (outcome.status, outcome.why) == (REFUSED, "crash (SIGKILL)")


def test_a_peer_that_dies_of_its_optimizations_answers_without(monkeypatch):
    session = onnxruntime.InferenceSession
    none = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL

    def plain(model, options, **others):
        if options.graph_optimization_level != none:
            die()
        return session(model, options, **others)

    assert check_case(random_case(0), INTERPRETED).status == AGREED
    monkeypatch.setattr(onnxruntime, "InferenceSession", plain)
    assert check_case(random_case(0), INTERPRETED).status == EXPLAINED
