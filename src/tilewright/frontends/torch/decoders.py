"""The graphs that text is written with: a model of transformers and what it remembers.

    Fixed(model, batch, length, ...)      keys and values in memory of fixed length
    Growing(model, batch, length, ...)    what a call keeps is given to the next one
    Whole(model, batch, length, ...)      nothing is kept: all is read for each token

Each is several graphs: of what a text begins with, and of a token behind it. `Fixed` copies nothing
in a call. Some models compute something else with it, since they derive masks or positions from the
length of the keys, and some keep what has no fixed length: a few tokens are compared with the
model's own `generate`.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from tilewright.base.errors import Unsupported
from tilewright.frontends.torch.memory import NAMES, shapes, tensors_in, with_tensors

# What the encoder makes of a source; keys and values of it.
Encoded = tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]

PROMPT = 4  # tokens of the example that prompts are traced with
CHECKED = 3  # tokens behind it that are compared
HELP = "its own generate() runs it in eager, or by torch.compile"


class Source:
    """What the encoder of a model gives, as tensors: those with a place for each of the source."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.kind: Any = None  # of the encoder's results, and its fields
        self.fields: tuple[str, ...] = ()

    def tensors(self, made: Any) -> tuple[torch.Tensor, ...]:
        places = made[0].shape[:2]
        self.kind = type(made)
        tensors = {name: each for name, each in made.items() if isinstance(each, torch.Tensor)}
        self.fields = tuple(name for name in tensors if tensors[name].shape[:2] == places)
        return tuple(made[name] for name in self.fields)

    def decoded(
        self, tokens: torch.Tensor, hidden: Sequence[torch.Tensor], mask: Any = None, **named: Any
    ) -> Any:
        """The model's results, of tokens behind what the encoder made."""
        if mask is not None:
            named["attention_mask"] = mask
        encoded = self.outputs(hidden)
        return self.model(decoder_input_ids=tokens, encoder_outputs=encoded, **named)

    def outputs(self, hidden: Sequence[torch.Tensor]) -> Any:
        return self.kind(**dict(zip(self.fields, hidden, strict=True)))


class Encoder(torch.nn.Module):
    """The source as the decoder of a model takes it: itself, and keys and values of each layer."""

    def __init__(self, model: Any, source: Source) -> None:
        super().__init__()
        self.model, self.source = model, source

    def forward(self, source: torch.Tensor, mask: torch.Tensor | None = None) -> Encoded:
        from transformers.cache_utils import DynamicCache, EncoderDecoderCache

        named = {} if mask is None else {"attention_mask": mask}
        hidden = self.source.tensors(self.model.get_encoder()(source, **named, return_dict=True))
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        # What is made of the token itself, nobody asks for: of the run stays what fills the cache.
        first = torch.zeros(source.shape[0], 1, dtype=torch.int64)
        self.source.decoded(first, hidden, past_key_values=cache, use_cache=True)
        layers = cache.cross_attention_cache.layers
        return hidden, tuple(kept for layer in layers for kept in (layer.keys, layer.values))


class Decoder(torch.nn.Module):
    """A model that is called with what it remembers: tokens [batch, count], their places in a text,
    what was kept -> logits [batch, 1, words] of what comes next, what is kept.

    `encoded` is an example of a source. A mask [batch, length] tells what is text, of a source or,
    of a model without one, of the tokens.
    """

    how = ""  # it remembers
    begins = False  # it knows of nothing before the tokens
    reads_anywhere = False  # several tokens at any place of a text, not at its beginning alone
    reads_all = False  # it is given the text as a whole each time

    def __init__(
        self, model: Any, batch: int, length: int, source: Source, encoded: Encoded | None
    ) -> None:
        super().__init__()
        self.model, self.batch, self.length = model, batch, length
        self.source, self.example = source, encoded
        # Tables of positions as long as a text are another case to torch.export. What is written
        # last, nobody reads.
        self.readable = length - 1
        taken = inspect.signature(model.forward).parameters
        self.takes_positions = "position_ids" in taken
        # What comes next is told by the last token: of the others no logits are made.
        self.last_alone = {"logits_to_keep": 1} if "logits_to_keep" in taken else {}
        self.takes_cache = next((name for name in NAMES if name in taken), "")
        self.config = model.config.get_text_config(decoder=True)

    def at_begin(self) -> Decoder:
        """The same, with the same buffers, for what texts begin with."""
        if self.reads_anywhere or self.reads_all:
            return self
        made = copy.copy(self)
        made.begins = True
        return made

    def kept_example(self) -> tuple[torch.Tensor, ...]:
        """What a call behind some tokens is given."""
        return ()

    def axes(self) -> dict[str, Any]:
        """Which axes of that grow, by the names of inputs."""
        return {}

    def _run(
        self,
        tokens: torch.Tensor,
        place: torch.Tensor,
        kept: Any,
        hidden: Sequence[torch.Tensor] | None,
        cross: Sequence[torch.Tensor],
        mask: torch.Tensor | None,
    ) -> Any:
        """The model's own results; `kept` is changed."""
        named: dict[str, Any] = {"use_cache": True}
        if hidden is not None:
            if kept is not None:
                named[self.takes_cache] = _crossed(kept, cross)
            return self.source.decoded(tokens, hidden, mask, **named)
        if kept is not None:
            named[self.takes_cache] = kept
        if mask is not None:
            named["attention_mask"] = mask
        if self.takes_positions:
            named["position_ids"] = _positions(place, len(tokens), mask)
        return self.model(input_ids=tokens, **named, **self.last_alone)


