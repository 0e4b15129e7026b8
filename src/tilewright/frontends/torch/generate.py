"""Text from a language model: keys and values are state of the compiled model.

    text = tw.compile(model)
    tokens = text.generate(prompt, max_new_tokens=64)      prompt and result are [batch, tokens]
    tokens = text.generate(prompt, sampling=Sampling(top_p=0.9))
    tokens = text.generate(prompts, attention_mask=mask, num_beams=4)      padded on the left

Two graphs share the state: one for prompts of any length, one for a token at a time. transformers'
own static cache holds the keys and values, so any model that it serves works. Of a model with an
encoder a third graph makes what each layer of the decoder takes from the source, once for a text.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from tilewright.base.errors import TilewrightError, Unsupported, UserError
from tilewright.frontends.torch.beams import Search
from tilewright.frontends.torch.calling import Structure, TorchModule
from tilewright.frontends.torch.examples import examples_of, is_of_transformers
from tilewright.frontends.torch.options import Options
from tilewright.frontends.torch.sampling import Sampling
from tilewright.runtime.module import Module

Compile = Callable[..., Module]  # as tilewright.compile, of one target and its options
Encoded = tuple[torch.Tensor, tuple[torch.Tensor, ...]]  # the source; keys and values of it

STATE = ("keys", "values", "cumulative_length")  # of each layer, as transformers names them
PROMPT = 4  # tokens of the example that prompts are traced with
ROOM = 64  # tokens, at least, that there is memory for


def can_generate(model: Any) -> bool:
    """Whether a model is one of transformers that writes text."""
    return is_of_transformers(model) and hasattr(model, "can_generate") and model.can_generate()


class Encoder(torch.nn.Module):
    """The source as the decoder of a model takes it: itself, and keys and values of each layer."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: torch.Tensor, mask: torch.Tensor | None = None) -> Encoded:
        from transformers.cache_utils import DynamicCache, EncoderDecoderCache

        named = {} if mask is None else {"attention_mask": mask}
        hidden: torch.Tensor = self.model.get_encoder()(source, **named)[0]
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        # What is made of the token itself, nobody asks for: of the run stays what fills the cache.
        first = torch.zeros(source.shape[0], 1, dtype=torch.int64)
        _decoded(self.model, first, hidden, cache)
        layers = cache.cross_attention_cache.layers
        return hidden, tuple(kept for layer in layers for kept in (layer.keys, layer.values))


