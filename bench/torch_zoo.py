"""Models of torchvision, timm and transformers with random weights, and how to run one.

A model is right where its error against itself in f64, at two batch sizes from one compilation, is
at most three times that of PyTorch's own f32. Where rounding decides what a model attends to, that
of one input is luck: what looks wrong is tried on a number of further ones, all of them, and the
greatest errors are compared once. Beside them stands the geometric mean, which decides nothing: it
tells what is always off from what one input decided. What torch.export cannot trace of torchvision
and timm (detectors, whose results are as long as what they find) runs by torch.compile. A program
of torch.export that itself gives something else than the model counts as one that it cannot trace.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib.util
import inspect
import math
import re
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch_shrunk
from torch import nn
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

import tilewright as tw
from tilewright.base.errors import TilewrightError, Unsupported
from tilewright.plugins.torch import tilewright

RIGHT, WRONG, REFUSED, CRASHED, UNTRACED = "right", "wrong", "refused", "crashed", "untraced"
MOST = 3.0  # times the error of eager f32 against eager f64
UNTRACEABLE = "TW1125"  # what our compile says when torch.export fails
NOISE = 0.02  # of parameters that would be zeros
LEAST = 1e-30  # an error to divide by
DRAWS = 5  # of inputs, till eager's own rounding does not decide what it finds
MORE = 6  # inputs of each batch size for what looks wrong
MANY_BYTES = 1 << 30  # of parameters, of which there is no copy in f64
FLOOR = 1e-6  # errors below this share of the greatest element are rounding, whatever eager's are


@dataclass(frozen=True)
class Outcome:
    status: str
    message: str = ""
    ratio: float = 0.0  # of errors, ours over eager's
    seconds: float = 0.0  # to compile


def prepare() -> None:
    """torchvision's library may want CUDA; beside a CPU build of PyTorch its operators are missing.

    Its Python needs one that it has no formula for, so here is one. The library's name is
    `_C_stable.so` since torchvision 0.29.
    """
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None or _kept:
        return
    try:
        for library in _libraries(Path(found.origin).parent):
            torch.ops.load_library(str(library))
    except OSError:
        made = torch.library.Library("torchvision", "DEF")
        made.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        made.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        made.impl("nms", _nms, "CPU")
        _kept.append(made)
        from torchvision import extension

        extension._has_ops = lambda: True  # whoever asks now is told so


def _libraries(folder: Path) -> list[Path]:
    """Of torchvision, with its operators."""
    found = sorted(folder.glob("_C*.so"))
    if not found:
        raise OSError(f"{folder} has no library")
    return found


_kept: list[Any] = []  # a library that is collected takes its declarations along


def _nms(boxes: torch.Tensor, scores: torch.Tensor, most: float) -> torch.Tensor:
    """Boxes by falling score, without those that overlap one before them too much."""
    order = scores.argsort(descending=True, stable=True)
    left, top, right, bottom = boxes[order].unbind(1)
    area = (right - left) * (bottom - top)
    kept = torch.ones(len(order), dtype=torch.bool)
    for at in range(len(order)):
        if kept[at]:
            width = (right.minimum(right[at]) - left.maximum(left[at])).clamp(min=0)
            height = (bottom.minimum(bottom[at]) - top.maximum(top[at])).clamp(min=0)
            shared = width * height
            overlaps = shared / (area + area[at] - shared) > most
            kept[at + 1 :] &= ~overlaps[at + 1 :]
    return order[kept]


# ------------------------------------------------------------------------------------ builders

Built = tuple[nn.Module, Callable[[int], dict[str, Any]]]  # a model, inputs by batch size


def torchvision_names() -> list[str]:
    prepare()
    from torchvision import models

    return sorted({*models.list_models()} - {*models.list_models(module=models.quantization)})


def build_torchvision(name: str, is_small: bool = True) -> Built:
    prepare()
    from torchvision import models

    if name in models.list_models(module=models.detection):
        return _detector(name)
    options = (
        {"weights_backbone": None} if name in models.list_models(module=models.segmentation) else {}
    )
    if name in ("googlenet", "inception_v3"):
        options["init_weights"] = False
    model = _sized(name, options, is_small)
    video = name in models.list_models(module=models.video)
    if name.startswith("raft"):
        return model, lambda n: {"image1": torch.randn(n, 3, 128, 128),
                                 "image2": torch.randn(n, 3, 128, 128)}  # fmt: skip
    first = next(iter(inspect.signature(model.forward).parameters))
    own = VIDEO if video else LARGE
    sides = (SMALL, VIDEO, LARGE) if is_small else (own,)
    return model, _images(model, first, (3, 16) if video else (3,), sides)


def _sized(name: str, options: dict[str, Any], is_small: bool) -> nn.Module:
    """A model of torchvision, for small images where that is for the builder to decide."""
    from torchvision import models

    made = inspect.signature(models.get_model_builder(name)).return_annotation
    if is_small and "image_size" in inspect.signature(made).parameters:
        for side in (SMALL, VIDEO):
            with contextlib.suppress(AssertionError):  # patches do not divide it
                return models.get_model(name, weights=None, image_size=side, **options)
    return models.get_model(name, weights=None, **options)


def _images(
    model: nn.Module, name: str, shape: tuple[int, ...], sides: tuple[int, ...]
) -> Callable[[int], dict[str, Any]]:
    """Images of the first of some sizes that a model takes."""
    model.eval()
    for each in sides:
        try:
            model(**{name: torch.randn(1, *shape, each, each)})
        except (RuntimeError, ValueError, AssertionError):  # its own complaint, of this size
            continue
        return lambda n: {name: torch.randn(n, *shape, each, each)}
    raise ValueError(f"takes no images of {' or '.join(map(str, sides))}")


SIDE = 160  # of the images of detectors
# How many boxes are looked at; of very many, some have scores that differ by less than rounding.
BOXES, FEW = {"topk_candidates", "detections_per_img"}, 20
# Of regions that an R-CNN proposes, RoI align in torchvision's Python keeps some megabytes each.
PROPOSALS = dict.fromkeys(("rpn_pre_nms_top_n_test", "rpn_post_nms_top_n_test"), 100)
SMALL, LARGE, VIDEO = 96, 224, 112  # of those of all others


def _detector(name: str) -> Built:
    """A detector that finds something: with its own beginnings no box has a score worth telling."""
    from torchvision import models

    sizes = {} if name.startswith("ssd") else {"min_size": SIDE, "max_size": SIDE}
    sizes |= PROPOSALS if "rcnn" in name else {}
    model = models.get_model(name, weights=None, weights_backbone=None, **sizes).eval()
    heads = []
    for path, module in model.named_modules():
        if not path.startswith("backbone") and isinstance(module, (nn.Linear, nn.Conv2d)):
            nn.init.kaiming_normal_(module.weight)
            heads.append(module.register_forward_hook(_spread))
        for field in BOXES & vars(module).keys():
            vars(module)[field] = FEW
    without_zeros(model)
    with torch.compiler.set_stance("force_eager"):
        model([torch.rand(3, SIDE, SIDE)])
    for head in heads:
        head.remove()
    return model, lambda n: {"images": [torch.rand(3, SIDE, SIDE) for _ in range(n)]}


def _spread(module: nn.Module, given: Any, made: torch.Tensor) -> torch.Tensor:
    """Weights such that what a layer makes first, and so all that it makes, spreads by about 1."""
    if made.numel() == 0 or vars(module).setdefault("is_spread", False):
        return made
    vars(module)["is_spread"], scale = True, float(made.std())
    for parameter in module.parameters():
        parameter.div_(scale)
    return made / scale


def timm_names() -> list[str]:
    """The smallest model of each of timm's files."""
    prepare()
    import timm

    found: dict[str, tuple[float, str]] = {}
    for name in timm.list_models():
        entry = timm.models.model_entrypoint(name)
        size = _size_in_name(name)
        kept = found.get(entry.__module__)
        if kept is None or size < kept[0]:
            found[entry.__module__] = (size, name)
    return sorted(name for _, name in found.values())