class Fixed(Decoder):
    """Keys, values and other states are buffers: what torch.export sees a call change."""

    how = "with a cache of fixed length"

    def __init__(
        self, model: Any, batch: int, length: int, source: Source, encoded: Encoded | None
    ) -> None:
        super().__init__(model, batch, length, source, encoded)
        from transformers.cache_utils import StaticCache  # takes seconds to import

        self.readable = length
        if not _takes_any_cache(model):
            raise refused(model, "keeps a cache of its own kind")
        cache: Any = StaticCache(max_cache_len=length, config=self.config)
        cache.layers[:] = [_without_window(layer, length) for layer in cache.layers]
        # States that hold all that was read have no places: what comes first finds none.
        self.reads_anywhere = not any(
            hasattr(layer, "has_previous_state") for layer in cache.layers
        )
        token = torch.zeros(batch, 1, dtype=torch.int64)
        with torch.no_grad():  # the first use of a cache gives its layers their memory
            hidden, cross = encoded or (None, ())
            self._run(token, torch.arange(1), cache, hidden, cross, None)
        self.cache, held = cache, tensors_in(cache)
        self.has_places = any(map(_has_keys, cache.layers))
        if any(layer.keys is None for layer in cache.layers if _has_keys(layer)):
            raise refused(model, "does not remember by keys and values")
        self.names = {place: "kept_" + place.replace(".", "_") for place in held}
        for place, name in self.names.items():
            self.register_buffer(name, held[place].clone().zero_())

    def forward(
        self,
        tokens: torch.Tensor,
        place: torch.Tensor,
        hidden: Sequence[torch.Tensor] | None = None,
        cross: Sequence[torch.Tensor] = (),
        mask: torch.Tensor | None = None,
    ) -> Any:
        own = {at: getattr(self, name) for at, name in self.names.items()}
        for at, state in own.items():
            if at.endswith(COUNTED):
                state.copy_(place[0])
        cache = with_tensors(self.cache, own)
        if self.begins:
            for layer in cache.layers:
                if hasattr(layer, "has_previous_state"):
                    layer.has_previous_state = dict.fromkeys(layer.has_previous_state, False)
            mask = mask if mask is None or hidden is not None else mask[:, : tokens.shape[1]]
        elif not self.has_places and hidden is None:
            mask = None  # what is remembered is not told apart by places
        logits: torch.Tensor = self._run(tokens, place, cache, hidden, cross, mask).logits
        for at, tensor in tensors_in(cache).items():
            if tensor is not own[at]:
                own[at].copy_(tensor)
        return logits[:, -1:]


