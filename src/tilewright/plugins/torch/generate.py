"""Text generation by a language model, without other uses of it.

    text = Generator(model, length=96)
    tokens = text.generate(prompt, 64)

`tilewright.compile(model).generate` makes one internally, for the given length and batch.
"""

from __future__ import annotations

import functools
from typing import Any

from tilewright.driver.compile import compile
from tilewright.frontends.torch import generate


class Generator(generate.Generator):
    """A language model of transformers with its key-value cache."""

    def __init__(
        self, model: Any, *, length: int, batch: int = 1, threads: int = 0, cache: bool = True
    ) -> None:
        how = functools.partial(compile, threads=threads, cache=cache)
        super().__init__(model, how, length=length, batch=batch)
