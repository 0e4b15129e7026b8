"""One random model: ONNX Runtime's answers, ours, and whether they agree."""

from __future__ import annotations

import random
import sys
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import onnx
import tolerances
from drawn_plans import random_plans
from onnx_differences import REASONS, REFUSALS
from onnx_random import KINDS, Case
from onnx_rounding import moved_by_rounding
from workers import Lost, in_child

from tilewright.base.errors import CompilerBug, TilewrightError
from tilewright.base.passes import PassContext, run_passes
from tilewright.base.target import Target
from tilewright.driver.optimize import optimize
from tilewright.driver.options import Options
from tilewright.frontends.onnx import import_model
from tilewright.graph import interpret
from tilewright.graph.passes import CANONICAL
from tilewright.graph.verify import verify

INTERPRETED, NATIVE = "interpreted", "native"
PLANNED = "planned"  # native, by plans drawn at random
DEVICE = "device"  # kernels for GPUs, interpreted: races, too
OPTIMIZED = "optimized"  # all graph passes of a target drawn at random, then interpreted
TARGETS = (
    "cpu",
    "cpu -mcpu=emeraldrapids",
    "cpu -mcpu=cascadelake",
    "cpu -mcpu=haswell",
    "aarch64-linux-gnu -mcpu=neoverse-n1",
    "cuda -arch=sm_90a",
    "cuda -arch=sm_80",
)
AGREED, EXPLAINED, REFUSED, FAILED = "agreed", "explained", "refused by the peer", "failed"


@dataclass
class Outcome:
    """How a model fared; plain data."""

    seed: int
    status: str
    why: str = ""
    operators: Counter[str] = field(default_factory=Counter)
    dtypes: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    fallbacks: tuple[str, ...] = ()  # operators that did not run as native code


def check_seed(job: tuple[int, str, str]) -> Outcome:
    """Make the model of a seed, of a kind, and check it."""
    seed, how, kind = job
    try:
        case = KINDS[kind](seed)
        onnx.checker.check_model(case.model, full_check=True)
    except Exception as error:
        return Outcome(seed, FAILED, f"the generator: {type(error).__name__}: {error}")
    return check_case(case, how)


def check_case(case: Case, how: str) -> Outcome:
    outcome = Outcome(case.seed, AGREED)
    count_model(case.model, outcome)
    expected, refusal = peer_answers(case)
    if refusal:
        expected, plain_refusal = peer_answers(case, plain=True)
        if not plain_refusal:
            refusal, outcome.status = "", EXPLAINED
            outcome.why = "the peer fails by its own optimizations"
    try:
        given, outcome.fallbacks = our_answers(case, how)
        baseline = our_answers(case, INTERPRETED)[0] if how != INTERPRETED and refusal else None
    except TilewrightError as error:
        both = not isinstance(error, CompilerBug) and peer_answers(case, plain=True)[1]
        if both:
            outcome.status, outcome.why = REFUSED, f"and by us: {error.code}"
            return outcome
        kind = "bug" if isinstance(error, CompilerBug) else "error"
        return failed(outcome, f"{kind}: {type(error).__name__}: {error.code}: {error.message}")
    except Exception as error:
        return failed(outcome, f"untyped error: {type(error).__name__}: {error}")
    outcome.runs = len(given)
    if refusal:
        if not is_known(case, refusal):
            return failed(outcome, f"the peer refuses: {refusal}")
        outcome.status, outcome.why = REFUSED, refusal.split("\n")[0][:120]
        if baseline is None:
            return outcome
        expected = baseline
    reasons = {
        reason
        for choice, outputs in enumerate(given)
        for reason in differences(case, choice, outputs, expected[choice])
    }
    unexplained = sorted(reason for reason in reasons if reason.startswith("differs"))
    if unexplained:
        return failed(outcome, "; ".join(unexplained)[:600])
    if reasons and outcome.status == AGREED:
        outcome.status, outcome.why = EXPLAINED, ", ".join(sorted(reasons))
    return outcome


def is_known(case: Case, refusal: str) -> bool:
    return any(known.words in refusal and known.applies(case) for known in REFUSALS)


def failed(outcome: Outcome, why: str) -> Outcome:
    outcome.status, outcome.why = FAILED, " ".join(why.split())
    return outcome


