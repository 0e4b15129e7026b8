"""Speed of PyTorch models, alternating with eager mode, inductor and OpenVINO.

    python bench/torch_speed.py [--sections models,cached,overhead,training,generation]
                                [--only REGEX] [--threads 1,2] [--seconds 1] [--busy]
                                [--peers eager,inductor,freezing,max-autotune,openvino]
                                [--limit SECONDS] [--draw SEED] [--count 20]

Models of transformers with made-up weights, f32, batch 1. Each runs in a process of its own, peers
and ours take turns within it. The time of the first call is told too, caches empty; `cached` tells
it of a new process with caches full. Inductor needs a C++ compiler, OpenVINO its package; what is
missing is left out and said so. Cases that failed are named at the end. On a machine that others
use too, `--busy` compares the processor time of calls. With `--limit` no case begins after so many
seconds, and those that were left are named for another run. `--draw` measures, in the place of that
list, models that a seed draws from torchvision, timm and transformers (see torch_draw.py).
"""

from __future__ import annotations

import argparse
import copy
import importlib
import os
import re
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import report
import torch
import torch.nn.functional as F  # noqa: N812
import torch_draw
import torch_zoo
from report import Figure
from torch._inductor.compile_fx import compile_fx

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "fuzz"))

from workers import Lost, run_jobs

OURS, EAGER, INDUCTOR, OPENVINO = "tilewright", "eager", "inductor", "openvino"
MAX_SECONDS = 1800.0  # for one model
STEPS, PROMPT, TOKENS = 20, 32, 64
WANT_OPENVINO = 1.15
WANT_MODELS, WANT_FIRST, WANT_CACHED, WANT_TEXT, WANT_TRAINING = 1.5, 0.4, 0.8, 2.0, 1.0
WANT_BANDWIDTH = 0.85
MAX_OVERHEAD_US = 40.0
MAX_OFF = 1e-2  # of the greatest element of any output
ROUNDS = 7  # turns of contenders
BATCH = 8  # of training
MAX_LOSS_OFF = 1e-3  # f32, sums in another order, over all steps
# Words, images and sound; sizes that people deploy. (class, config, input)
WORDS, IMAGE, SOUND = "words", "image", "sound"
MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    "minilm": ("bert", {"hidden_size": 384, "num_hidden_layers": 6,
                        "intermediate_size": 1536}, WORDS),
    "bert-small": ("bert", {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
                            "intermediate_size": 2048}, WORDS),
    "distilbert": ("distilbert", {}, WORDS),
    "roberta-small": ("roberta", {"hidden_size": 384, "num_hidden_layers": 6,
                                  "intermediate_size": 1536}, WORDS),
    "electra-small": ("electra", {"num_hidden_layers": 6}, WORDS),
    "albert": ("albert", {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6,
                          "num_attention_heads": 12}, WORDS),
    "mpnet-small": ("mpnet", {"hidden_size": 384, "num_hidden_layers": 6,
                              "intermediate_size": 1536}, WORDS),
    "gpt2-small": ("gpt2", {"n_layer": 6}, WORDS),
    "opt": ("opt", {"hidden_size": 384, "num_hidden_layers": 6, "ffn_dim": 1536,
                    "word_embed_proj_dim": 384}, WORDS),
    "llama-small": ("llama", {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1024,
                              "num_attention_heads": 6, "num_key_value_heads": 6}, WORDS),
    "qwen-small": ("qwen2", {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1024,
                             "num_attention_heads": 6, "num_key_value_heads": 2}, WORDS),
    "vit-tiny": ("vit", {"hidden_size": 192, "num_attention_heads": 3,
                         "intermediate_size": 768}, IMAGE),
    "deit-tiny": ("deit", {"hidden_size": 192, "num_attention_heads": 3,
                           "intermediate_size": 768}, IMAGE),
    "resnet-18": ("resnet", {"layer_type": "basic", "depths": [2, 2, 2, 2],
                             "hidden_sizes": [64, 128, 256, 512]}, IMAGE),
    "resnet-50": ("resnet", {}, IMAGE),
    "convnext-tiny": ("convnext", {}, IMAGE),
    "mobilenet-v1": ("mobilenet_v1", {}, IMAGE),
    "mobilenet-v2": ("mobilenet_v2", {}, IMAGE),
    "swin-tiny": ("swin", {}, IMAGE),
    "wav2vec2-small": ("wav2vec2", {"hidden_size": 384, "num_hidden_layers": 4,
                                    "intermediate_size": 1536, "num_attention_heads": 6}, SOUND),
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """How every section measures."""

    names: str  # a regular expression
    peers: tuple[str, ...]
    threads: int
    seconds: float
    busy: bool
    layers: int
    end: float = float("inf")  # when no case begins any more, by time.monotonic
    seed: int | None = None  # of models that are drawn
    count: int = 20  # of these

    def chosen(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if re.search(self.names, name)]

    def begin(self) -> report.Clock:
        """Set PyTorch up in the process of a case; the clock to measure by."""
        torch.manual_seed(0)
        torch.set_num_threads(self.threads)
        warnings.simplefilter("ignore")
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
        return report.clock(busy=self.busy)


