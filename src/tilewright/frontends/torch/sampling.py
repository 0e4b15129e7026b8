"""How the next token of a text is drawn from its logits.

    Sampling(temperature=0.8, top_k=50, top_p=0.95, seed=1)

As transformers does it: logits are divided by the temperature, the `top_k` likeliest stay, of these
the fewest whose probabilities reach `top_p`; one of what is left is drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tilewright.base.errors import UserError

NEVER = float("-inf")  # the logit of a token that is not drawn


@dataclass(frozen=True)
class Sampling:
    """What tokens may be drawn, and how freely.

    Examples:
        >>> from tilewright.plugins.torch import Sampling
        >>> Sampling(temperature=0.8, top_k=50)
        Sampling(temperature=0.8, top_k=50, top_p=1.0, seed=None)
    """

    temperature: float = 1.0  # below 1 the likeliest tokens gain
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    seed: int | None = None  # None: PyTorch's own generator goes on

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            problem = f"a temperature of {self.temperature}"
        elif self.top_k < 0:
            problem = f"the {self.top_k} likeliest tokens"
        elif not 0 < self.top_p <= 1:
            problem = f"a probability of {self.top_p}"
        else:
            return
        help = (
            "temperature > 0, top_k >= 0, 0 < top_p <= 1; without sampling the likeliest is taken"
        )
        raise UserError("TW4099", f"no token can be drawn by {problem}", help=help)

    def generator(self) -> torch.Generator | None:
        """Where random numbers of one text come from; None: from PyTorch's own generator."""
        return None if self.seed is None else torch.Generator().manual_seed(self.seed)

    def kept(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits [..., words], of which those that are not drawn are minus infinity."""
        left = logits / self.temperature
        if 0 < self.top_k < left.shape[-1]:
            least = left.topk(self.top_k).values[..., -1:]
            left = left.masked_fill(left < least, NEVER)
        if self.top_p < 1:
            ordered, places = left.sort(descending=True)
            chances = ordered.softmax(-1)
            before = chances.cumsum(-1) - chances  # the likeliest has nothing before it
            cut = torch.empty_like(ordered, dtype=torch.bool)
            left = left.masked_fill(cut.scatter(-1, places, before >= self.top_p), NEVER)
        return left

    def draw(self, logits: torch.Tensor, source: torch.Generator | None) -> torch.Tensor:
        """A token [batch, 1] for each row of logits [batch, words]."""
        return self.kept(logits).softmax(-1).multinomial(1, generator=source)
