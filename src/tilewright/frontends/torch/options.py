"""What `generate` is asked for, by the names of transformers' generation config.

    options = Options.of(model.generation_config, {"num_beams": 4}, prompt_length=5)

A model brings a config of its own, and a call adds to it. Each field is followed, or left to the
processors of logits that transformers makes of it (`prepared`), or means nothing here (how
transformers itself is to be fast), or is refused by its name: none is passed over.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tilewright.base.errors import UserError
from tilewright.frontends.torch.beams import Beams
from tilewright.frontends.torch.sampling import NEVER, Sampling

COUNT, TOP_K = 20, 50  # transformers' own, where nothing is said
FOLLOWED = {
    *("max_length", "max_new_tokens", "min_length", "min_new_tokens", "do_sample", "temperature"),
    *("top_k", "top_p", "num_beams", "early_stopping", "length_penalty", "num_return_sequences"),
    *("repetition_penalty", "no_repeat_ngram_size", "suppress_tokens", "begin_suppress_tokens"),
    *("forced_bos_token_id", "forced_eos_token_id", "pad_token_id", "eos_token_id"),
    *("bos_token_id", "decoder_start_token_id"),
}
# What transformers' own processors of logits, and criteria of when to stop, follow.
PREPARED = {
    *("min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff", "bad_words_ids"),
    *("sequence_bias", "encoder_repetition_penalty", "encoder_no_repeat_ngram_size"),
    *("exponential_decay_length_penalty", "remove_invalid_values", "renormalize_logits"),
    *("watermarking_config", "stop_strings", "max_time"),
}
STOPPING = {"stop_strings", "max_time", "stopping_criteria", "streamer"}  # not by beams
# Arguments beside the config that they are made of.
BESIDE = (
    *("logits_processor", "stopping_criteria", "prefix_allowed_tokens_fn", "tokenizer"),
    *("streamer",),
)
# How transformers runs a model, or a second one beside it; they change no text.
WITHOUT_EFFECT = {
    *("use_cache", "cache_implementation", "cache_config", "max_cache_len", "low_memory"),
    *("compile_config", "disable_compile", "continuous_batching_config", "prefill_chunk_size"),
    *("is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule"),
    *("assistant_confidence_threshold", "max_matching_ngram_size", "assistant_lookbehind"),
    *("target_lookbehind", "assistant_ensemble_weight", "speculation_type"),
    *("transformers_version", "_from_model_config"),
}
# Values that ask for nothing, beside None, False, zero and what is empty.
NEUTRAL = {
    *(("typical_p", 1), ("encoder_repetition_penalty", 1), ("guidance_scale", 1)),
    *(("num_beam_groups", 1), ("top_h", 1)),
}
POSITIVE = ("num_beams", "num_return_sequences", "repetition_penalty")


@dataclass(frozen=True)
class Limits:
    """Which tokens may come next, whatever their logits."""

    least: int = 0  # tokens of a text before its end
    longest: int = 0  # tokens of a text
    begin: int = 0  # tokens that were given
    repetition: float = 1.0  # what logits of tokens that occurred are divided by
    ngram: int = 0  # as many tokens in a row occur once; 0: as often as they like
    never: tuple[int, ...] = ()
    never_first: tuple[int, ...] = ()
    first: int | None = None
    last: tuple[int, ...] = ()  # at the longest a text may be

    def kept(self, logits: torch.Tensor, tokens: torch.Tensor, ends: Sequence[int]) -> torch.Tensor:
        """Logits [batch, words] behind tokens [batch, tokens]; minus infinity where none may be."""
        length = tokens.shape[1]
        if self.repetition != 1:
            seen = logits.gather(1, tokens)
            seen = torch.where(seen < 0, seen * self.repetition, seen / self.repetition)
            logits = logits.scatter(1, tokens, seen)
        barred = [*self.never]
        is_forced = self.first is not None and self.begin == 1  # then its token comes before
        barred += self.never_first if length == self.begin + is_forced else ()
        barred += ends if length < self.least else ()
        logits = logits.index_fill(1, torch.tensor(barred, dtype=torch.int64), NEVER)
        if self.ngram and length >= self.ngram:
            logits = self._without_repeats(logits, tokens)
        only = self.last if length == self.longest - 1 else ()
        only = (self.first,) if self.first is not None and length == 1 else only
        if only:
            forced = torch.full_like(logits, NEVER)
            logits = forced.index_fill(1, torch.tensor(only), 0.0)
        return logits

    def _without_repeats(self, logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        runs = tokens.unfold(1, self.ngram, 1)
        same = (runs[:, :, :-1] == tokens[:, None, tokens.shape[1] - self.ngram + 1 :]).all(2)
        rows, places = same.nonzero(as_tuple=True)
        return logits.index_put((rows, runs[rows, places, -1]), torch.tensor(NEVER))


@dataclass(frozen=True)
class Prepared:
    """What transformers makes of the options of one call."""

    processors: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # of tokens and logits
    stops: Callable[[torch.Tensor, Any], torch.Tensor]  # which texts are to end
    streamer: Any = None

    @staticmethod
    def of(
        model: Any,
        known: Any,
        inputs: torch.Tensor,
        mask: torch.Tensor | None,
        asked: Mapping[str, Any],
    ) -> Prepared:
        """By transformers' own `generate`, up to where it would run the model."""
        from transformers.generation import (
            GenerationMixin,
            LogitsProcessorList,
            StoppingCriteriaList,
            StopStringCriteria,
        )
        from transformers.modeling_outputs import BaseModelOutput

        found: list[Prepared] = []

        def take(  # by these names it is called
            model: Any, input_ids: Any, logits_processor: Any, stopping_criteria: Any, **_: Any
        ) -> Any:
            found.append(Prepared(logits_processor, stopping_criteria, streamer))
            return input_ids

        known, given = copy.deepcopy(known), dict(asked)
        streamer, tokenizer = given.pop("streamer"), given.pop("tokenizer")
        processors = LogitsProcessorList(given.pop("logits_processor") or ())
        stops = StoppingCriteriaList(given.pop("stopping_criteria") or ())
        strings = given.pop("stop_strings", known.stop_strings)
        known.stop_strings = None
        if strings:
            if tokenizer is None:
                raise UserError("TW4036", "stop_strings need a tokenizer", help="pass tokenizer=")
            stops.append(StopStringCriteria(tokenizer, strings))
        if mask is not None or not model.config.is_encoder_decoder:
            whole = torch.ones(inputs.shape[:2], dtype=torch.int64)
            given["attention_mask"] = whole if mask is None else mask
        if model.config.is_encoder_decoder:  # it is not to run the encoder
            nothing = torch.zeros(len(inputs), 1, 1)
            given["encoder_outputs"] = BaseModelOutput(last_hidden_state=nothing)
        GenerationMixin.generate(
            model, inputs, generation_config=known, custom_generate=take,
            logits_processor=processors, stopping_criteria=stops, **given)  # fmt: skip
        return found[0]