@dataclass
class Times:
    """Of one model: seconds a call and of the first call, by contender."""

    calls: dict[str, float] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    refused: str = ""  # why there is no such model


def build(name: str) -> tuple[torch.nn.Module, dict[str, Any]]:
    if "/" in name:
        return torch_draw.build(name)
    torch_zoo.prepare()
    from transformers import AutoConfig, AutoModel

    kind, fields, what = MODELS[name]
    config = AutoConfig.for_model(kind, **fields)
    config.use_cache = False
    model = AutoModel.from_config(config).eval()
    if what == WORDS:
        return model, {"input_ids": torch.randint(0, 1000, (1, 128))}
    if what == SOUND:
        return model, {"input_values": torch.randn(1, 16_000)}
    return model, {"pixel_values": torch.randn(1, 3, 224, 224)}


# How inductor is set while it compiles.
FREEZING, AUTOTUNED = "freezing", "max-autotune"
PEERS: dict[str, dict[str, Any]] = {
    INDUCTOR: {},
    FREEZING: {"freezing": True},
    AUTOTUNED: {"freezing": True, "max_autotune": True},
}


def prepared(who: str, model: torch.nn.Module, threads: int, **options: Any) -> Callable[..., Any]:
    """A model as a contender runs it."""
    if who == EAGER:
        return model
    if who == OURS:
        from tilewright.plugins.torch import tilewright

        named = {"threads": threads, **options}
        return torch.compile(model, backend=tilewright, options=named)  # type: ignore[arg-type]
    if who == OPENVINO:
        importlib.import_module("openvino.torch")  # registers the backend

        wanted = {"device": "CPU", "config": {"INFERENCE_NUM_THREADS": threads}}
        return torch.compile(model, backend=OPENVINO, options=wanted)  # type: ignore[arg-type]
    settings = PEERS[who]

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        return compile_fx(graph, inputs, config_patches=settings)

    # A backend of its own: Dynamo would run what another inductor has compiled.
    compiled = torch.compile(model, backend=backend)
    waiting = [settings]  # Dynamo asks for freezing, too; the first call compiles

    def called(*args: Any, **kwargs: Any) -> Any:
        if not waiting:
            return compiled(*args, **kwargs)
        with torch._inductor.config.patch(waiting.pop()):
            return compiled(*args, **kwargs)

    return called


