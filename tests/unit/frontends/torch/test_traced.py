"""Operators that a library defines in Python are imported as what their Python does."""

import numpy as np
import pytest
import torch

from tilewright.base.errors import Unsupported, UserError
from tilewright.frontends.torch import import_program, program
from tilewright.graph import interpret
from tilewright.plugins.torch import tilewright


@torch.library.custom_op("tilewright_test::halved_above", mutates_args=())
def halved_above(x: torch.Tensor, limit: float) -> torch.Tensor:
    made = x.clone()
    for row in range(x.shape[0]):  # loops and memory that is written are no matter
        made[row].mul_(torch.where(x[row] > limit, 0.5, 1.0))
    return made


@halved_above.register_fake
def _(x, limit):
    return torch.empty_like(x)


@torch.library.custom_op("tilewright_test::least_and_greatest", mutates_args=())
def least_and_greatest(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.amin(0), x.amax(0)


@least_and_greatest.register_fake
def _(x):
    return torch.empty_like(x[0]), torch.empty_like(x[0])


@torch.library.custom_op("tilewright_test::by_numpy", mutates_args=())
def by_numpy(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.numpy() + 1)


@torch.library.custom_op("tilewright_test::drawn", mutates_args=())
def drawn(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand_like(x)


@torch.library.custom_op("tilewright_test::factored", mutates_args=())
def factored(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.ldl_factor(x)[0] + 1


@torch.library.custom_op("tilewright_test::less", mutates_args=())
def less(x: torch.Tensor, by: float = 3.0, *, times: float = 2.0) -> torch.Tensor:
    return (x - by) * times


for each in (by_numpy, drawn, factored):
    each.register_fake(torch.empty_like)
less.register_fake(lambda x, by=3.0, *, times=2.0: torch.empty_like(x))


@torch.library.custom_op("tilewright_test::raised", mutates_args=("x",))
def raised(x: torch.Tensor, by: float) -> torch.Tensor:
    x.add_(by)
    return x * 2


raised.register_fake(lambda x, by: torch.empty_like(x))
torch.library.define("tilewright_test::both", "(Tensor(a!) x, Tensor z) -> (Tensor, Tensor)")


@torch.library.impl("tilewright_test::both", "cpu")
def _(x, z):
    x.mul_(z)
    return x.clone(), x + z


torch.library.register_fake("tilewright_test::both", lambda x, z: (x.clone(), x + z))


class Called(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def test_what_the_python_of_an_operator_does_is_imported():
    model = Called(lambda x: (halved_above(x, 0.25) + 1, *least_and_greatest(x)))
    x = torch.randn(3, 5)
    made = interpret(import_program(model, (x,)).module, x.numpy())
    for each, want in zip(made, model(x), strict=True):
        np.testing.assert_allclose(each, want.numpy())


def test_arguments_keep_their_places_and_names():
    model = Called(lambda x: (less(x), less(x, 1.0), less(x, by=5.0, times=-1.0)))
    x = torch.randn(3, 5)
    made = interpret(import_program(model, (x,)).module, x.numpy())
    for each, want in zip(made, model(x), strict=True):
        np.testing.assert_allclose(each, want.numpy(), rtol=1e-6)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (raised(x, 2.0), x + 1),
        lambda x: (*torch.ops.tilewright_test.both(x, x[0].clone()), x + 1),
    ],
    ids=["custom_op", "impl"],
)
def test_operands_that_an_operator_changes_are_seen_changed(function):
    x = torch.randn(3, 5)
    compiled = torch.compile(
        function, backend=tilewright, fullgraph=True, options={"fallback": "error", "threads": 1}
    )
    given, mine = x.clone(), x.clone()
    for each, want in zip(compiled(mine), function(given), strict=True):
        torch.testing.assert_close(each, want)
    torch.testing.assert_close(mine, given)


def test_why_python_has_no_trace_is_told():
    compiled = torch.compile(
        lambda x: (raised(x.t()[1:], 2.0), x + 1),
        backend=tilewright,
        fullgraph=True,
        options={"fallback": "error", "threads": 1},
    )
    with pytest.raises(Unsupported, match=r"no trace: .*mutation on a view chain"):
        compiled(torch.randn(3, 5))


@pytest.mark.parametrize("function", [by_numpy, drawn], ids=["numpy", "random"])
def test_python_that_does_more_than_call_operators_is_refused(function):
    with pytest.raises(Unsupported, match=r"reads tensors by numpy|random numbers"):
        import_program(Called(function), (torch.randn(3, 5),))


def test_what_is_lacking_inside_is_told_with_the_line_that_calls_it():
    model, x = Called(factored), torch.eye(3)
    with pytest.raises(Unsupported, match=r"operator aten\.linalg_ldl_factor_ex") as raised:
        import_program(model, (x,))
    assert raised.value.message.count("test_traced.py:") == 2  # of the call, and of what it does
    compiled = torch.compile(model, backend=tilewright, options={"fallback": "error"})
    with pytest.raises(Unsupported, match=r": operator aten\.linalg_ldl_factor_ex\n"):
        compiled(x)
    torch._dynamo.reset()
    with pytest.warns(UserWarning, match="no code for tilewright_test.factored.default: PyTorch"):
        made = torch.compile(model, backend=tilewright)(x)
    torch.testing.assert_close(made, model(x))


def test_python_that_sizes_may_decide_in_is_refused():
    model = Called(lambda x: halved_above(x, 0.25))
    with pytest.raises(Unsupported, match="of dynamic sizes"):
        import_program(model, (torch.randn(3, 5),), dynamic={"x": {0: "n"}})


def test_formulas_that_cannot_be_traced_are_named(monkeypatch):
    def fails(_):
        raise RuntimeError("u0 is not known\nmore of it")

    monkeypatch.setattr(program, "decomposed", fails)
    with pytest.raises(UserError, match="apart: RuntimeError: u0 is not known") as raised:
        import_program(Called(torch.neg), (torch.randn(3),))
    assert raised.value.code == "TW1125"
    assert "more of it" not in raised.value.message