_SIZES = ("femto", "atto", "pico", "nano", "tiny", "xxs", "xs", "small", "_s", "mini", "_t")


def _size_in_name(name: str) -> float:
    """A guess from words and numbers of a name; small words first."""
    for rank, word in enumerate(_SIZES):
        if word in name:
            return float(rank)
    numbers = [int(number) for number in re.findall(r"\d+", name)]
    return 100.0 + (min(numbers) if numbers else 1000)


def build_timm(name: str, is_small: bool = True) -> Built:
    prepare()
    import timm

    model = timm.create_model(name, pretrained=False)
    channels, side, _ = model.default_cfg.get("input_size", (3, LARGE, LARGE))
    _, least, _ = model.default_cfg.get("min_input_size") or (channels, side, side)
    return model, _images(model, "x", (channels,), (SMALL, least, side) if is_small else (side,))


def transformers_names() -> list[str]:
    prepare()  # transformers loads torchvision where it finds it
    from transformers import MODEL_MAPPING

    return sorted({config.model_type for config in MODEL_MAPPING})


def build_transformers(name: str) -> Built:
    prepare()
    return torch_shrunk.build(name)


BUILDERS: dict[str, tuple[Callable[[], list[str]], Callable[[str], Built]]] = {
    "torchvision": (torchvision_names, build_torchvision),
    "timm": (timm_names, build_timm),
    "transformers": (transformers_names, build_transformers),
}


