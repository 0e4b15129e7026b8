"""Our formulas of operators that PyTorch has none for, against the operators themselves."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from tilewright.frontends.torch import foreach, formulas
from tilewright.frontends.torch.rules import traced
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


def _resized(size, mode, **options):
    return lambda x: functional.interpolate(x, size=size, mode=mode, **options)


IMAGE, PLACES = torch.randn(2, 3, 5, 7), torch.randn(2, 4, 4, 2).clamp(-1.2, 1.2)
ROWS, OTHERS = torch.randn(2, 4, 3), torch.randn(2, 5, 3)
TABLE, WORDS = torch.randn(10, 4), torch.tensor([1, 2, 4, 5, 4, 3, 2, 9])
STARTS = torch.tensor([0, 4, 4])


def _bag(**options):
    return lambda w: functional.embedding_bag(WORDS, w, STARTS, **options)


def _sampled(**options):
    return lambda x, g: functional.grid_sample(x, g, align_corners=False, **options)


def _complex(a, b):
    c = torch.complex(a, b)
    scaled = torch.view_as_real(torch.polar(c.abs(), c.angle()) * (1 + 2j))
    powers = (c**0.5).real + (c**-1.5).imag + c.log2().real
    made = torch.addmm(c, c, c, alpha=2j).imag + c.masked_fill(a > 0, 2j).real
    return torch.stack([scaled[..., 0], scaled[..., 1], powers, made])


torch.manual_seed(0)  # some gradients are ill-conditioned where numbers are small
GRADIENTS = {
    "nearest": (_resized((11, 3), "nearest"), (IMAGE,)),
    "nearest exact": (_resized((11, 3), "nearest-exact"), (IMAGE,)),
    "lines": (_resized(9, "linear"), (IMAGE[0],)),
    "images": (_resized((3, 10), "bilinear"), (IMAGE,)),
    "corners": (_resized((9, 4), "bilinear", align_corners=True), (IMAGE,)),
    "volumes": (_resized((4, 6, 9), "trilinear"), (IMAGE[None],)),
    "cubic": (_resized((9, 4), "bicubic"), (IMAGE,)),
    "antialiased": (_resized((3, 9), "bicubic", antialias=True), (IMAGE,)),
    "by a scale": (
        lambda x: functional.interpolate(x, scale_factor=2.3, mode="bilinear"),
        (IMAGE,),
    ),
    "sampled": (_sampled(), (IMAGE, PLACES)),
    "sampled, reflected": (_sampled(mode="bicubic", padding_mode="reflection"), (IMAGE, PLACES)),
    **{f"distances {p}": (lambda x, y, p=p: torch.cdist(x, y, p=p), (ROWS, OTHERS))
       for p in (0.5, 1.0, 2.0, 3.0, math.inf)},
    "distances of pairs": (functional.pdist, (ROWS[0],)),
    "shrunk": (lambda x: functional.hardshrink(x) + functional.softshrink(x), (ROWS,)),
    "margins": (
        lambda x: functional.multi_margin_loss(x, torch.tensor([0, 3, 2, 2, 1])),
        (IMAGE[0, 0],),
    ),
    "masked scatter": (lambda x, y: x.masked_scatter(x > 0, y), (ROWS, ROWS + 1)),
    "leaky at random": (functional.rrelu, (ROWS,)),
    "bags, summed": (_bag(mode="sum", padding_idx=4), (TABLE,)),
    "bags, averaged": (_bag(mode="mean", padding_idx=2), (TABLE,)),
    "bags, the greatest": (_bag(mode="max"), (TABLE,)),
    "bags, weighted": (
        lambda w, by: functional.embedding_bag(WORDS, w, STARTS, mode="sum", per_sample_weights=by),
        (TABLE, torch.rand(8)),
    ),
    "complex": (_complex, (torch.randn(3, 3), torch.randn(3, 3))),
}  # fmt: skip


def _gradients(function, inputs):
    given = [x.clone().requires_grad_() for x in inputs]
    made = function(*given)
    (made * torch.linspace(0.5, 1.5, made.numel()).view(made.shape)).sum().backward()
    return [x.grad for x in given]


LONG = {"sampled, reflected"}  # half a minute to compile


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.fuzz if n in LONG else ()) for n in GRADIENTS]
)
def test_gradients(name):
    function, inputs = GRADIENTS[name]
    compiled = torch.compile(function, backend=tilewright, options={"fallback": "error"})
    want = _gradients(function, inputs)
    torch.testing.assert_close(_gradients(compiled, inputs), want, rtol=1e-4, atol=1e-5)


def test_no_formula_of_a_step_is_traced_anew_for_each_weight(monkeypatch):
    """PyTorch's formula of addcmul has an operator that a function in Python defines."""
    traces = []
    monkeypatch.setattr(traced, "_trace", lambda *given: traces.append(given))
    x, y = torch.randn(2, 3, 4)
    compiled = torch.compile(torch.addcmul, backend=tilewright, options={"fallback": "error"})
    with torch.no_grad():
        made = compiled(x, y, y, value=0.5)
    torch.testing.assert_close(made, torch.addcmul(x, y, y, value=0.5))
    assert not traces