class Decoder(torch.nn.Module):
    """A model whose keys and values are buffers: what torch.export sees a call change."""

    def __init__(self, model: Any, batch: int, length: int, encoded: Encoded | None) -> None:
        from transformers.cache_utils import (  # takes seconds to import
            StaticCache,
            StaticLayer,
            StaticSlidingWindowLayer,
        )

        super().__init__()
        self.model = model
        taken = inspect.signature(model.forward).parameters
        self.takes_positions = "position_ids" in taken
        # What comes next is told by the last token: of the others no logits are made.
        self.last_alone = {"logits_to_keep": 1} if "logits_to_keep" in taken else {}
        config = model.config.get_text_config(decoder=True)
        self.words = config.vocab_size
        self.cache: Any = StaticCache(max_cache_len=length, config=config)
        layers = self.cache.layers
        for at, layer in enumerate(layers):  # windows slide by control flow over data
            if isinstance(layer, StaticSlidingWindowLayer):
                layers[at] = StaticLayer(length)
        if not all(type(layer) is StaticLayer for layer in layers):
            kinds = sorted({type(layer).__name__ for layer in layers} - {StaticLayer.__name__})
            raise Unsupported(
                "TW4035",
                f"{type(model).__name__} remembers by {', '.join(kinds)}, not by keys and values",
                help="its own generate() runs it in eager, or by torch.compile",
            )
        with torch.no_grad():  # the first use of a cache gives its layers their memory
            self._run(torch.zeros(batch, 1, dtype=torch.int64), *(encoded or ()))
        if any(layer.keys is None for layer in layers):
            raise Unsupported(
                "TW4035",
                f"{type(model).__name__} does not remember by keys and values",
                help="its own generate() runs it in eager, or by torch.compile",
            )
        for at, layer in enumerate(layers):
            for name in STATE:
                self.register_buffer(f"{name}_{at}", getattr(layer, name).zero_())

    def check(self, batch: int, encoded: Encoded | None) -> None:
        """Refuse a model that computes something else with a static cache than with a growing one:
        some derive masks or positions from the length of the keys."""
        tokens = torch.arange(PROMPT + 1).expand(batch, -1) % self.words
        places = torch.arange(PROMPT + 1)
        parts = slice(0, PROMPT), slice(PROMPT, PROMPT + 1)
        grown = _growing(self.model, encoded)
        for part in parts:
            want = grown(tokens[:, part], places[part])
            got = self(tokens[:, part], places[part], *(encoded or ()))
        for state in self.buffers(recurse=False):
            state.zero_()
        spread = float(want.max() - want.min())
        tolerance = spread * torch.finfo(want.dtype).eps ** 0.5
        if not torch.allclose(got, want, rtol=0.0, atol=tolerance, equal_nan=True):
            raise Unsupported(
                "TW4035",
                f"{type(self.model).__name__} gives other results with a cache of fixed length",
                help="its own generate() runs it in eager, or by torch.compile",
            )

    def forward(
        self,
        tokens: torch.Tensor,
        place: torch.Tensor,
        hidden: torch.Tensor | None = None,
        cross: Sequence[torch.Tensor] = (),
        mask: torch.Tensor | None = None,
    ) -> Any:
        for at, layer in enumerate(self.cache.layers):
            layer.keys, layer.values = (getattr(self, f"{name}_{at}") for name in STATE[:2])
            layer.cumulative_length = getattr(self, f"{STATE[2]}_{at}")
            layer.cumulative_length.copy_(place[0])
        return self._run(tokens, hidden, cross, mask, place).logits[:, -1:]

    def _run(
        self,
        tokens: torch.Tensor,
        hidden: torch.Tensor | None = None,
        cross: Sequence[torch.Tensor] = (),
        mask: torch.Tensor | None = None,
        place: torch.Tensor | None = None,
    ) -> Any:
        if hidden is None:
            named: dict[str, Any] = dict(self.last_alone)
            if mask is not None:
                named["attention_mask"] = mask
            if place is not None and self.takes_positions:
                named["position_ids"] = _positions(place, len(tokens), mask)
            return self.model(input_ids=tokens, past_key_values=self.cache, use_cache=True, **named)
        from transformers.cache_utils import DynamicCache, DynamicLayer, EncoderDecoderCache

        source = DynamicCache()
        for keys, values in zip(cross[::2], cross[1::2], strict=True):
            layer = DynamicLayer()
            layer.lazy_initialization(keys, values)
            layer.keys, layer.values = keys, values
            source.layers.append(layer)
        cache = EncoderDecoderCache(self.cache, source)
        cache.is_updated = dict.fromkeys(range(len(source.layers)), True)
        return _decoded(self.model, tokens, hidden, cache, mask)


def _positions(place: torch.Tensor, batch: int, mask: torch.Tensor | None) -> torch.Tensor:
    """Positions as transformers' own generate() gives them: what pads is at no place of a text."""
    if mask is None:
        return place.expand(batch, -1)
    return (mask.cumsum(1) - 1).clamp(min=0).index_select(1, place)


