"""ONNX's own backend tests: where they come from, how one is run, what counts as right.

Every test that ships inside the `onnx` package: a model, inputs, expected outputs, tolerances.
A model is compiled, or imported and interpreted; in the latter case every value on the way is held
against its inferred type.
"""

from __future__ import annotations

import functools
import pickle
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

import tilewright
from tilewright.base.passes import PassContext, run_passes
from tilewright.codegen.cache import write_atomically
from tilewright.frontends.onnx import import_model
from tilewright.graph import interpret
from tilewright.graph.passes import CANONICAL, FUSED, LAYOUT, OPTIMIZED
from tilewright.graph.verify import verify

KEPT = Path(__file__).parents[2] / "build" / "conformance"
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
LIGHT = "real"  # whole architectures with made-up weights; they take minutes to interpret
PASSED, FAILED, UNSUPPORTED = "passed", "failed", "unsupported"

# What these draw is theirs to choose: only shapes and element types are compared.
RANDOM = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike"}
RANDOM |= {"RandomUniform", "RandomUniformLike"}
RANDOM_NAME = re.compile(r"training_dropout(?!.*zero_ratio)")

Run = Callable[[onnx.ModelProto, Sequence[Any]], Sequence[Any]]


@dataclass(frozen=True)
class Outcome:
    """How a test ended: one of PASSED, FAILED, UNSUPPORTED, and why not passed."""

    status: str
    message: str = ""
    fallbacks: tuple[str, ...] = ()  # operators that did not run as native code


class Outputs(list[Any]):
    """The outputs of native code, and what was not native."""

    fallbacks: tuple[str, ...] = ()


@functools.cache
def cases(kind: str) -> dict[str, Any]:
    """The tests of a kind, by name. ONNX takes ten seconds to make them: they are kept."""
    path = KEPT / f"onnx-{onnx.__version__}-{kind}.pickle"
    if not path.exists():
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            tests = {test.name: test for test in sorted(load_model_tests(kind=kind), key=_name)}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, pickle.dumps(tests))
    kept: dict[str, Any] = pickle.loads(path.read_bytes())
    return kept


def _name(test: Any) -> str:
    return str(test.name)


def interpreted(model: onnx.ModelProto, inputs: Sequence[Any]) -> Sequence[Any]:
    """The outputs by way of our importer and the references of our operators."""
    return interpret(import_model(model), *inputs, check=True)


def canonical(model: onnx.ModelProto, inputs: Sequence[Any]) -> Sequence[Any]:
    """The same after the passes: canonical, verified after each; then optimized and fused."""
    ctx = PassContext(observers=(lambda name, before, after: verify(after),))
    module = run_passes(import_model(model), CANONICAL, ctx)
    module = run_passes(module, (*OPTIMIZED, *LAYOUT, *FUSED))
    verify(module)
    return interpret(module, *inputs, check=True)


def native(model: onnx.ModelProto, inputs: Sequence[Any]) -> Outputs:
    """The outputs of the compiled model."""
    compiled = tilewright.compile(model, target="cpu", threads=1)
    outputs = Outputs(compiled(*inputs))
    outputs.fallbacks = tuple(compiled.fallbacks)
    return outputs


WAYS: dict[str, Run] = {"native": native, "interpreted": interpreted, "canonical": canonical}


def run_named(job: tuple[str, str, str]) -> Outcome:
    """Run the test of a kind and name, one of WAYS."""
    kind, name, way = job
    return run_test(cases(kind)[name], WAYS[way])


def run_test(test: Any, run: Run = interpreted) -> Outcome:
    """Run one test on all its data."""
    fallbacks: tuple[str, ...] = ()
    try:
        model, data = _materialise(test)
        values = not _draws(model.graph) and not RANDOM_NAME.search(test.name)
        for inputs, expected in data:
            outputs = run(model, inputs)
            fallbacks = outputs.fallbacks if isinstance(outputs, Outputs) else ()
            with np.errstate(all="ignore"):
                _compare(expected, outputs, test.rtol, test.atol, values=values)
    except NotImplementedError as error:
        return Outcome(UNSUPPORTED, str(error))
    except Exception as error:
        return Outcome(FAILED, f"{type(error).__name__}: {error}")
    return Outcome(PASSED, "", fallbacks)