def count_model(model: onnx.ModelProto, outcome: Outcome) -> None:
    graphs = [model.graph]
    while graphs:
        graph = graphs.pop()
        for info in graph.input:
            outcome.dtypes[onnx.TensorProto.DataType.Name(info.type.tensor_type.elem_type)] += 1
        for node in graph.node:
            outcome.operators[node.op_type] += 1
            graphs += [a.g for a in node.attribute if a.HasField("g")]


# ------------------------------------------------------------------------------------ answers


def peer_answers(case: Case, *, plain: bool = False) -> tuple[list[list[Any]], str]:
    """ONNX Runtime's outputs for every choice, or why there are none.

    By a process of its own: a model that ends it says nothing about ours.
    """
    found = in_child(_peer_answers, case, plain)
    return ([], found.why) if isinstance(found, Lost) else found


def _peer_answers(case: Case, plain: bool) -> tuple[list[list[Any]], str]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if plain:
        levels = onnxruntime.GraphOptimizationLevel
        options.graph_optimization_level = levels.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(
            case.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return [peer_run(session, case, feeds) for feeds in case.feeds], ""
    except Exception as error:
        return [], f"{type(error).__name__}: {error}"


def peer_run(session: Any, case: Case, feeds: dict[str, Any]) -> list[Any]:
    """One run. Types that NumPy does not know go through as ONNX Runtime's own values."""
    import onnxruntime

    if all(array.dtype.isbuiltin == 1 for array in feeds.values()):
        return list(session.run(None, feeds))
    values = {
        name: onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
            np.require(array, requirements="C"), onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        )
        for name, array in feeds.items()
    }
    names = [info.name for info in case.model.graph.output]
    return [value.numpy() for value in session.run_with_ort_values(names, values)]


def our_answers(case: Case, how: str) -> tuple[list[list[Any]], tuple[str, ...]]:
    """Our outputs for every choice of the named dimensions, and what did not run natively."""
    names = [info.name for info in case.model.graph.input]
    if how in (NATIVE, PLANNED):
        import tilewright

        with random_plans(case.seed) if how == PLANNED else nullcontext():
            threads = 1 + case.seed % 2 if how == PLANNED else 1
            compiled = tilewright.compile(case.model, target="cpu", threads=threads)
        outputs = [
            [np.asarray(value) for value in compiled(*(feeds[name] for name in names))]
            for feeds in case.feeds
        ]
        return outputs, tuple(compiled.fallbacks)
    if how == DEVICE:
        return device_answers(case, names), ()
    module = import_model(case.model)
    if how == OPTIMIZED:
        target = Target.parse(random.Random(case.seed).choice(TARGETS))
        module = optimize(module, target, Options(threads=1))
        return [list(interpret(module, *(feeds[n] for n in names))) for feeds in case.feeds], ()
    context = PassContext(observers=(lambda name, before, after: verify(after),))
    module = run_passes(module, CANONICAL, context)
    outputs = [
        list(interpret(module, *(feeds[name] for name in names), check=True))
        for feeds in case.feeds
    ]
    return outputs, ()


def device_answers(case: Case, names: list[str]) -> list[list[Any]]:
    """What kernels for a GPU give, run by the interpreter on memory of the host."""
    import tilewright

    sys.path.insert(0, str(Path(__file__).parents[1] / "targets"))
    from host_gpu import fetched, on_host

    target = random.Random(case.seed).choice([each for each in TARGETS if "cuda" in each])
    compiled = on_host(tilewright.compile(case.model, target=target))
    return [fetched(compiled, compiled(*(feeds[name] for name in names))) for feeds in case.feeds]


# ------------------------------------------------------------------------------------ comparing


def differences(case: Case, choice: int, given: list[Any], expected: list[Any]) -> list[str]:
    """Why outputs differ, one reason each; "differs ..." where there is none."""
    found = []
    plain: list[list[Any]] | None = None
    for at, (got, want) in enumerate(zip(given, expected, strict=True)):
        why = difference(got, want, case.terms)
        if not why:
            continue
        name = case.model.graph.output[at].name
        known = next((r.name for r in REASONS if r.applies(case, name, got, want)), None)
        if known is None:
            if plain is None:
                plain, _ = peer_answers(case, plain=True)
            if plain and not difference(got, plain[choice][at], case.terms):
                known = "the peer's own optimizations change its answer"
        if known is None and is_as_close_to_the_truth(case, choice, at, got, want):
            known = "both are as far from the answer in float64"
        if known is None and is_rounding(case, choice, at, got, want):
            known = "the answer turns on rounding"
        found.append(known or f"differs: {name} at sizes {choice}: {why}")
    return found


