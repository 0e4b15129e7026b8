"""Our formulas of operators that PyTorch has none for, against the operators themselves."""

import copy

import pytest
import torch
from torch import nn

from tilewright.frontends.torch import foreach, formulas
from tilewright.plugins.torch import tilewright

aten = torch.ops.aten
LISTS = [op for op in foreach.FORMULAS if "_foreach_" in str(op)]
WINDOWS = [op for op in formulas.FORMULAS if "_window" in str(op)]


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def _argument(argument):
    kind = str(argument.type)
    if kind == "List[Tensor]":
        return [torch.rand(3, 3) * 0.9, torch.rand(4, 4) * 0.9]
    if kind.startswith("List["):
        return [2.0, 3.0]
    if kind == "Tensor":
        return torch.tensor([0.5, 0.7]) if argument.name == "scalars" else torch.tensor(0.5)
    return argument.default_value if argument.has_default_value() else 2.0


@pytest.mark.parametrize("operator", LISTS, ids=str)
def test_operators_on_lists(operator):
    given = [_argument(each) for each in operator._schema.arguments if not each.kwarg_only]
    torch.testing.assert_close(foreach.FORMULAS[operator](*given), list(operator(*given)))


def _tensors():
    return [torch.rand(3, 3), torch.rand(5)]


@pytest.mark.parametrize("found", [None, 0.0, 1.0])
@pytest.mark.parametrize("other", [False, True])
@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "adagrad"])
def test_fused_steps_of_optimizers(name, other, found):
    scale = None if found is None else torch.tensor(2.0)
    rates = {"lr": 0.1, "weight_decay": 0.01, "maximize": other, "grad_scale": scale,
             "found_inf": None if found is None else torch.tensor(found)}  # fmt: skip
    lists = [_tensors(), _tensors(), _tensors()]
    steps = [torch.tensor(3.0), torch.tensor(3.0)]
    if name == "sgd":
        lists[2] = _tensors() if other else []
        rates |= {"momentum": 0.9 if other else 0.0, "dampening": 0.1, "nesterov": other}
        rates["is_first_step"] = False
    elif name == "adagrad":
        lists.append(steps)
        rates |= {"lr_decay": 0.1, "eps": 1e-8}
    else:
        lists += [_tensors(), _tensors() if other else [], steps]
        rates |= {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "amsgrad": other}
    operator = getattr(aten, f"_fused_{name}").default
    made = foreach.FORMULAS[operator](*copy.deepcopy(lists), **rates)
    torch.testing.assert_close(list(made), list(operator(*lists, **rates)))


@pytest.mark.parametrize("operator", WINDOWS, ids=str)
def test_windows(operator):
    periods = [each.name for each in operator._schema.arguments[:2]].count("periodic")
    own = {"periodic_alpha": (0.5,), "periodic_alpha_beta": (0.5, 0.3)}
    shape = own.get(operator._overloadname, (5.0,) if operator._overloadname == "beta" else ())
    for length in (0, 1, 2, 7, 8):
        for given in ((True,), (False,)) if periods else ((),):
            made = formulas.FORMULAS[operator](length, *given, *shape)
            torch.testing.assert_close(made, operator(length, *given, *shape))


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_gradient_of_weight_norm(dim):
    v = torch.randn(3, 4, 5, requires_grad=True)
    g = torch.rand([n if at == dim else 1 for at, n in enumerate(v.shape)], requires_grad=True)
    norms = v.norm(2, [at for at in range(3) if at != dim], keepdim=True)
    w = torch._weight_norm(v, g, dim)
    grad = torch.randn_like(w)
    made = formulas.FORMULAS[aten._weight_norm_interface_backward.default](grad, v, g, norms, dim)
    torch.testing.assert_close(made, torch.autograd.grad(w, (v, g), grad))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, of what it imports
@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (torch.optim.SGD, {"foreach": True, "momentum": 0.9}),
        (torch.optim.Adam, {"foreach": True}),
        (torch.optim.AdamW, {"fused": True}),
    ],
)
def test_steps_of_optimizers_are_native(optimizer, options):
    nets = [nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))]
    nets.append(copy.deepcopy(nets[0]))
    own, ours = (optimizer(net.parameters(), lr=0.1, **options) for net in nets)
    native = {"fallback": "error", "threads": 1}
    steps = own.step, torch.compile(ours.step, backend=tilewright, options=native)
    for _ in range(2):
        x = torch.randn(2, 3)
        for net, step in zip(nets, steps, strict=True):
            net.zero_grad()
            net(x).square().sum().backward()
            step()
    for one, other in zip(*(net.parameters() for net in nets), strict=True):
        torch.testing.assert_close(other, one)
