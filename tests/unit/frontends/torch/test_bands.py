"""Masks that a program computes from positions, as sliding windows of attention."""

import numpy as np
import torch

from tilewright.base.target import Target
from tilewright.driver.compile import compile as compile_model
from tilewright.driver.optimize import load_graph, optimize
from tilewright.driver.options import Options
from tilewright.graph.visit import walk


class Window(torch.nn.Module):
    """Queries see 20 keys before them, of the same part of the sequence."""

    def forward(self, x):
        at = torch.arange(x.shape[2])[None]
        step = torch.diff(at, prepend=at[:, :1] - 1, dim=-1)
        part = (step != 1).cumsum(-1)
        query, key = at[:, :, None], at[:, None]
        seen = (key <= query) & (key > query - 21) & (part[:, :, None] == part[:, None])
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=seen[:, None])


def test_a_window_of_any_length_is_said_by_attributes():
    length = torch.export.Dim("length", min=2, max=200)
    x = torch.randn(1, 2, 40, 16, generator=torch.Generator().manual_seed(0))
    program = torch.export.export(Window(), (x,), dynamic_shapes=({2: length},))
    made = optimize(load_graph(program), Target.parse("cpu"), Options(threads=1))
    (attention,) = [node for node in walk(made.main) if node.op == "attention"]
    assert len(attention.inputs) == 3
    assert attention["causal"]
    assert attention["window"] == (20, -1)
    compiled = compile_model(program, threads=1)
    for size in (3, 40, 130):
        x = torch.randn(1, 2, size, 16, generator=torch.Generator().manual_seed(size))
        got = compiled(x)
        np.testing.assert_allclose(np.asarray(got), Window()(x).numpy(), rtol=1e-4, atol=1e-5)
