"""Control flow, assertions and sizes that only the data tells."""

import numpy as np
import pytest
import torch
from torch._higher_order_ops.map import map as hop_map
from torch._higher_order_ops.scan import scan as hop_scan
from torch._higher_order_ops.while_loop import while_loop

from tilewright.base.errors import ExecutionError, Unsupported
from tilewright.frontends.torch import import_program
from tilewright.frontends.torch.tensors import array_of
from tilewright.graph import interpret
from tilewright.graph.verify import verify


class Call(torch.nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def forward(self, *args):
        return self.fn(*args)


def run(function, *inputs, example=None):
    imported = import_program(Call(function), example or inputs)
    verify(imported.module)
    return interpret(imported.module, *(array_of(x) for x in inputs), check=True)


def check(function, *inputs, example=None):
    want = function(*inputs)
    want = want if isinstance(want, (tuple, list)) else (want,)
    for made, expected in zip(run(function, *inputs, example=example), want, strict=True):
        np.testing.assert_allclose(made, expected.numpy(), rtol=1e-6)


def branches(x):
    return torch.cond(x.sum() > 0, lambda y: y * 2 + 1, lambda y: y - 1, (x,))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_cond_takes_the_branch_that_the_data_asks_for(sign):
    check(branches, sign * torch.ones(3), example=(torch.ones(3),))


def test_parts_begin_where_the_data_says():
    def parts(x, at):
        return torch.tensor_split(x, at)

    check(parts, torch.arange(12.0).reshape(6, 2), torch.tensor([1, 4]))


def test_a_truth_is_taken_out_of_a_tensor():
    made = run(lambda x: (x.any().item(), x + 1), torch.tensor([0, 1]))
    assert made[0] == 1


def test_while_loop_stops_where_its_condition_does():
    def loop(i, x):
        return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 2), (i, x))

    check(loop, torch.tensor(2), torch.ones(3))


def test_scan_carries_a_state_and_stacks_results():
    def step(state, x):
        total = state + x
        return total, total * 2

    check(lambda start, xs: hop_scan(step, start, xs), torch.zeros(2), torch.randn(4, 2))


def test_map_goes_over_the_first_axis():
    check(lambda xs, y: hop_map(lambda x, y: x * y + 1, xs, y), torch.randn(4, 2), torch.randn(2))


def test_a_mask_gives_as_many_elements_as_it_holds():
    check(lambda x: (x[x > 0], (x > 0).nonzero()), torch.tensor([1.0, -1.0, 2.0]))


def test_a_number_of_the_data_is_a_size():
    def grown(n):
        count = n.item()
        torch._check(count >= 0)
        return torch.ones(count) * 3

    check(grown, torch.tensor(4), example=(torch.tensor(7),))


def test_an_assertion_that_fails_stops_the_run():
    def guarded(n):
        count = n.item()
        torch._check(count <= 5)
        torch._check(count >= 0)
        return torch.ones(count)

    run(guarded, torch.tensor(4))
    with pytest.raises((ExecutionError, ValueError)):
        run(guarded, torch.tensor(9), example=(torch.tensor(4),))


def test_everything_unsupported_is_reported_at_once_with_lines():
    with pytest.raises(Unsupported) as caught:
        run(lambda x: (torch.linalg.ldl_factor(x)[0], torch.linalg.eigvals(x)), torch.eye(3))
    message = str(caught.value)
    assert "linalg_ldl_factor" in message
    assert "linalg_eig" in message
    assert "test_control.py" in message


@pytest.mark.parametrize("flag", [True, False])
def test_a_boolean_tells_a_number(flag):
    (made,) = run(lambda x: x.item(), torch.tensor(flag))
    assert made == flag


@pytest.mark.parametrize("place", [0, 4, -1])
def test_one_place_of_an_axis_is_replaced(place):
    x, new, index = torch.randn(2, 5, 3), torch.randn(2, 1, 3), torch.tensor([place])
    put = torch.ops.aten.index_put.default
    (made,) = run(lambda x, i, v: put(x, [None, i], v), x, index, new)
    np.testing.assert_array_equal(made, put(x, [None, index], new).numpy())


def test_a_place_outside_of_its_axis_is_refused():
    put = torch.ops.aten.index_put.default
    example = (torch.randn(2, 5, 3), torch.tensor([1]), torch.randn(2, 1, 3))
    outside = (example[0], torch.tensor([7]), example[2])
    with pytest.raises(ExecutionError, match="outside of its axis"):
        run(lambda x, i, v: put(x, [None, i], v), *outside, example=example)