def difference(got: Any, want: Any, terms: int) -> str:
    """In which way an output is not the one expected; empty if it is."""
    got, want = np.asarray(got), np.asarray(want)
    if got.shape != want.shape:
        return f"shape {list(got.shape)}, expected {list(want.shape)}"
    if got.dtype != want.dtype:
        return f"{got.dtype}, expected {want.dtype}"
    wrong = wrong_elements(got, want, terms)
    if not np.any(wrong):
        return ""
    return f"{np.sum(wrong)} of {wrong.size}: {got[wrong][:4]}, expected {want[wrong][:4]}"


def wrong_elements(got: Any, want: Any, terms: int) -> Any:
    """Which elements are not those expected, within the table's tolerance."""
    if want.dtype.kind not in "fV" and want.dtype.name not in tolerances.ULPS:
        return got != want
    part = 8 * tolerances.relative(want.dtype.name, terms)
    a, b = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(all="ignore"):
        largest = np.max(np.abs(b[np.isfinite(b)]), initial=0.0)
        close = np.abs(a - b) <= part * np.maximum(np.abs(b), largest) + 1e-37
    return ~(close | (a == b) | (np.isnan(a) & np.isnan(b)))


def is_rounding(case: Case, choice: int, at: int, got: Any, want: Any) -> bool:
    """Whether the elements that differ are ones that rounding alone moves as far."""
    got, want = np.asarray(got), np.asarray(want)
    if want.dtype.name not in tolerances.ULPS or got.shape != want.shape:
        return False
    try:
        model, feeds = widened(case, choice)
        part = tolerances.relative(want.dtype.name)
        moved = moved_by_rounding(import_model(model), feeds, at, got, want, part)
    except Exception:
        return False
    return bool(np.all(moved | ~wrong_elements(got, want, case.terms)))


def is_as_close_to_the_truth(case: Case, choice: int, at: int, got: Any, want: Any) -> bool:
    """Whether our float is no farther from the answer in float64 than a few times the peer's.

    Where the peer's way to a finite answer overflows, ours has to be close by itself.
    """
    if np.asarray(want).dtype.name not in tolerances.ULPS or np.shape(got) != np.shape(want):
        return False
    try:
        model, feeds = widened(case, choice)
        truth = np.asarray(interpret(import_model(model), *feeds)[at], np.float64)
    except Exception:
        return False
    with np.errstate(all="ignore"):
        ours = np.abs(np.asarray(got, np.float64) - truth)
        theirs = np.abs(np.asarray(want, np.float64) - truth)
        same = (np.asarray(got) == want) | ~np.isfinite(truth)
        least = 64 * tolerances.relative(want.dtype.name) * np.abs(truth)
        lost = np.isfinite(truth) & ~np.isfinite(want)
        close = (ours <= least) | (np.asarray(got) == truth.astype(want.dtype))
        within = ours <= 4 * np.max(theirs, where=~same & ~lost, initial=0) + least
        return bool(np.all(same | np.where(lost, close, within)))


def widened(case: Case, choice: int) -> tuple[onnx.ModelProto, list[Any]]:
    """The model with all floats in float64, and its inputs."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    graphs = [model.graph]
    while graphs:
        graph = graphs.pop()
        for info in [*graph.input, *graph.output]:
            info.type.tensor_type.elem_type = _wide(info.type.tensor_type.elem_type)
        for tensor in graph.initializer:
            _widen(tensor)
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    _widen(attribute.t)
                elif attribute.HasField("g"):
                    graphs.append(attribute.g)
                elif attribute.name in ("to", "dtype"):
                    attribute.i = _wide(attribute.i)
    feeds = []
    for info in case.model.graph.input:
        array = case.feeds[choice][info.name]
        feeds.append(array.astype(np.float64) if array.dtype.name in tolerances.ULPS else array)
    return model, feeds


def _wide(code: int) -> int:
    types = onnx.TensorProto
    floats = (types.FLOAT, types.FLOAT16, types.BFLOAT16)
    return int(types.DOUBLE if code in floats else code)


def _widen(tensor: onnx.TensorProto) -> None:
    if _wide(tensor.data_type) == tensor.data_type:
        return
    array = onnx.numpy_helper.to_array(tensor).astype(np.float64)
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