def run_model(job: tuple[str, Settings]) -> Times:
    """One model by all contenders, in turns."""
    name, settings = job
    clock = settings.begin()
    times = Times()
    runs: dict[str, Callable[[], Any]] = {}
    with torch.no_grad():
        try:
            model, given = build(name)
            want = _leaves(model(**given))
        except Exception as error:
            times.refused = f"{type(error).__name__}: {str(error)[:120]}"
            return times
        for who in (OURS, *settings.peers):
            own = {"cache": False} if who == OURS else {}
            start = time.perf_counter()
            try:
                called = prepared(who, copy.deepcopy(model), settings.threads, **own)
                made = _leaves(called(**given))
            except Exception as error:
                times.notes.append(f"{who}: {type(error).__name__}: {str(error)[:120]}")
                continue
            times.first[who] = time.perf_counter() - start
            worst = torch_draw.distance(made, want)
            if not worst <= MAX_OFF:  # nor is NaN
                times.notes.append(f"{who}: off by {worst:.2g}")
                continue
            runs[who] = lambda called=called: called(**given)
        budget = settings.seconds / ROUNDS
        times.calls = report.interleaved(runs, rounds=ROUNDS, budget_s=budget, clock=clock)
    return times


def _leaves(made: Any) -> list[torch.Tensor]:
    values = tuple(made.values()) if isinstance(made, dict) else made
    found = torch.utils._pytree.tree_leaves(values)
    return [x for x in found if isinstance(x, torch.Tensor) and x.is_floating_point()]


FAILED: list[str] = []  # cases that gave no figure
LEFT: list[str] = []  # cases that no time was left for