# Modules to load once for all models: each is built in a process of its own.
LOADED = {
    "torchvision": ("torchvision.models",),
    "timm": ("timm",),
    "transformers": ("transformers.models.auto.modeling_auto", "transformers.modeling_utils"),
}


@functools.cache
def names_of(source: str) -> tuple[str, ...]:
    return tuple(BUILDERS[source][0]())


# ------------------------------------------------------------------------------------ running


def run_model(job: tuple[str, str, int]) -> Outcome:
    """Build, compile and check one model."""
    source, name, threads = job
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            model, inputs = BUILDERS[source][1](name)
        except Exception as error:
            return Outcome(UNTRACED, f"cannot be built: {type(error).__name__}: {error}")
        without_zeros(model)
        return check(model.eval(), inputs, source, threads)


def without_zeros(model: nn.Module) -> None:
    """Noise in the place of parameters that begin as zeros: a branch that ends in one would not
    count, and of the experts that such a router scores, each would be as good as any."""
    for parameter in model.parameters():
        if parameter.is_floating_point() and not parameter.any():
            parameter.normal_(std=NOISE)


def check(
    model: nn.Module, inputs: Callable[[int], dict[str, Any]], source: str, threads: int
) -> Outcome:
    """Compiled ahead of time, or, where PyTorch cannot trace a model of images, as it runs."""
    given = inputs(2)
    axes = {name: {0: "batch"} for name in given}
    try:
        compiled = tw.compile(model, kwargs=given, dynamic=axes, threads=threads)
    except Unsupported as error:
        return Outcome(REFUSED, error.message)
    except TilewrightError as error:
        if error.code != UNTRACEABLE:
            return Outcome(CRASHED, str(error)[:400])
        if source != "transformers":
            return _as_it_runs(model, inputs, threads)
        return Outcome(UNTRACED, str(error)[:400])
    except Exception as error:
        return Outcome(CRASHED, f"{type(error).__name__}: {error}")
    if compiled.fallbacks:
        return Outcome(REFUSED, f"not native: {', '.join(compiled.fallbacks)}")
    seconds = sum(compiled.timings["stages"].values())
    outcome = _judged(compiled, model, inputs, seconds)
    if outcome.status == WRONG:
        said = _judged(_exported(model, given), model, inputs, seconds)
        if said.status != RIGHT:
            return Outcome(UNTRACED, f"torch.export's own program is off: {said.message}")
    return outcome


