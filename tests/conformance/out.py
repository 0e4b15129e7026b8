"""Models written back as ONNX: the checker accepts them, ONNX Runtime gives the same answer.

A test is imported, written by `to_onnx`, checked, and run by ONNX Runtime. Where ONNX Runtime
cannot run the test's own model either, it is enough that the checker accepts ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from suite import FAILED, PASSED, RANDOM_NAME, UNSUPPORTED, Outcome, _compare, _draws, cases
from suite import _materialise as materialised

from tilewright.base.passes import run_passes
from tilewright.frontends.onnx import import_model
from tilewright.frontends.onnx.export import to_onnx
from tilewright.graph.ir import Module
from tilewright.graph.passes import CANONICAL, FUSED, LAYOUT, OPTIMIZED

CHECKED = "checked"  # valid; ONNX Runtime runs neither the model nor what we wrote
STAGES = {
    "imported": (),
    "canonical": CANONICAL,
    "fused": (*CANONICAL, *OPTIMIZED, *LAYOUT, *FUSED),
}


def staged(model: onnx.ModelProto, stage: str) -> Module:
    return run_passes(import_model(model), STAGES[stage])


def run_onnxruntime(model: onnx.ModelProto, inputs: Sequence[Any]) -> Sequence[Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    names = [info.name for info in session.get_inputs()]
    return session.run(None, dict(zip(names, inputs, strict=True)))


def run_named(job: tuple[str, str, str]) -> Outcome:
    """Write the test of a kind and name at a stage, and run it."""
    kind, name, stage = job
    test = cases(kind)[name]
    try:
        model, data = materialised(test)
        written = to_onnx(staged(model, stage))
        onnx.checker.check_model(written)
    except NotImplementedError as error:
        return Outcome(UNSUPPORTED, str(error))
    except Exception as error:
        return Outcome(FAILED, f"{type(error).__name__}: {error}")
    values = not _draws(model.graph) and not RANDOM_NAME.search(name)
    for inputs, expected in data:
        try:
            theirs = run_onnxruntime(model, inputs)
            with np.errstate(all="ignore"):
                _compare(expected, theirs, test.rtol, test.atol, values=values)
        except Exception:
            theirs = None
        try:
            outputs = run_onnxruntime(written, inputs)
            with np.errstate(all="ignore"):
                # Composed of other operators, sums round otherwise than in one kernel.
                _compare(expected, outputs, 3 * test.rtol, max(3 * test.atol, 1e-6), values=values)
        except Exception as error:
            if theirs is None:
                return Outcome(CHECKED, str(error)[:200])
            return Outcome(FAILED, f"{type(error).__name__}: {error}")
    return Outcome(PASSED)