def in_time(what: str, jobs: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """The jobs, of which the last field is the settings, for which there is time."""
    for job in jobs:
        if time.monotonic() < job[-1].end:
            yield job
        else:
            LEFT.append(f"{what} {job[0]}, threads={job[-1].threads}")


def alone(function: str, what: str, jobs: Sequence[tuple[Any, ...]]) -> Iterator[tuple[Any, Any]]:
    """Each job, named by its first field, with what a process of its own made of it; those that
    gave nothing are kept in mind."""
    begun = in_time(what, jobs)
    ends = run_jobs("torch_speed", function, begun, workers=1, seconds=MAX_SECONDS, most=1)
    for job, end in report.tracked(ends, what, len(jobs)):
        if isinstance(end, Lost):
            failed(f"{what} {job[0]}: {end.why}")
        else:
            yield job, end


def failed(what: str) -> None:
    print(what, flush=True)
    FAILED.append(what)


def timed(settings: Settings) -> Iterator[tuple[str, Times]]:
    """The models of the list, or those that a seed draws, and their times."""
    if settings.seed is None:
        jobs = [(name, settings) for name in settings.chosen(MODELS)]
        for (name, _), end in alone("run_model", "models", jobs):
            if end.refused:
                failed(f"models {name}: {end.refused}")
            else:
                yield name, end
        return
    ends: dict[str, Times] = {}

    def is_taken(name: str) -> bool:
        if not re.search(settings.names, name) or time.monotonic() > settings.end:
            return False
        for _, end in alone("run_model", "models", [(name, settings)]):
            if end.refused:
                print(f"{name}: drawn again: {end.refused}", flush=True)
                return False
            ends[name] = end
        return True

    for name in torch_draw.draw(settings.seed, settings.count, is_taken):
        if name in ends:
            yield name, ends[name]


def measure_models(settings: Settings) -> list[Figure]:
    figures: list[Figure] = []
    ratios: list[float] = []
    by_peer: dict[str, list[float]] = {who: [] for who in settings.peers}
    firsts: list[float] = []
    for name, end in timed(settings):
        for note in end.notes:
            print(f"{name}: {note}", flush=True)
        if OURS not in end.calls:
            failed(f"models {name}: ours gave no right result")
            continue
        times = {who: spent / end.calls[OURS] for who, spent in end.calls.items() if who != OURS}
        for who, ratio in times.items():
            by_peer[who].append(ratio)
        rivals = [ratio for who, ratio in times.items() if who != OPENVINO]
        ratios += [min(rivals)] if rivals else []
        shown = ", ".join(f"{ratio:.2f} of {who}" for who, ratio in times.items())
        print(f"{name}: {1e3 * end.calls[OURS]:.2f} ms, {shown}; first call "
              f"{ {who: round(s, 1) for who, s in end.first.items()} }", flush=True)  # fmt: skip
        if INDUCTOR in end.first:
            firsts.append(end.first[OURS] / end.first[INDUCTOR])
    if ratios:
        mean = statistics.geometric_mean(ratios)
        figures.append(report.at_least("models, best of PyTorch / ours", mean, "x", WANT_MODELS))
        figures.append(report.at_least("models, least", min(ratios), "x", 1.0))
    for who, found in by_peer.items():
        title, mean = f"models, {who} / ours", statistics.geometric_mean(found) if found else 0.0
        if who == OPENVINO and found:
            figures.append(report.at_least(title, mean, "x", WANT_OPENVINO))
        elif found:
            figures.append(Figure(title, mean, "x"))
    if firsts:
        mean = statistics.geometric_mean(firsts)
        figures.append(report.at_most("first call, ours / inductor", mean, "x", WANT_FIRST))
    return figures


# ------------------------------------------------------------------------------------ caches


def run_first(job: tuple[str, str, str, Settings]) -> float:
    """Seconds of the first call of a model by a contender, whose caches are in a folder."""
    name, who, folder, settings = job
    settings.begin()
    os.environ["TILEWRIGHT_CACHE_DIR"] = os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    model, given = build(name)
    called = prepared(who, model, settings.threads)
    with torch.no_grad():
        start = time.perf_counter()
        called(**given)
        return time.perf_counter() - start


def measure_cached(settings: Settings) -> list[Figure]:
    """The first call in a new process, all of whose code another process has compiled."""
    names = settings.chosen(MODELS)
    folder = tempfile.mkdtemp()
    jobs = [(name, who, folder, settings) for name in names
            for who in (OURS, INDUCTOR) for _ in ("fill", "use")]  # fmt: skip
    spent: dict[tuple[str, str], list[float]] = {}
    for (name, who, *_), end in alone("run_first", "first calls", jobs):
        spent.setdefault((name, who), []).append(end)
    used = {key: both[1] for key, both in spent.items() if len(both) > 1}  # by the second process
    ratios = [used[name, OURS] / used[name, INDUCTOR] for name in names
              if (name, OURS) in used and (name, INDUCTOR) in used]  # fmt: skip
    if not ratios:
        return []
    mean = statistics.geometric_mean(ratios)
    return [report.at_most("new process, caches full, ours / inductor", mean, "x", WANT_CACHED)]


# ------------------------------------------------------------------------------------ overhead


class Many(torch.nn.Module):
    """Nothing to compute on three hundred parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.randn(4) for _ in range(300))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            x = x + weight
        return x


def run_overhead(job: tuple[str, Settings]) -> float:
    """Microseconds that a call through torch.compile costs above the compiled module's own."""
    import tilewright as tw

    clock = job[1].begin()
    model, x = Many().eval(), torch.randn(4)
    compiled = prepared(OURS, model, job[1].threads)
    ahead = tw.compile(model, args=(x,), threads=job[1].threads)
    with torch.no_grad():
        runs = {"compile": lambda: compiled(x), "own": lambda: ahead(x)}
        times = report.interleaved(runs, clock=clock)
    return 1e6 * (times["compile"] - times["own"])


def measure_overhead(settings: Settings) -> list[Figure]:
    return [
        report.at_most("overhead, 300 parameters", spent, "us", MAX_OVERHEAD_US)
        for _, spent in alone("run_overhead", "overhead", [("of a call", settings)])
    ]


# ------------------------------------------------------------------------------------ training


@dataclass
class Task:
    """A model to train: logits of a batch, and what belongs to its class."""

    model: torch.nn.Module
    batch: Callable[[], dict[str, torch.Tensor]]
    classes: int


def _mlp() -> Task:
    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(
                torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512),
                torch.nn.ReLU(), torch.nn.Linear(512, 10))  # fmt: skip

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = self.layers(values)
            return made

    return Task(Layers(), lambda: {"values": torch.randn(BATCH, 256)}, 10)