@dataclass(frozen=True)
class Options:
    """How a text goes on."""

    count: int  # tokens, at most
    ends: tuple[int, ...] = ()
    pad: int | None = None  # what a text that has ended goes on with
    sampling: Sampling | None = None
    beams: Beams | None = None
    copies: int = 1  # texts for each that is given
    limits: Limits = field(default_factory=Limits)
    # What is left to transformers, by name, and what it makes of that.
    left: tuple[str, ...] = ()
    prepared: Prepared | None = None

    def kept(self, logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Logits [batch, words] behind tokens [batch, tokens], as all options have them."""
        if self.prepared is not None:
            made: torch.Tensor = self.prepared.processors(tokens, logits)
            return made
        return self.limits.kept(logits, tokens, self.ends)

    @staticmethod
    def of(
        known: Any, asked: Mapping[str, Any], length: int, sampling: Sampling | None = None
    ) -> Options:
        """From a config of transformers and what a call asks for, behind so many tokens."""
        config = copy.deepcopy(known)
        try:
            unknown = config.update(**asked)
        except ValueError as error:  # transformers knows what does not go together
            raise UserError("TW4036", f"generate cannot: {error}", help=HELP) from error
        if unknown:
            raise UserError("TW4036", f"generate has no option {', '.join(unknown)}", help=HELP)
        values = {name: value for name, value in config.to_dict().items() if _asks(name, value)}
        fields = set(type(config)().to_dict())
        left = [name for name in values if name in PREPARED]
        refused = [
            f"{name}={values[name]!r}"
            for name in values
            if name in fields and name not in FOLLOWED | WITHOUT_EFFECT | PREPARED
        ]
        width, copies = (_number(config, name, 1) for name in ("num_beams", "num_return_sequences"))
        draws = bool(sampling or config.do_sample)
        if width > 1 and draws:
            refused.append("beams that are drawn")
        if refused:
            raise UserError("TW4036", f"generate does not follow {', '.join(refused)}", help=HELP)
        for name in POSITIVE:
            if not (value := _number(config, name, 1)) > 0:
                raise UserError("TW4036", f"{name}={value!r} is not above zero")
        limit, count = _room(config, asked, length)
        if count <= 0:
            problem = f"{limit} leaves no room behind {length} tokens"
            raise UserError("TW4036", problem, help="ask for at least one token")
        if sampling is None and config.do_sample:
            sampling = Sampling(_number(config, "temperature", 1.0),
                                _number(config, "top_k", TOP_K),
                                _number(config, "top_p", 1.0))  # fmt: skip
        ends = _listed(config.eos_token_id)
        pad = config.pad_token_id
        beams = None
        if width > 1:
            beams = Beams(width, _number(config, "length_penalty", 1.0),
                          _number(config, "early_stopping", False), copies)  # fmt: skip
        least = max(_number(config, "min_length", 0), length + _number(config, "min_new_tokens", 0))
        limits = Limits(
            least if least > length else 0, length + count, length,
            _number(config, "repetition_penalty", 1.0),
            max(_number(config, "no_repeat_ngram_size", 0), 0),
            _listed(config.suppress_tokens), _listed(config.begin_suppress_tokens),
            config.forced_bos_token_id, _listed(config.forced_eos_token_id))  # fmt: skip
        return Options(count, ends, pad, sampling, beams, copies, limits, tuple(left))


HELP = "the model's own generate() follows all of transformers' options, in eager"


def _asks(name: str, value: Any) -> bool:
    """Whether a field is set to what changes a text. Words and tokens may be the number zero."""
    if value is None or value is False or (name, value if _is_number(value) else 0) in NEUTRAL:
        return False
    return bool(value) or name.endswith("_token_id")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _number(config: Any, name: str, usual: Any) -> Any:
    """A field that is followed; zero is a number like any other."""
    value = getattr(config, name)
    return usual if value is None else value


def _room(config: Any, asked: Mapping[str, Any], length: int) -> tuple[str, int]:
    """How many tokens may come, and the field that says so; what a call says goes before what a
    model brings."""
    for given in (asked, vars(config)):
        if given.get("max_new_tokens") is not None:
            return "max_new_tokens", int(given["max_new_tokens"])
        if given.get("max_length") is not None:
            return "max_length", int(given["max_length"]) - length
    return "max_new_tokens", COUNT


def _listed(given: int | Sequence[int] | torch.Tensor | None) -> tuple[int, ...]:
    if given is None:
        return ()
    return (given,) if isinstance(given, int) else tuple(int(each) for each in given)