class Growing(Decoder):
    """What the model keeps is a result, and is given to the next call."""

    how = "with a growing cache"

    def __init__(
        self, model: Any, batch: int, length: int, source: Source, encoded: Encoded | None
    ) -> None:
        super().__init__(model, batch, length, source, encoded)
        with torch.no_grad():
            found = shapes(self._kept, batch, PROMPT)
            self.kept = self._kept(batch, PROMPT)
        if not found:
            raise refused(model, "keeps what is no tensor, or nothing")
        self.shapes, self.tensors = found, tensors_in(self.kept)
        axes = [(at, shape.growing) for at, shape in enumerate(found.values())]
        self.growing = [(at, axis) for at, axis in axes if axis is not None]
        held = list(self.tensors.values())
        # Some put tokens of their own before a text.
        before = {held[at].shape[axis] - PROMPT for at, axis in self.growing} or {0}
        if len(before) > 1:
            raise refused(model, "keeps numbers of tokens that differ")
        (self.before,) = before

    def _empty(self) -> Any:
        """A cache that grows; None, where the model makes one of its own kind."""
        from transformers.cache_utils import DynamicCache

        if not _takes_any_cache(self.model):
            return None
        cache: Any = DynamicCache(config=self.config)
        cache.layers[:] = [_without_window(layer, self.length) for layer in cache.layers]
        return cache

    def _kept(self, batch: int, count: int) -> Any:
        """What is kept of an example."""
        tokens = torch.arange(count).expand(batch, -1) % self.config.vocab_size
        hidden, cross = self.example or (None, ())
        if hidden is not None:  # the last source is there as often as it takes
            rows = torch.arange(batch).clamp(max=len(hidden[0]) - 1)
            hidden, cross = (tuple(each[rows] for each in held) for held in (hidden, cross))
        kept = self._empty()
        made = self._run(tokens, torch.arange(count), kept, hidden, cross, None)
        return self._taken(made) if kept is None else kept

    def _taken(self, made: Any) -> Any:
        """What a model gives to be given to it again."""
        return getattr(made, self.takes_cache, None)

    def kept_example(self) -> tuple[torch.Tensor, ...]:
        return () if self.begins else tuple(self.tensors.values())

    def axes(self) -> dict[str, Any]:
        if self.begins or not self.growing:
            return {}
        own = {f"kept_{at}": {axis: "past"} for at, axis in self.growing}
        return {**own, "past": (1, self.readable + self.before - 1)}

    def forward(
        self,
        tokens: torch.Tensor,
        place: torch.Tensor,
        *kept: torch.Tensor,
        hidden: Sequence[torch.Tensor] | None = None,
        cross: Sequence[torch.Tensor] = (),
        mask: torch.Tensor | None = None,
    ) -> Any:
        cache = self._empty()
        count = tokens.shape[1]
        if not self.begins:
            cache = with_tensors(self.kept, dict(zip(self.tensors, kept, strict=True)))
            if self.growing:
                at, axis = self.growing[0]
                count = count + kept[at].shape[axis] - self.before
            elif hidden is None:
                mask = None  # what is remembered is not told apart by places
        mask = mask if mask is None or hidden is not None else mask[:, :count]
        made = self._run(tokens, place, cache, hidden, cross, mask)
        found = tensors_in(cache if _takes_any_cache(self.model) else self._taken(made))
        return made.logits[:, -1:], [found[at] for at in self.tensors]


class Whole(Decoder):
    """Nothing is kept."""

    how = "without a cache"
    reads_all = True

    def forward(
        self,
        tokens: torch.Tensor,
        hidden: Sequence[torch.Tensor] | None = None,
        cross: Sequence[torch.Tensor] = (),
        mask: torch.Tensor | None = None,
    ) -> Any:
        named: dict[str, Any] = {"use_cache": False, "is_first_iteration": True}
        if hidden is not None:
            named["encoder_outputs"] = self.source.outputs(hidden)
        else:
            batch, count = tokens.shape
            mask = None if mask is None else mask[:, :count]
            if self.takes_positions:
                named["position_ids"] = _positions(torch.arange(count), batch, mask)
        if mask is not None:
            named["attention_mask"] = mask
        given = self.model.prepare_inputs_for_generation(tokens, **named)
        given.pop("is_first_iteration", None)
        logits: torch.Tensor = self.model(**given).logits
        return logits[:, -1:]


COUNTED = "cumulative_length"  # of layers: how many tokens they hold


def refused(model: Any, why: str) -> Unsupported:
    return Unsupported("TW4035", f"{type(model).__name__} {why}", help=HELP)


def _takes_any_cache(model: Any) -> bool:
    """Whether transformers' own caches serve a model, not one that it makes for itself alone."""
    return bool(model._supports_default_dynamic_cache())


def _has_keys(layer: Any) -> bool:
    from transformers.cache_utils import StaticLayer

    return isinstance(layer, StaticLayer)