def _classifier(name: str, batch: Callable[[], dict[str, torch.Tensor]], **fields: Any) -> Task:
    from transformers import AutoConfig, AutoModelForImageClassification
    from transformers import AutoModelForSequenceClassification as ForWords

    kind, config, what = MODELS[name]
    found = AutoConfig.for_model(kind, **config, **fields, num_labels=10)
    made = (ForWords if what == WORDS else AutoModelForImageClassification).from_config(found)
    return Task(made.train(), batch, 10)


TASKS: dict[str, Callable[[], Task]] = {
    "mlp": _mlp,
    "resnet-18": lambda: _classifier(
        "resnet-18", lambda: {"pixel_values": torch.randn(BATCH, 3, 224, 224)}
    ),
    "minilm": lambda: _classifier(  # no dropout: contenders would draw other numbers
        "minilm",
        lambda: {"input_ids": torch.randint(0, 1000, (BATCH, 128))},
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    ),
}


def run_training(job: tuple[str, Settings]) -> tuple[Times, dict[str, list[float]]]:
    """The seconds of a step and the losses of some by all contenders, in turns."""
    name, settings = job
    clock = settings.begin()
    task = TASKS[name]()
    peers = [who for who in settings.peers if who in (EAGER, INDUCTOR)]
    models = {who: copy.deepcopy(task.model) for who in (OURS, *peers)}
    called = {who: prepared(who, model, settings.threads) for who, model in models.items()}
    optimizers = {who: torch.optim.SGD(model.parameters(), lr=0.01)
                  for who, model in models.items()}  # fmt: skip
    times = Times()
    losses: dict[str, list[float]] = {who: [] for who in models}
    for _ in range(STEPS):
        given, goal = task.batch(), torch.randint(0, task.classes, (BATCH,))
        for who in list(called):
            start = clock()
            try:
                made = called[who](**given)
                loss = F.cross_entropy(made if isinstance(made, torch.Tensor) else made.logits,
                                       goal)  # fmt: skip
                loss.backward()
            except Exception as error:
                times.notes.append(f"{who}: {type(error).__name__}: {str(error)[:120]}")
                del called[who], losses[who]
                times.calls.pop(who, None)
                continue
            optimizers[who].step()
            optimizers[who].zero_grad()
            spent = clock() - start
            times.first.setdefault(who, spent)
            times.calls[who] = min(times.calls.get(who, spent), spent)
            losses[who].append(float(loss))
    return times, losses


def measure_training(settings: Settings) -> list[Figure]:
    figures: list[Figure] = []
    jobs = [(name, settings) for name in settings.chosen(TASKS)]
    for (name, _), (times, losses) in alone("run_training", "training", jobs):
        for note in times.notes:
            print(f"training {name}: {note}", flush=True)
        shown = {who: f"{1e3 * spent:.2f} ms" for who, spent in times.calls.items()}
        print(f"training {name}: {shown}", flush=True)
        if OURS not in losses:
            failed(f"training {name}: ours gave no result")
            continue
        own = times.calls.pop(OURS)
        off = max(abs(a - b) for other in losses.values()
                  for a, b in zip(losses[OURS], other, strict=True))  # fmt: skip
        for who, spent in times.calls.items():
            label = f"training step, {name}, {who} / ours"
            figure = Figure(label, spent / own, "x")
            if who == INDUCTOR:
                figure = report.at_least(label, spent / own, "x", WANT_TRAINING)
            figures.append(figure)
        if len(losses) > 1:
            label = f"losses of {name}, greatest difference"
            figures.append(report.at_most(label, off, "", MAX_LOSS_OFF))
    return figures


# ------------------------------------------------------------------------------------ generation


@dataclass
class Text:
    """What a language model wrote: seconds of it all by contender, equal tokens, weights."""

    calls: dict[str, float]
    same: int
    size_bytes: int
    bandwidth: float  # bytes a second