def _growing(
    model: Any, encoded: Encoded | None
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """The model with a cache of its own that grows: tokens, their places -> logits of the last."""
    from transformers.cache_utils import DynamicCache, EncoderDecoderCache

    cache: Any = DynamicCache(config=model.config.get_text_config(decoder=True))
    if encoded is not None:
        cache = EncoderDecoderCache(cache, DynamicCache())
    takes_positions = "position_ids" in inspect.signature(model.forward).parameters

    def run(tokens: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        if encoded is None:
            named: dict[str, Any] = {"past_key_values": cache, "use_cache": True}
            if takes_positions:
                named["position_ids"] = _positions(place, len(tokens), None)
            made = model(input_ids=tokens, **named)
        else:
            made = _decoded(model, tokens, encoded[0], cache)
        logits: torch.Tensor = made.logits[:, -1:]
        return logits

    return run


def _decoded(
    model: Any, tokens: torch.Tensor, hidden: torch.Tensor, cache: Any, mask: Any = None
) -> Any:
    from transformers.modeling_outputs import BaseModelOutput

    encoded = BaseModelOutput(last_hidden_state=hidden)
    named = {} if mask is None else {"attention_mask": mask}
    return model(
        decoder_input_ids=tokens, encoder_outputs=encoded, past_key_values=cache, use_cache=True,
        **named)  # fmt: skip


class Generator:
    """A language model of transformers that remembers what it has read.

    One that is `padded` takes texts of several lengths, those of a decoder padded on the left: a
    mask [batch, tokens] tells what is text.
    """

    def __init__(
        self, model: Any, compile: Compile, *, length: int, batch: int = 1, padded: bool = False
    ) -> None:
        self.length, self.batch, self.position = length, batch, 0
        self.encoder: Module | None = None
        self.encoded: Encoded | None = None
        self.mask: torch.Tensor | None = None  # of the prompt and behind it, or of the source
        example: Encoded | None = None
        if model.config.is_encoder_decoder:
            self.encoder, example = _encoder(model, compile, batch, padded)
        if padded:
            kept = length if example is None else example[0].shape[1]
            self.mask = torch.ones(batch, kept, dtype=torch.int64)
        with torch.no_grad():
            decoder = _checked(model, batch, length, example)
            self.prompt = self._compiled(decoder, compile, PROMPT, example)
            self.step = self._compiled(decoder, compile, 1, example)
        for name in self.step.structure.states:
            self.step.structure.states[name] = self.prompt.structure.states[name]

    def _compiled(
        self, decoder: Decoder, compile: Compile, count: int, encoded: Encoded | None
    ) -> Any:
        given = (torch.zeros(self.batch, count, dtype=torch.int64), torch.arange(count))
        axes: dict[str, Any] = {}
        if count > 1:
            axes = {"tokens": {1: "count"}, "place": {0: "count"}, "count": (2, self.length)}
        if encoded is not None and _is_text(decoder.model):
            axes |= {"hidden": {1: "source"}, "cross": {2: "source"}}
            axes |= {} if self.mask is None else {"mask": {1: "source"}}
        named = {} if self.mask is None else {"mask": self.mask}
        args = (*given, *(encoded or ()))
        return compile(decoder, args=args, kwargs=named, dynamic=axes or None)

    @property
    def states(self) -> Iterable[torch.Tensor]:
        """Keys, values and how many there are."""
        return self.prompt.structure.states.values()

    def reset(self) -> None:
        """Forget all that was read."""
        self.position = 0
        for state in self.states:
            state.zero_()

    def encode(self, source: torch.Tensor, mask: torch.Tensor | None = None) -> None:
        """Read what the text is made from: another text, or sound."""
        assert self.encoder is not None
        self.mask = mask
        made: Any = self.encoder(source, *(() if mask is None else (mask,)))
        self.encoded = made

    def reorder(self, rows: torch.Tensor) -> None:
        """Go on with what some texts of the batch have read in the places of others."""
        for name, state in self.prompt.structure.states.items():
            if name.startswith(STATE[:2]):
                state.copy_(state[rows])

    def read(self, tokens: torch.Tensor) -> torch.Tensor:
        """The logits [batch, 1, words] behind the last of some tokens [batch, tokens], which are
        remembered."""
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
        named = {} if self.mask is None else {"mask": self.mask}
        made: torch.Tensor = called(tokens, place, *(self.encoded or ()), **named)
        return made.to(tokens.device)  # a GPU computes them, the host chooses

    def generate(
        self,
        prompt: torch.Tensor,
        count: int,
        *,
        end: int | Sequence[int] | None = None,
        sampling: Sampling | None = None,
        pad: int | None = None,
    ) -> torch.Tensor:
        """The prompt and, behind it, up to `count` tokens, each the likeliest there, or drawn.

        A text that has come to its `end`, one of these tokens, goes on with `pad`, or with the
        first of them, while others are written.
        """
        ends = () if end is None else (end,) if isinstance(end, int) else tuple(end)
        return self.write(prompt, Options(count, ends, pad, sampling))

    def write(
        self, prompt: torch.Tensor, options: Options, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The prompt and what comes behind it."""
        self.reset()
        if self.encoder is None and self.mask is not None:
            self.mask.fill_(1)
            if mask is not None:
                self.mask[:, : mask.shape[1]] = mask
        run = self._searched if options.beams else self._written
        return run(prompt.cpu(), options).to(prompt.device)

    def _written(self, tokens: torch.Tensor, options: Options) -> torch.Tensor:
        sampling = options.sampling
        source = None if sampling is None else sampling.generator()
        ends = torch.tensor(options.ends)
        logits = self.read(tokens) if options.count else None
        ended = torch.zeros(len(tokens), 1, dtype=torch.bool)
        for left in reversed(range(options.count)):
            assert logits is not None
            last = options.limits.kept(logits[:, -1], tokens, options.ends)
            best = last.argmax(-1, True) if sampling is None else sampling.draw(last, source)
            if len(ends):
                pad = options.ends[0] if options.pad is None else options.pad
                best = best.masked_fill(ended, pad)
                ended |= torch.isin(best, ends)
            tokens = torch.cat([tokens, best], dim=1)
            if bool(ended.all()):
                break
            if left:
                logits = self.read(best)
        return tokens

    def _searched(self, tokens: torch.Tensor, options: Options) -> torch.Tensor:
        """The likeliest texts; the rows of one prompt lie behind each other."""
        beams, ends = options.beams, torch.tensor(options.ends)
        assert beams is not None
        begin = tokens.shape[1]
        starts = range(0, len(tokens), beams.count)
        searches = [Search(beams, begin, begin + options.count) for _ in starts]
        logits = self.read(tokens) if options.count else None
        for left in reversed(range(options.count)):
            assert logits is not None
            chances = logits[:, -1].log_softmax(-1)
            chances = options.limits.kept(chances, tokens, options.ends)
            sources, best = [], []
            for search, at in zip(searches, starts, strict=True):
                own = slice(at, at + beams.count)
                chosen, following = search.step(tokens[own], chances[own], ends)
                sources.append(chosen + at)
                best.append(following)
            rows, following = torch.cat(sources), torch.cat(best)[:, None]
            tokens = torch.cat([tokens[rows], following], dim=1)
            if all(search.is_over for search in searches):
                break
            if left:
                self.reorder(rows)
                logits = self.read(following)
        found = [text for search, at in zip(searches, starts, strict=True)
                 for text in search.best(tokens[at : at + beams.count])]  # fmt: skip
        pad = options.pad if options.pad is not None else (*options.ends, 0)[0]
        return torch.nn.utils.rnn.pad_sequence(found, batch_first=True, padding_value=pad)


def _checked(model: Any, batch: int, length: int, encoded: Encoded | None) -> Decoder:
    """The decoder of a model that a cache of fixed length serves."""
    try:
        decoder = Decoder(model, batch, length, encoded).eval()
        decoder.check(batch, encoded)
    except TilewrightError:
        raise
    except Exception as error:  # whatever the model's own code raises
        reason = str(error).partition("\n")[0]
        raise Unsupported(
            "TW4035",
            f"{type(model).__name__} does not run with a cache of fixed length: {reason}",
            help="its own generate() runs it in eager, or by torch.compile",
        ) from error
    return decoder


def _is_text(model: Any) -> bool:
    return bool(model.main_input_name == "input_ids")


def _encoder(model: Any, compile: Compile, batch: int, padded: bool) -> tuple[Module, Encoded]:
    """A model's encoder, compiled, and what it makes of an example."""
    examples = examples_of(model, batch)
    if examples is None:
        raise Unsupported("TW4035", f"{type(model).__name__} reads {model.main_input_name}")
    given = examples.kwargs[model.main_input_name]
    encoder = Encoder(model).eval()
    args = (given, torch.ones(given.shape[:2], dtype=torch.int64)) if padded else (given,)
    axes = {"source": {1: "source"}} if _is_text(model) else None
    if axes and padded:
        axes["mask"] = {1: "source"}
    with torch.no_grad():
        return compile(encoder, args=args, dynamic=axes), encoder(*args)


class LanguageModule(TorchModule):
    """A compiled model that also writes text. What that needs is compiled when it is asked for."""

    def __init__(self, inner: Module, structure: Structure, model: Any, compile: Compile) -> None:
        super().__init__(inner, structure)
        self.model, self.compile = model, compile
        self.generators: dict[tuple[int, bool], Generator] = {}  # by batch, and whether padded

    def generate(
        self,
        inputs: torch.Tensor,
        *,
        sampling: Sampling | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        **options: Any,
    ) -> torch.Tensor:
        """Tokens [batch, tokens] behind a prompt, or those that a source is turned into.

        The likeliest at each place, or by `sampling`; else as the model's own generation config and
        `options`, by the names of transformers, say: `max_new_tokens`, `num_beams`, `eos_token_id`
        and so on. Prompts of several lengths are padded on the left, sources on the right, and
        `attention_mask` tells what is text. Models with an encoder begin with `decoder_input_ids`,
        or as their config says.
        """
        known = self.model.generation_config
        prompt = inputs
        if self.model.config.is_encoder_decoder:
            first = options.get("decoder_start_token_id", known.decoder_start_token_id)
            begin = torch.full((len(inputs), 1), 0 if first is None else first)
            prompt = begin if decoder_input_ids is None else decoder_input_ids
        wanted = Options.of(known, options, prompt.shape[1], sampling)
        mask = None if attention_mask is None else self._checked(attention_mask, inputs)
        times = wanted.beams.count if wanted.beams else wanted.copies
        prompt, inputs = (x.repeat_interleave(times, 0) for x in (prompt, inputs))
        mask = None if mask is None else mask.repeat_interleave(times, 0)
        text = self._generator(len(prompt), prompt.shape[1] + wanted.count, mask is not None)
        if text.encoder is not None:
            text.encode(inputs, mask)
        return text.write(prompt, wanted, mask)

    def _checked(self, mask: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor | None:
        """A mask of what can be padded: sources that are texts, and prompts, on the left. None
        where nothing is."""
        if mask.shape != inputs.shape[:2]:
            have, want = tuple(mask.shape), tuple(inputs.shape[:2])
            problem = f"attention_mask is {have} where the inputs are {want}"
            raise UserError("TW4036", problem, help="a mask has a number for each token")
        if bool(mask.all()):
            return None
        if not self.model.config.is_encoder_decoder:
            problem = "" if bool(mask[:, -1].all()) else "prompts that are padded on the right"
        else:
            problem = "" if _is_text(self.model) else f"a mask of {self.model.main_input_name}"
        if problem:
            help = 'a tokenizer with padding_side="left" pads prompts so that text can follow'
            raise UserError("TW4036", f"generate does not follow {problem}", help=help)
        return mask.to(torch.int64)

    def _generator(self, batch: int, length: int, padded: bool) -> Generator:
        """One with room for so many tokens; a longer text than any before makes a longer one."""
        found = self.generators.get((batch, padded))
        if found is None or found.length < length:
            room = max(ROOM, 1 << (length - 1).bit_length())
            found = Generator(self.model, self.compile, length=room, batch=batch, padded=padded)
            self.generators[batch, padded] = found
        return found
