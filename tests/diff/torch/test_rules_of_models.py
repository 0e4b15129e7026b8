"""Every kernel of the models that benchmarks measure is scheduled by a rule of its own.

The zoo's architectures, with fewer layers and smaller images, on every run; those of
`bench/breadth.py` in full size on request.
"""

import ast
import importlib
import sys
import warnings
from pathlib import Path

import pytest
import torch
from fallbacks import fallen_kernels

from tilewright.base.target import Target
from tilewright.frontends.torch import import_program

BENCH = Path(__file__).parents[3] / "bench"
TARGETS = ("cpu", "aarch64-linux-gnu -mcpu=neoverse-n1")
BERT = {"num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 4}


def image(size, channels=3):
    return {"x": torch.randn(1, channels, size, size)}


def language_model(zoo):
    state = {name: torch.randn(2, 1, 64) for name in ("h0", "c0")}
    return zoo.LanguageModel(200, 64), {"tokens": torch.randint(0, 200, (5, 1)), **state}


ZOO = {  # modules, and their inputs by name
    "resnet18": lambda zoo: (zoo.resnet((1, 1, 1, 1), False), image(64)),
    "resnet50": lambda zoo: (zoo.resnet((1, 2, 1, 1), True), image(64)),
    "mobilenet": lambda zoo: (zoo.mobilenet(), image(64)),
    "dqn": lambda zoo: (zoo.dqn(), image(84, channels=4)),
    "dcgan": lambda zoo: (zoo.dcgan(), {"z": torch.randn(1, 100, 1, 1)}),
    "mlp": lambda zoo: (zoo.mlp(), {"x": torch.randn(1, 784)}),
    "lstm": language_model,
    "bert": lambda zoo: (zoo.Bert("eager", **BERT, intermediate_size=128), zoo.sentence(32)),
}
OWN = ("crnn", "unet", "spotter")


def breadth_names():
    """The models of the benchmark, without importing what it needs."""
    tree = ast.parse((BENCH / "breadth_models.py").read_text())
    lists = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id in ("TIMM", "TORCHVISION")
    }
    return [f"{key.lower()}.{name}" for key, names in lists.items() for name in names]


@pytest.fixture(scope="module")
def bench():
    """Imports modules of the benchmarks; they stay: `torch_zoo` declares an operator only once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCH))
        importlib.import_module("torch_zoo").prepare()
        yield importlib.import_module
    sys.modules.pop("models", None)


def check(module, inputs, target):
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what tracing says of other people's models
        imported = import_program(module.eval(), tuple(inputs.values())).module
    fallen, total = fallen_kernels(imported, Target.parse(target))
    assert total > 1
    assert fallen == []


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ZOO)
@pytest.mark.sampled
def test_no_kernel_of_the_zoo_falls_back(bench, name, target):
    if name == "bert":
        pytest.importorskip("transformers")
    check(*ZOO[name](bench("models")), target)


@pytest.mark.parametrize("name", OWN)
def test_no_kernel_of_a_realistic_model_falls_back(bench, name):
    made = bench("breadth_models").build(f"own.{name}")
    check(made.module, next(iter(made.cases.values())), "cpu")


@pytest.mark.parametrize("name", breadth_names())
@pytest.mark.fuzz
def test_no_kernel_of_a_model_of_others_falls_back(bench, name):
    pytest.importorskip(name.partition(".")[0])
    made = bench("breadth_models").build(name)
    check(made.module, next(iter(made.cases.values())), "cpu")