def run_generation(job: tuple[str, Settings]) -> Text:
    """GPT-2-small, made-up weights: ours against eager with its own cache, in turns."""
    from transformers import GPT2Config, GPT2LMHeadModel

    from tilewright.plugins.torch import Generator

    settings = job[1]
    clock = settings.begin()
    model = GPT2LMHeadModel(GPT2Config(n_layer=settings.layers)).eval()
    text = Generator(model, length=PROMPT + TOKENS, threads=settings.threads)
    prompt = torch.randint(0, 50_000, (1, PROMPT))
    wanted = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False,
              "pad_token_id": 0}  # fmt: skip

    def eager() -> Any:
        with torch.no_grad():
            return model.generate(prompt, **wanted)

    ours, theirs = text.generate(prompt, TOKENS), eager()
    same = int((ours == theirs[:, : ours.shape[1]]).sum()) - PROMPT
    runs = {OURS: lambda: text.generate(prompt, TOKENS), EAGER: eager}
    times = report.interleaved(runs, rounds=3, budget_s=0.0, clock=clock)
    size = 4 * sum(p.numel() for p in {id(p): p for p in model.parameters()}.values())
    return Text(times, same, size, _bandwidth(size, clock))


def measure_generation(settings: Settings) -> list[Figure]:
    """Tokens a second against eager, and against reading the weights once a token."""
    figures: list[Figure] = []
    for _, text in alone("run_generation", "generation", [("gpt2", settings)]):
        rate = TOKENS / text.calls[OURS]
        gain = text.calls[EAGER] / text.calls[OURS]
        label = "generation, of reading the weights once a token"
        figures += [
            Figure("generation", rate, "tokens/s"),
            report.at_least("generation, ours / eager", gain, "x", WANT_TEXT),
            report.at_least(label, rate * text.size_bytes / text.bandwidth, "x", WANT_BANDWIDTH),
            report.at_least("tokens as eager's", text.same, "tokens", TOKENS),
        ]
    return figures


def _bandwidth(size_bytes: int, clock: report.Clock) -> float:
    """Bytes a second of a sum over as many."""
    block = torch.ones(size_bytes // 4)
    return size_bytes / min(report.seconds(lambda: block.sum(), budget_s=0.5, clock=clock))


SECTIONS = {
    "models": measure_models,
    "cached": measure_cached,
    "overhead": measure_overhead,
    "training": measure_training,
    "generation": measure_generation,
}


def measure(options: argparse.Namespace) -> list[Figure]:
    figures: list[Figure] = []
    peers = tuple(options.peers.split(","))
    end = time.monotonic() + options.limit
    for threads in map(int, options.threads.split(",")):
        settings = Settings(
            *(options.only, peers, threads, options.seconds, options.busy, options.layers),
            *(end, options.draw, options.count),
        )
        for name in options.sections.split(","):
            found = SECTIONS[name](settings)
            how = f"threads={threads}" + (", processor time" if options.busy else "")
            figures += [replace(each, name=f"{each.name}, {how}") for each in found]
    for what in FAILED:
        print(f"failed: {what}", flush=True)
    for what in LEFT:
        print(f"left: {what}", flush=True)
    return [*figures, report.at_most("cases that failed", len(FAILED), "", 0)]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sections", default=",".join(SECTIONS), help="what to measure")
    parser.add_argument("--only", default="", help="a regular expression on names of models")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds for all cases")
    parser.add_argument("--threads", default="1,2", help="threads of each contender, in turn")
    parser.add_argument(
        "--peers", default=",".join((EAGER, *PEERS, OPENVINO)), help="whom to compare with"
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="to time a model for")
    parser.add_argument("--layers", type=int, default=12, help="of GPT-2 in generation")
    parser.add_argument("--draw", type=int, default=None, help="a seed that draws the models")
    parser.add_argument("--count", type=int, default=20, help="how many models are drawn")
    parser.add_argument("--busy", action="store_true", help="processor time of calls")


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
