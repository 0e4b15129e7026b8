"""Several texts at a time, of which the likeliest as a whole is kept: beam search.

A text's score is the sum of its tokens' log probabilities over its length to the power of
`length_penalty`. Texts that have ended wait; the search is over when no open one can be better than
the worst of them, or, with `early_stopping`, as soon as there are enough.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

WORST = -1e9  # the score of copies of a prompt, which all would go on alike
ANY_LENGTH = "never"  # `early_stopping` that also asks what a longest text could reach


@dataclass(frozen=True)
class Beams:
    count: int
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    returned: int = 1  # texts for each that is given


@dataclass
class Search:
    """The texts of one prompt: open ones, and the best of those that have ended."""

    beams: Beams
    prompt: int  # tokens
    longest: int  # tokens
    scores: torch.Tensor = field(init=False)  # of open texts
    ended: list[tuple[float, torch.Tensor]] = field(default_factory=list)
    is_over: bool = False

    def __post_init__(self) -> None:
        self.scores = torch.tensor([0.0] + [WORST] * (self.beams.count - 1))

    def _score(self, total: float, length: int) -> float:
        made: float = total / (length - self.prompt) ** self.beams.length_penalty
        return made

    def _end(self, tokens: torch.Tensor, total: float) -> None:
        self.ended.append((self._score(total, len(tokens)), tokens))
        self.ended.sort(key=lambda each: -each[0])
        del self.ended[self.beams.count :]

    def step(
        self, texts: torch.Tensor, chances: torch.Tensor, ends: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of open texts [beams, tokens] and log probabilities [beams, words] of what comes next:
        which texts go on, and with what tokens."""
        count, words = self.beams.count, chances.shape[1]
        total = (self.scores[:, None] + chances).flatten()
        best = total.topk(min((1 + max(1, len(ends))) * count, len(total)))
        sources, tokens = best.indices // words, best.indices % words
        are_ends = torch.isin(tokens, ends)
        for at in range(count):
            if are_ends[at] and not self.is_over:
                text = torch.cat([texts[sources[at]], tokens[at : at + 1]])
                self._end(text, float(best.values[at]))
        open_ones = (~are_ends).nonzero()[:count, 0]
        self.scores = best.values[open_ones]
        length = texts.shape[1] + 1
        self.is_over = self.is_over or not self._can_improve(length)
        return sources[open_ones], tokens[open_ones]

    def _can_improve(self, length: int) -> bool:
        if len(self.ended) < self.beams.count:
            return True
        if self.beams.early_stopping is True:
            return False
        longest = self.beams.early_stopping == ANY_LENGTH and self.beams.length_penalty > 0
        best = self._score(float(self.scores[0]), self.longest if longest else length)
        return best > self.ended[-1][0]

    def best(self, texts: torch.Tensor) -> list[torch.Tensor]:
        """The texts with the best scores, open ones among them where the search was not over."""
        if not self.is_over:
            for text, score in zip(texts, self.scores, strict=True):
                self._end(text, float(score))
        return [text for _, text in self.ended[: self.beams.returned]]