def _without_window(layer: Any, length: int) -> Any:
    """A layer that keeps all tokens, where one slides by control flow over data: what is behind the
    window is masked."""
    from transformers import cache_utils

    pairs = {
        "StaticSlidingWindowLayer": "StaticLayer",
        "DynamicSlidingWindowLayer": "DynamicLayer",
        "LinearAttentionAndSlidingWindowAttentionLayer": "LinearAttentionAndFullAttentionLayer",
        "LinearAttentionAndStaticSlidingWindowAttentionLayer": (
            "LinearAttentionAndStaticFullAttentionLayer"
        ),
    }
    whole = pairs.get(type(layer).__name__)
    if whole is None or type(layer).__module__ != cache_utils.__name__:
        return layer
    states = getattr(layer, "number_of_states", None)
    how = {} if states is None else {"number_of_states": states}
    return getattr(cache_utils, whole)(max_cache_len=length, **how)


def _positions(place: torch.Tensor, batch: int, mask: torch.Tensor | None) -> torch.Tensor:
    """Positions as transformers' own generate() gives them: what pads is at no place of a text."""
    if mask is None:
        return place.expand(batch, -1)
    return (mask.cumsum(1) - 1).clamp(min=0).index_select(1, place)


def _crossed(kept: Any, cross: Sequence[torch.Tensor]) -> Any:
    """A cache of what the decoder has read, and of what it takes from the source."""
    from transformers.cache_utils import DynamicCache, DynamicLayer, EncoderDecoderCache

    source = DynamicCache()
    for keys, values in zip(cross[::2], cross[1::2], strict=True):
        layer = DynamicLayer()
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values
        source.layers.append(layer)
    cache = EncoderDecoderCache(kept, source)
    cache.is_updated = dict.fromkeys(range(len(source.layers)), True)
    return cache


class Reader:
    """Reads a text by the graphs of a decoder, which `made` gives: that of its first tokens
    ("prompt"), of its first one ("first"), and of a token behind others ("step")."""

    def __init__(
        self, decoder: Decoder, made: Callable[[str], Any], states: Callable[[], Iterable[Any]]
    ) -> None:
        self.decoder, self.made, self.states = decoder, made, states
        self.has_prompt = True
        self.forgets = True  # tokens that pad
        self.reset()

    def reset(self) -> None:
        """Forget all that was read."""
        self.position, self.text = 0, torch.zeros(self.decoder.batch, 0, dtype=torch.int64)
        self.kept: tuple[torch.Tensor, ...] = ()

    def reorder(self, rows: torch.Tensor) -> None:
        """Go on with what some texts have read in the places of others."""
        self.text = self.text[rows] if self.decoder.reads_all else self.text
        for state, texts in self._by_texts():
            state.copy_(state.index_select(texts, rows.to(state.device)))

    def read(self, tokens: torch.Tensor, named: Mapping[str, Any]) -> torch.Tensor:
        count = tokens.shape[1]
        logits: torch.Tensor
        if self.decoder.reads_all:
            self.text = torch.cat([self.text, tokens], 1)
            self.position += count
            logits = self.made("prompt")(self.text, **named)
            return logits
        if count > 1 and (self.position == 0 or self.decoder.reads_anywhere) and self.has_prompt:
            return self._read("prompt", tokens, named)
        for at in range(count):
            is_first = self.position == 0 and not self.decoder.reads_anywhere
            logits = self._read("first" if is_first else "step", tokens[:, at : at + 1], named)
            self._forget(named.get("mask"))
        return logits

    def _forget(self, mask: torch.Tensor | None) -> None:
        """What a state holds of a token that pads: a text begins behind those."""
        if mask is None or self.decoder.example is not None:
            return
        if self.decoder.reads_anywhere or not self.forgets:
            return
        rows = (mask[:, self.position - 1] == 0).nonzero()[:, 0]
        if len(rows):
            for state, texts in self._by_texts():
                state.index_fill_(texts, rows.to(state.device), 0)

    def _by_texts(self) -> list[tuple[torch.Tensor, int]]:
        """All that is remembered of each text, and the axis of the texts."""
        if isinstance(self.decoder, Growing):
            axes = [shape.texts for shape in self.decoder.shapes.values()]
            pairs = list(zip(self.kept, axes, strict=False))
        else:
            pairs = [(state, 0 if state.dim() else None) for state in self.states()]
        return [(state, texts) for state, texts in pairs if texts is not None]

    def _read(self, which: str, tokens: torch.Tensor, named: Mapping[str, Any]) -> torch.Tensor:
        place = torch.arange(self.position, self.position + tokens.shape[1])
        self.position += tokens.shape[1]
        kept = self.kept if which == "step" else ()
        made = self.made(which)(tokens, place, *kept, **named)
        if isinstance(made, torch.Tensor):
            return made
        logits, kept = made
        self.kept = tuple(kept)
        return torch.as_tensor(logits)
