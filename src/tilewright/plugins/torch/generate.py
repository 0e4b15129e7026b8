"""Text from a language model: keys and values are state of the compiled model.

    text = Generator(model, length=96)
    tokens = text.generate(prompt, 64)       greedy; prompt and result are [batch, tokens]
    tokens = text.generate(prompt, 64, sampling=Sampling(top_p=0.9))

Two graphs share the state: one for prompts of any length, one for a token at a time. transformers'
own static cache holds the keys and values, so any model that it serves works.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from tilewright.base.errors import UserError
from tilewright.driver.compile import compile
from tilewright.frontends.torch.calling import TorchModule
from tilewright.plugins.torch.sampling import Sampling

STATE = ("keys", "values", "cumulative_length")  # of each layer, as transformers names them
PROMPT = 4  # tokens of the example that prompts are traced with


class Cached(torch.nn.Module):
    """A model whose keys and values are buffers: what torch.export sees a call change."""

    def __init__(self, model: Any, batch: int, length: int) -> None:
        from transformers.cache_utils import (  # takes seconds to import
            StaticCache,
            StaticLayer,
            StaticSlidingWindowLayer,
        )

        super().__init__()
        self.model = model
        config = model.config.get_text_config()
        self.cache: Any = StaticCache(max_cache_len=length, config=config)
        layers = self.cache.layers
        for at, layer in enumerate(layers):  # windows slide by control flow over data
            if isinstance(layer, StaticSlidingWindowLayer):
                layers[at] = StaticLayer(length)
        with torch.no_grad():  # the first use of a cache gives its layers their memory
            first = torch.zeros(batch, 1, dtype=torch.int64)
            model(input_ids=first, past_key_values=self.cache, use_cache=True)
        for at, layer in enumerate(layers):
            for name in STATE:
                self.register_buffer(f"{name}_{at}", getattr(layer, name).zero_())

    def forward(self, tokens: torch.Tensor, place: torch.Tensor) -> Any:
        for at, layer in enumerate(self.cache.layers):
            layer.keys, layer.values = (getattr(self, f"{name}_{at}") for name in STATE[:2])
            layer.cumulative_length = getattr(self, f"{STATE[2]}_{at}")
            layer.cumulative_length.copy_(place[0])
        made = self.model(input_ids=tokens, past_key_values=self.cache, use_cache=True)
        return made.logits


class Generator:
    """A causal language model of transformers that remembers what it has read."""

    def __init__(
        self, model: Any, *, length: int, batch: int = 1, threads: int = 0, cache: bool = True
    ) -> None:
        self.length, self.batch, self.position = length, batch, 0
        wrapped = Cached(model, batch, length).eval()
        shared: dict[str, Any] = {"threads": threads, "cache": cache}
        self.prompt = self._compiled(wrapped, PROMPT, True, shared)
        self.step = self._compiled(wrapped, 1, False, shared)
        for name in self.step.structure.states:
            self.step.structure.states[name] = self.prompt.structure.states[name]

    def _compiled(
        self, wrapped: Any, count: int, any_length: bool, options: dict[str, Any]
    ) -> TorchModule:
        given = (torch.zeros(self.batch, count, dtype=torch.int64), torch.arange(count))
        axes = {"tokens": {1: "count"}, "place": {0: "count"}, "count": (2, self.length)}
        with torch.no_grad():
            made = compile(wrapped, args=given, dynamic=axes if any_length else None, **options)
        assert isinstance(made, TorchModule)
        return made

    @property
    def states(self) -> Iterable[torch.Tensor]:
        """Keys, values and how many there are."""
        return self.prompt.structure.states.values()

    def reset(self) -> None:
        """Forget all that was read."""
        self.position = 0
        for state in self.states:
            state.zero_()

    def read(self, tokens: torch.Tensor) -> torch.Tensor:
        """The logits behind each of some tokens [batch, tokens], which are remembered."""
        batch, count = tokens.shape
        if batch != self.batch or self.position + count > self.length:
            raise UserError(
                "TW4046",
                f"{count} tokens of {batch} texts behind {self.position} do not fit "
                f"{self.length} of {self.batch}",
                help="make the Generator with more length, or of another batch",
            )
        place = torch.arange(self.position, self.position + count)
        self.position += count
        called = self.step if count == 1 else self.prompt
        made: torch.Tensor = called(tokens, place)
        return made

    def generate(
        self,
        prompt: torch.Tensor,
        count: int,
        *,
        end: int | None = None,
        sampling: Sampling | None = None,
    ) -> torch.Tensor:
        """The prompt and, behind it, up to `count` tokens, each the likeliest there, or drawn.

        A text that has come to its `end` goes on with that token while others are written.
        """
        self.reset()
        source = None if sampling is None else sampling.generator()
        tokens = [prompt]
        logits = self.read(prompt)
        ended = torch.zeros(len(prompt), 1, dtype=torch.bool)
        for _ in range(count):
            last = logits[:, -1]
            best = last.argmax(-1, True) if sampling is None else sampling.draw(last, source)
            if end is not None:
                best = best.masked_fill(ended, end)
                ended |= best == end
            tokens.append(best)
            if bool(ended.all()):
                break
            if len(tokens) <= count:
                logits = self.read(best)
        return torch.cat(tokens, dim=1)
