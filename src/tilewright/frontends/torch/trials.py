"""Whether a decoder computes what its model does: a few tokens of the model's own `generate`.

trial = Trial(model, batch, source, encoded)
decoder = trial.decoder(Fixed, length)      refused, where the model's own code fails
trial.check(reader, mask)                   and where it computes something else
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from tilewright.base.errors import TilewrightError
from tilewright.frontends.torch.decoders import (
    PROMPT,
    Decoder,
    Encoded,
    Reader,
    Source,
    refused,
)

STEPS = 3  # tokens that are compared


class Trial:
    """What a model writes by itself, in eager, behind an example."""

    def __init__(self, model: Any, batch: int, source: Source, example: Encoded | None) -> None:
        self.model, self.batch, self.source, self.example = model, batch, source, example
        words = model.config.get_text_config(decoder=True).vocab_size
        self.tokens = torch.arange(PROMPT).expand(batch, -1) % words

    def decoder(self, kind: type[Decoder], length: int) -> Decoder:
        """A decoder of a kind; whatever the model's own code raises is told."""
        try:
            return kind(self.model, self.batch, length, self.source, self.example).eval()
        except TilewrightError:
            raise
        except Exception as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> TilewrightError:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        return refused(self.model, f"does not run as a decoder: {reason}")

    @functools.cache  # noqa: B019
    def _wanted(self, is_masked: bool) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        """What the model writes, and the logits of each token of that."""
        from transformers import GenerationConfig
        from transformers.generation import GenerationMixin

        how = GenerationConfig(
            max_new_tokens=STEPS, do_sample=False, num_beams=1, num_return_sequences=1,
            decoder_start_token_id=0, output_logits=True, return_dict_in_generate=True)  # fmt: skip
        mask = self._mask(is_masked)
        # Of a source, a mask may have other places than what the encoder makes of it.
        given: dict[str, Any] = {}
        if is_masked or self.example is None:
            given["attention_mask"] = mask
        if self.example is None:
            given["inputs"] = self.tokens
        else:
            given["encoder_outputs"] = self.source.outputs(self.example[0])
            given["decoder_input_ids"] = self.tokens
        made: Any = GenerationMixin.generate(self.model, generation_config=how, **given)
        return made.sequences, made.logits

    def _mask(self, is_masked: bool) -> torch.Tensor:
        """Of tokens, or of a source: the first text is shorter."""
        count = PROMPT if self.example is None else self.example[0][0].shape[1]
        mask = torch.ones(self.batch, count, dtype=torch.int64)
        if is_masked:
            mask[0, slice(2) if self.example is None else -1] = 0
        return mask

    def check(self, reader: Reader, mask: torch.Tensor | None) -> None:
        """Refuse a decoder that computes something else than the model with a cache of its own:
        some derive masks or positions from the length of the keys. It is read in the way of a
        `reader`."""
        decoder = reader.decoder
        try:
            with torch.no_grad():
                is_same = self._is_same(reader, mask)
        except TilewrightError:
            raise
        except Exception as error:
            raise self._failed(error) from error
        finally:
            for state in decoder.buffers(recurse=False):
                state.zero_()
        if not is_same:
            raise refused(self.model, "gives other results")

    def _is_same(self, given: Reader, mask: torch.Tensor | None) -> bool:
        text, wanted = self._wanted(mask is not None)
        named: dict[str, Any] = {}
        if mask is not None:
            own = self._mask(True)
            named["mask"] = torch.cat([own, mask[:, own.shape[1] :]], 1)
        if self.example is not None:
            named |= {"hidden": self.example[0], "cross": self.example[1]}
        decoder = given.decoder
        graphs = {"step": decoder, "prompt": decoder.at_begin(), "first": decoder.at_begin()}
        reader = Reader(decoder, graphs.__getitem__, decoder.buffers)
        reader.has_prompt, reader.forgets = given.has_prompt, given.forgets
        tokens = self.tokens
        for at, want in enumerate(wanted):
            got = reader.read(tokens, named)[:, -1]
            spread = float(want.max() - want.min())
            tolerance = spread * torch.finfo(self.model.dtype).eps ** 0.5
            if not torch.allclose(got.to(want.dtype), want, 0.0, tolerance, equal_nan=True):
                return False
            tokens = text[:, PROMPT + at : PROMPT + at + 1]
        return True
