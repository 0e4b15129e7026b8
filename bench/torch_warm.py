"""Preloading of PyTorch and the compiler, for processes forked from this one.

Importing this module traces and compiles a small model, on one core: kernels are then compiled by
this process, which has no other threads and so can be forked.
"""

from __future__ import annotations

import os

import torch
from torch import nn

import tilewright as tw


class Small(nn.Module):
    """A window, a norm, a matrix and an activation: the families that models are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.window, self.norm = nn.Conv2d(3, 8, 3), nn.LayerNorm(4)
        self.heads = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.norm(self.window(x).relu().flatten(2))
        heads = self.heads(rows).unsqueeze(1)
        return nn.functional.scaled_dot_product_attention(heads, heads, heads)


def warm_up() -> None:
    cores = os.sched_getaffinity(0)
    threads = torch.get_num_threads()
    os.sched_setaffinity(0, {min(cores)})
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            given = {"x": torch.randn(2, 3, 4, 4)}
            axes = {"x": {0: "batch"}}
            tw.compile(Small(), kwargs=given, dynamic=axes, threads=1, cache=False)(**given)
    finally:
        torch.set_num_threads(threads)
        os.sched_setaffinity(0, cores)


warm_up()