def _exported(model: nn.Module, given: dict[str, Any]) -> Callable[..., Any]:
    """The program that was compiled, as PyTorch itself runs it."""
    batch = torch.export.Dim("batch")
    shapes = {name: {0: batch} for name in given}
    return torch.export.export(
        model, (), given, dynamic_shapes=shapes, strict=False
    ).module()  # fmt: skip


def _as_it_runs(model: nn.Module, inputs: Callable[[int], dict[str, Any]], threads: int) -> Outcome:
    options: Any = {"threads": threads, "fallback": "error"}
    compiled = torch.compile(model, backend=tilewright, options=options)
    begin = time.perf_counter()
    try:
        compiled(**inputs(2))
    except Exception as error:
        refused = isinstance(error.__cause__ or error, Unsupported)
        return Outcome(REFUSED if refused else CRASHED, f"torch.compile: {str(error)[:400]}")
    return _judged(compiled, model, inputs, time.perf_counter() - begin)


def _judged(
    compiled: Callable[..., Any],
    model: nn.Module,
    inputs: Callable[[int], dict[str, Any]],
    seconds: float,
) -> Outcome:
    """Held against eager in f64, and so is eager itself."""
    wide = widened(model)
    if hasattr(wide, "set_experts_implementation"):  # of transformers: the fast ones have no f64
        wide.set_experts_implementation("eager")
    worst: Errors = {}
    ratios: list[float] = []
    for rounds in (1, MORE):  # one decides where it is right, or off by more than rounding
        for count in (2, 3) * rounds:
            given, eager, exact = _decided(model, wide, inputs, count)
            try:
                made = compiled(**given)
            except Exception as error:
                return Outcome(CRASHED, f"batch {count}: {type(error).__name__}: {error}"[:400])
            found = errors(made, eager, exact)
            ratios.append(ratio(found))
            join(worst, found)
        if ratio(worst) <= MOST or ratio(worst) == math.inf:
            break
    status = RIGHT if ratio(worst) <= MOST else WRONG
    message = told(ratio(worst), ratios) + (where(worst) if status == WRONG else "")
    message += " (PyTorch has no f64 for it)" if exact is eager else ""
    return Outcome(status, message, ratio(worst), seconds)


def widened(model: nn.Module) -> nn.Module:
    """A copy of a model in f64. Many parameters stay those of the model, and each is f64 only while
    it is read: copies of all would be twice as large as everything else here."""
    parameters = list(model.parameters())
    if sum(each.nbytes for each in parameters) < MANY_BYTES:
        return copy.deepcopy(model).double()
    wide = copy.deepcopy(model, {id(each): each for each in parameters})
    for module in list(wide.modules()):
        for name, value in module.named_buffers(recurse=False):
            setattr(module, name, _wide(value))
        for name, _ in list(module.named_parameters(recurse=False)):
            parametrize.register_parametrization(module, name, _InF64(), unsafe=True)
    return wide


class _InF64(nn.Module):
    def forward(self, parameter: torch.Tensor) -> torch.Tensor:
        return parameter.double()


def _decided(
    model: nn.Module, wide: nn.Module, inputs: Callable[[int], dict[str, Any]], count: int
) -> tuple[dict[str, Any], Any, Any]:
    """Inputs, and what eager makes of them in f32 and f64: such that what it finds is the same."""
    for _ in range(DRAWS):
        given = inputs(count)
        with torch.compiler.set_stance("force_eager"):  # torchvision compiles some of its own
            eager = model(**given)
            exact = _exact(wide, pytree.tree_map(_wide, given), eager)
        pairs = zip(_leaves(eager), _leaves(exact), strict=True)
        if all(
            a.shape == b.shape and (a.is_floating_point() or torch.equal(a, b)) for a, b in pairs
        ):
            break
    return given, eager, exact