def _materialise(test: Any) -> tuple[onnx.ModelProto, list[tuple[list[Any], list[Any]]]]:
    """The model and its data sets, each inputs and expected outputs."""
    if test.model is not None:
        sets = [([_value(v) for v in i], [_value(v) for v in o]) for i, o in test.data_sets]
        return test.model, sets
    if test.url is not None and test.model_dir is None:
        return _light(Path(onnx.__file__).parent.parent / test.url)
    folder = Path(test.model_dir)
    model = onnx.load(folder / "model.onnx")
    sets = [
        (
            list(_read_all(data, "input", model.graph.input)),
            list(_read_all(data, "output", model.graph.output)),
        )
        for data in sorted(folder.glob("test_data_set*"))
    ]
    return model, sets


def _light(path: Path) -> tuple[onnx.ModelProto, list[tuple[list[Any], list[Any]]]]:
    """An architecture of the model zoo; its inputs rise evenly from zero to one."""
    model = onnx.load(path)
    given = {tensor.name for tensor in model.graph.initializer}
    inputs: list[Any] = []
    for info in model.graph.input:
        if info.name not in given:
            shape = [dim.dim_value or 1 for dim in info.type.tensor_type.shape.dim]
            count = int(np.prod(shape))
            inputs.append((np.arange(count).reshape(shape) / count).astype(np.float32))
    expected = [
        numpy_helper.to_array(
            onnx.TensorProto.FromString(path.with_name(f"{path.stem}_output_{at}.pb").read_bytes())
        )
        for at in range(len(model.graph.output))
    ]
    return model, [(inputs, expected)]


def _value(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if value is None or isinstance(value, (list, tuple, np.ndarray)):
        return value
    return np.asarray(value)


def _read_all(folder: Path, side: str, infos: Sequence[onnx.ValueInfoProto]) -> Iterator[Any]:
    for at in range(len(list(folder.glob(f"{side}_*.pb")))):
        data = (folder / f"{side}_{at}.pb").read_bytes()
        of = infos[at].type
        if of.HasField("sequence_type"):
            yield numpy_helper.to_list(onnx.SequenceProto.FromString(data))
        elif of.HasField("optional_type"):
            yield numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
        else:
            yield numpy_helper.to_array(onnx.TensorProto.FromString(data))


def _draws(graph: onnx.GraphProto) -> bool:
    """Whether any node draws random numbers, bodies included."""
    for node in graph.node:
        if node.op_type in RANDOM:
            return True
        for attribute in node.attribute:
            bodies = [attribute.g] if attribute.HasField("g") else attribute.graphs
            if any(_draws(body) for body in bodies):
                return True
    return False


def _compare(
    expected: Sequence[Any], given: Sequence[Any], rtol: float, atol: float, *, values: bool
) -> None:
    assert len(expected) == len(given), f"{len(given)} outputs, expected {len(expected)}"
    for want, got in zip(expected, given, strict=True):
        if want is None:
            assert got is None, "expected an absent optional"
        elif isinstance(want, (list, tuple)):
            assert isinstance(got, (list, tuple)), "expected a sequence"
            _compare(want, got, rtol, atol, values=values)
        else:
            _compare_arrays(np.asarray(want), np.asarray(got), rtol, atol, values=values)


def _compare_arrays(want: Any, got: Any, rtol: float, atol: float, *, values: bool) -> None:
    assert got.shape == want.shape, f"shape {got.shape}, expected {want.shape}"
    if want.dtype.kind in "OSU":
        np.testing.assert_array_equal(got.astype(object), want.astype(object))
        return
    assert got.dtype == want.dtype, f"element type {got.dtype}, expected {want.dtype}"
    if not values:
        return
    if want.dtype.name == "bfloat16":
        rtol = max(rtol, 2**-6)
    if want.dtype.type.__module__ != "numpy":  # types NumPy cannot compare by itself
        want, got = want.astype(np.float32), got.astype(np.float32)
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)
