"""Drawing tokens: what may be drawn, and how often it is."""

import math

import pytest
import torch

from tilewright.base.errors import UserError
from tilewright.plugins.torch import Sampling

LOGITS = torch.tensor([[0.0, 3.0, 1.0, 2.0], [5.0, 1.0, 1.5, 0.0]])


def drawable(sampling):
    return [torch.isfinite(row).nonzero().flatten().tolist() for row in sampling.kept(LOGITS)]


def test_the_likeliest_few_stay():
    assert drawable(Sampling()) == [[0, 1, 2, 3], [0, 1, 2, 3]]
    assert drawable(Sampling(top_k=2)) == [[1, 3], [0, 2]]
    assert drawable(Sampling(top_k=9)) == drawable(Sampling())


def test_the_fewest_stay_that_reach_a_probability():
    first = LOGITS.softmax(-1)[0]
    assert drawable(Sampling(top_p=float(first[1]) + 0.01)) == [[1, 3], [0]]
    assert drawable(Sampling(top_p=1e-6)) == [[1], [0]]
    flat = Sampling(temperature=100.0, top_p=0.6)  # four tokens of about a quarter each
    assert [len(row) for row in drawable(flat)] == [3, 3]


def test_tokens_come_as_often_as_they_are_likely():
    sampling = Sampling(temperature=2.0, top_k=2, seed=7)
    source = sampling.generator()
    rows = LOGITS[:1].expand(4000, 4)
    drawn = sampling.draw(rows, source)
    assert drawn.shape == (4000, 1)
    share = float((drawn == 1).float().mean())
    assert abs(share - 1 / (1 + math.exp(-0.5))) < 0.03


def test_a_seed_repeats_and_no_seed_goes_on():
    seeded = Sampling(seed=1)
    rows = LOGITS.repeat(50, 1)
    assert torch.equal(*(seeded.draw(rows, seeded.generator()) for _ in range(2)))
    free = Sampling()
    assert not torch.equal(*(free.draw(rows, free.generator()) for _ in range(2)))


@pytest.mark.parametrize("wrong", [{"temperature": 0.0}, {"top_k": -1}, {"top_p": 0.0}])
def test_a_sampling_that_leaves_nothing_is_refused(wrong):
    with pytest.raises(UserError, match="TW4099"):
        Sampling(**wrong)