def _exact(wide: nn.Module, given: dict[str, Any], eager: Any) -> Any:
    """What a model makes in f64; that of eager where PyTorch has an operator in f32 alone."""
    try:
        return wide(**given)
    except RuntimeError:  # f32 of the model's own making met f64
        pass
    kept = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Widened():
            return wide(**given)
    except RuntimeError:
        return eager
    finally:
        torch.set_default_dtype(kept)


class _Widened(TorchFunctionMode):
    """f64 wherever a model asks for f32 by name."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        called = torch.Tensor.double if func is torch.Tensor.float else func
        args, kwargs = pytree.tree_map(
            lambda value: torch.float64 if value is torch.float32 else value, (args, kwargs or {})
        )
        return called(*args, **kwargs)


def _wide(value: Any) -> Any:
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.double() if is_float else value


Errors = dict[int, tuple[float, float]]  # of each result: ours, eager's


def errors(made: Any, eager: Any, exact: Any) -> Errors:
    """The greatest errors against f64, in shares of the greatest element."""
    found: Errors = {}
    for at, (ours, theirs, right) in enumerate(
        zip(*map(_leaves, (made, eager, exact)), strict=True)
    ):
        if ours.shape != theirs.shape or ours.dtype is not theirs.dtype:
            found[at] = (math.inf, FLOOR)
        elif not right.is_floating_point():
            found[at] = (0.0 if torch.equal(ours, theirs) else math.inf, FLOOR)
        else:
            scale = float(right.nan_to_num().abs().max()) if right.numel() else 0.0
            scale = max(scale, LEAST)
            least = max(_distance(theirs, right) / scale, FLOOR)
            found[at] = (_distance(ours, right) / scale, least)
    return found


def join(worst: Errors, found: Errors) -> None:
    """The greater of the errors, of all inputs that were tried."""
    for at, (ours, theirs) in found.items():
        before = worst.get(at, (0.0, 0.0))
        worst[at] = (max(ours, before[0]), max(theirs, before[1]))


def ratio(worst: Errors) -> float:
    """Our greatest error over eager's."""
    return max((_over(*pair) for pair in worst.values()), default=0.0)


def _over(ours: float, theirs: float) -> float:
    """A ratio of errors, of which both may be infinite, or eager's nothing."""
    return 1.0 if ours == theirs else ours / max(theirs, LEAST)


def told(worst: float, ratios: Sequence[float]) -> str:
    """The ratio that counts; of many inputs with the geometric mean of theirs."""
    if len(ratios) <= 2 or not all(0.0 < each < math.inf for each in ratios):
        return f"{worst:.2f}"
    return f"{worst:.2f} ({statistics.geometric_mean(ratios):.2f} in the mean of {len(ratios)})"


def where(worst: Errors) -> str:
    """The result whose ratio it is, with both errors."""
    at = max(worst, key=lambda at: _over(*worst[at]))
    return f", result {at}: {worst[at][0]:.1e}, eager's {worst[at][1]:.1e}"


def _distance(made: torch.Tensor, right: torch.Tensor) -> float:
    """The greatest difference; infinite where only one of two is a finite number."""
    made = made.double()
    same = (made == right) | (made.isnan() & right.isnan())
    off = (made - right).abs().masked_fill(same, 0.0).nan_to_num(nan=math.inf)
    return float(off.max()) if off.numel() else 0.0


def _leaves(value: Any) -> Iterator[torch.Tensor]:
    return (x for x in pytree.tree_leaves(value) if isinstance(x, torch.Tensor))


prepare()  # whoever loads torchvision after this module finds its operators
