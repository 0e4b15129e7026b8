"""Buffers that calls change: states of the compiled module, in the memory of the model's own."""

import copy
import threading

import pytest
import torch
from torch import nn

import tilewright as tw


class Remembers(nn.Module):
    """Running statistics, a sum, a state of small floats, and a place that is replaced."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("sum", torch.zeros(3))
        self.register_buffer("late", torch.zeros(2, 3, dtype=torch.bfloat16))
        self.register_buffer("rows", torch.zeros(5, 3))

    def forward(self, x, place):
        self.sum.add_(x.sum(0))
        self.late.mul_(0.5)
        self.late.add_(x[:2].to(torch.bfloat16))
        self.rows.index_copy_(0, place, x[:1])
        return self.norm(x) + self.sum, self.late.float(), self.rows.sum()


@pytest.fixture(scope="module")
def pair():
    """A model in eager, and the same compiled."""
    eager = Remembers().train()
    given = (torch.randn(4, 3), torch.tensor([0]))
    return eager, tw.compile(copy.deepcopy(eager), args=given, threads=1)


def step(eager, compiled, at):
    x, place = torch.randn(4, 3), torch.tensor([at % 5])
    for made, want in zip(compiled(x, place), eager(x, place), strict=True):
        torch.testing.assert_close(made, want, rtol=1e-4, atol=1e-5)
    for name, state in compiled.states.items():
        torch.testing.assert_close(state, eager.get_buffer(name), rtol=1e-4, atol=1e-5)


def test_states_go_the_way_of_eager(pair):
    eager, compiled = pair
    for at in range(6):
        step(eager, compiled, at)
    begun = {name: state.clone() for name, state in Remembers().named_buffers()}
    compiled.reset()
    for name, state in compiled.states.items():
        torch.testing.assert_close(state, begun[name])
    eager.load_state_dict({**eager.state_dict(), **begun})
    step(eager, compiled, 0)


def test_a_fork_has_states_of_its_own(pair):
    eager, compiled = pair
    other, same = compiled.fork(), copy.deepcopy(eager)
    step(same, other, 3)
    for name, state in compiled.states.items():
        torch.testing.assert_close(state, eager.get_buffer(name), rtol=1e-4, atol=1e-5)
    assert not torch.equal(other.states["sum"], compiled.states["sum"])


def test_versions_of_states_count_up(pair):
    _, compiled = pair
    before = compiled.states["sum"]._version
    compiled(torch.randn(4, 3), torch.tensor([1]))
    assert compiled.states["sum"]._version > before


def test_calls_on_many_threads_lose_nothing(pair):
    _, compiled = pair
    own = compiled.fork()
    own.states["sum"].zero_()
    one = torch.ones(4, 3)

    def work():
        for _ in range(10):
            own(one, torch.tensor([2]))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert own.states["sum"].tolist() == [160.0] * 3


def test_a_saved_model_begins_with_the_states_that_were_compiled(pair, tmp_path):
    _, compiled = pair
    loaded = tw.load(compiled.save(tmp_path / "remembers.so"))
    assert list(loaded.states) == ["sum", "late", "rows", "norm_running_mean", "norm_running_var",
                                   "norm_num_batches_tracked"]  # fmt: skip
    assert loaded.states["norm_running_var"].tolist() == [1.0] * 3
    loaded(torch.ones(4, 3).numpy(), torch.tensor([1]).numpy())
    assert loaded.states["sum"].tolist() == [4.0] * 3
    assert loaded.states["norm_num_batches_tracked"] == 1


def test_current_states_are_saved(tmp_path):
    eager = Remembers().train()
    given = torch.randn(4, 3), torch.tensor([0])
    compiled = tw.compile(copy.deepcopy(eager), args=given, threads=1)
    step(eager, compiled, 0)
    loaded = tw.load(compiled.save(tmp_path / "states.so", states="current"))
    x, place = torch.randn(4, 3), torch.tensor([2])
    for made, want in zip(loaded(x, place), eager(x, place), strict=True):
        torch.testing.assert_close(torch.from_dlpack(made), want, rtol=1e-4, atol=1e-5)
    assert not tw.load(compiled.save(tmp_path / "first.so")).states["sum"].any()


def test_a_model_without_states_has_none_to_save(tmp_path):
    compiled = tw.compile(nn.Linear(3, 2), args=(torch.ones(1, 3),), threads=1)
    assert tw.load(compiled.save(tmp_path / "linear.so", states="current"))
