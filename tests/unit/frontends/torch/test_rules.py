"""How rules translate what PyTorch calls; what they give is tested in tests/diff/torch."""

import warnings
from operator import getitem

import numpy as np
import pytest
import torch
from cases import Recurrent, interpreted
from torch import fx

import tilewright as tw
from tilewright.base.dtype import F32
from tilewright.frontends.common.report import Skip
from tilewright.frontends.torch import import_program
from tilewright.frontends.torch.decompositions import (
    KEPT,
    TAKEN_APART,
    decomposed,
    operator,
    under_autograd,
)
from tilewright.frontends.torch.importer import Importer
from tilewright.frontends.torch.rules import RULES
from tilewright.frontends.torch.rules.complex import PAIR_RULES
from tilewright.graph import Builder, TensorType, interpret
from tilewright.sym import const


def test_a_global_pool_of_channels_last_gathers_nothing():
    pool = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.AdaptiveAvgPool2d(1))
    images = torch.randn(2, 3, 5, 5).to(memory_format=torch.channels_last)
    dynamic = {"input": {0: "batch"}}
    made = import_program(pool.to(memory_format=torch.channels_last), (images,), dynamic=dynamic)
    ops = [node.op for node in made.module.main.nodes]
    assert "reduce_mean" in ops
    assert "gather" not in ops


class Raised(torch.nn.Module):
    """Writes to a part of every image: PyTorch's program replaces all of the batch by it."""

    def forward(self, x):
        made = x.clone()
        made[:, :2].add_(1)
        return made * x


def test_a_batch_that_is_replaced_to_its_end_keeps_its_size():
    made = import_program(Raised(), (torch.randn(2, 4),), dynamic={"x": {0: "batch"}})
    nodes = made.module.main.nodes
    assert [node["axes"] for node in nodes if node.op == "slice"] == [(1,), (1,)]
    shapes = [value.tensor.shape for node in nodes for value in node.outputs]
    assert len({shape[0] for shape in shapes if len(shape) == 2}) == 1


class Dropped(torch.nn.Module):
    def forward(self, q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.25)


def test_weights_of_attention_are_dropped_and_the_rest_scaled():
    queries, keys = torch.randn(2, 4, 32, 8) / 8, torch.randn(2, 4, 64, 8)  # no key has it all
    given = queries, keys, torch.ones(2, 4, 64, 8)
    made = interpreted(import_program(Dropped(), given), given)
    assert made.std() > 0.01  # weights of each query no longer add up to 1
    assert abs(made.mean() - 1) < 0.02


class Composites(torch.nn.Module):
    """Operators that are kept whole, that fall apart by themselves, and that have a formula."""

    def forward(self, x):
        y = torch.nn.functional.layer_norm(x, x.shape[-1:])
        y = torch.nn.functional.cosine_similarity(y, y.flip(0), dim=-1)
        return torch.nn.functional.smooth_l1_loss(y, torch.einsum("ij->i", x)), y.softmax(0)


def test_composites_fall_apart_as_with_a_table_of_all_operators():
    program = torch.export.export(Composites(), (torch.randn(3, 5),), strict=False)
    table = torch.export.default_decompositions()
    for name in KEPT:
        table.pop(operator(name), None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own, of what it deprecates
        want = program.run_decompositions(table)
    assert decomposed(program).graph_module.code == want.graph_module.code


def test_what_is_kept_whole_is_so_in_place():
    class InPlace(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.hardswish(x + 1, inplace=True)

    program = torch.export.export(InPlace(), (torch.randn(3),), strict=False)
    targets = [str(node.target) for node in decomposed(program).graph.nodes]
    assert "aten.hardswish.default" in targets


def test_nothing_is_picked_from_an_empty_source():
    class Masked(torch.nn.Module):
        def forward(self, x):
            return x.masked_scatter(x > 0, x[x > 0].exp())

    imported = import_program(Masked(), (torch.tensor([1.0, -1.0, 2.0]),))
    for given in ([1.0, -1.0, 2.0], [-1.0, -2.0, -3.0]):
        x = torch.tensor(given)
        (made, *_) = interpret(imported.module, x.numpy(), check=True)
        torch.testing.assert_close(torch.from_numpy(np.array(made)), Masked()(x))


def test_sizes_that_only_a_lower_bound_holds_may_be_any():
    pool = torch.nn.AvgPool2d((1, 7), (3, 2), (0, 1), ceil_mode=True)
    auto = torch.export.Dim.AUTO
    x = torch.randn(1, 2, 9, 17)
    program = torch.export.export(pool, (x,), dynamic_shapes=({2: auto, 3: auto},))
    model = tw.compile(program, threads=1)
    for shape in ((1, 2, 9, 17), (1, 2, 12, 30)):
        x = torch.randn(shape)
        torch.testing.assert_close(model(x), pool(x))


def test_recurrent_layers_stay_whole():
    model, x = Recurrent().eval(), torch.randn(2, 7, 4)
    imported = import_program(model, (x,))
    ops = [node.op for node in imported.module.main.nodes]
    assert ops.count("lstm") == 4
    assert ops.count("gru") == 1
    with torch.no_grad():
        want = model(x)
    for made, expected in zip(interpreted(imported, (x,)), want, strict=True):
        torch.testing.assert_close(made, expected, rtol=2e-5, atol=2e-5)


def core_names():
    """Every overload of ATen that PyTorch tags as core."""
    found = set()
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads() if hasattr(packet, "overloads") else ():
            if torch.Tag.core in getattr(packet, overload).tags:
                found.add(name if overload == "default" else f"{name}.{overload}")
    return found


def test_core_aten_has_rules_or_is_taken_apart():
    names = {name.removeprefix("aten.") for name in (*RULES, *PAIR_RULES)} | set(TAKEN_APART)
    assert core_names() - names == set()
    assert all(operator(name) in under_autograd() for name in TAKEN_APART)


@pytest.mark.parametrize(("read", "refused"), [((0,), False), ((0, 1), True), ((), False)])
def test_what_pytorch_says_of_results_that_nobody_reads_is_not_held_against(read, refused):
    graph = fx.Graph()
    layer = graph.call_function(torch.ops.aten.lstm.input)
    graph.output([graph.call_function(getitem, (layer, at)) for at in read])
    layer.meta["val"] = (torch.empty(2, 3), torch.empty(1, 2, 3))  # one dimension too many
    builder = Builder()
    made = [builder.param(name, TensorType(F32, (const(2), const(3)))) for name in "ab"]
    importer = Importer.__new__(Importer)
    if refused:
        with pytest.raises(Skip, match="where PyTorch has"):
            importer.checked(layer, made)
    else:
        assert importer.checked(layer, made) == tuple(made)
