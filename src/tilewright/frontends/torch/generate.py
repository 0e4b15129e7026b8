"""Text from a language model: keys and values are state of the compiled model.

    text = tw.compile(model)
    tokens = text.generate(prompt, max_new_tokens=64)      prompt and result are [batch, tokens]
    tokens = text.generate(prompt, sampling=Sampling(top_p=0.9))
    tokens = text.generate(prompts, attention_mask=mask, num_beams=4)      padded on the left

Graphs share what is remembered: one for prompts of any length, one for a token at a time
(`decoders.py`). Of a model with an encoder another one makes what each layer of the decoder takes
from the source, once for a text.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from tilewright.base.errors import Unsupported, UserError
from tilewright.frontends.torch.beams import Search
from tilewright.frontends.torch.calling import Structure, TorchModule
from tilewright.frontends.torch.decoders import (
    HELP,
    PROMPT,
    Decoder,
    Encoded,
    Encoder,
    Fixed,
    Growing,
    Reader,
    Source,
    Whole,
    refused,
)
from tilewright.frontends.torch.examples import examples_of, is_of_transformers
from tilewright.frontends.torch.options import BESIDE, STOPPING, Options, Prepared
from tilewright.frontends.torch.options import HELP as OWN_LOOP
from tilewright.frontends.torch.sampling import Sampling
from tilewright.frontends.torch.trials import Trial
from tilewright.runtime.module import Module

Compile = Callable[..., Module]  # as tilewright.compile, of one target and its options

ROOM = 64  # tokens, at least, that there is memory for


def can_generate(model: Any) -> bool:
    """Whether a model is one of transformers that writes text."""
    return is_of_transformers(model) and hasattr(model, "can_generate") and model.can_generate()


class Generator:
    """A language model of transformers that remembers what it has read.

    One that is `padded` takes texts of several lengths, those of a decoder padded on the left: a
    mask [batch, tokens] tells what is text. `source` is an example of what a text is made from, of
    a model whose config does not describe it.
    """

    def __init__(
        self,
        model: Any,
        compile: Compile,
        *,
        length: int,
        batch: int = 1,
        padded: bool = False,
        source: torch.Tensor | None = None,
    ) -> None:
        self.length, self.batch = length, batch
        self.encoder: Module | None = None
        self.encoded: Encoded | None = None
        self.mask: torch.Tensor | None = None  # of the prompt and behind it, or of the source
        outputs, example = Source(model), None
        if model.config.is_encoder_decoder:
            given = _source(model, batch, source)
            try:
                self.encoder, example = _encoder(model, compile, given, padded, outputs)
            except (Unsupported, UserError):
                if padded or not _is_text(model):
                    raise
                padded = True  # a mask that is not given is made otherwise, in Python perhaps
                self.encoder, example = _encoder(model, compile, given, padded, outputs)
        self.padded = padded
        self.compile = compile
        self.graphs: dict[str, Any] = {}
        self.shared: dict[str, torch.Tensor] = {}  # states of all graphs
        # Some models trace, or tell places, by a mask alone.
        kinds: list[tuple[type[Decoder], bool]] = [(Fixed, padded), (Growing, padded)]
        if example is None and not padded:
            kinds.insert(1, (Fixed, True))
        trial = Trial(model, batch, outputs, example)
        reasons: dict[str, str] = {}
        singly: tuple[type[Decoder], bool] | None = None  # a way that has no graph for prompts

        def begin(kind: type[Decoder], masked: bool, singly: bool = False) -> bool | None:
            """None where that is no way."""
            try:
                return self._begin(trial, kind, masked, singly)
            except (Unsupported, UserError) as error:
                reasons.setdefault(kind.how, error.message)
                return None

        for kind, masked in kinds:
            has_prompt = begin(kind, masked)
            if has_prompt:
                return
            singly = singly or (None if has_prompt is None else (kind, masked))
        if (singly is not None and begin(*singly, True)) or begin(Whole, padded):
            return
        name = type(model).__name__
        told = [f"{name} does not generate", *map(": ".join, reasons.items())]
        raise Unsupported("TW4035", "\n  ".join(told), help=HELP)

    def _begin(self, trial: Trial, kind: type[Decoder], masked: bool, singly: bool = False) -> bool:
        """Compile the graphs of one kind of decoder that computes what the model does; whether
        there is one for prompts. Without it they are read `singly`, token by token: a model that
        loops over tokens may have none."""
        self.graphs, self.shared, self.mask = {}, {}, None
        if masked:
            kept = self.length if trial.example is None else trial.example[0][0].shape[1]
            self.mask = torch.ones(self.batch, kept, dtype=torch.int64)
        self.decoder = trial.decoder(kind, self.length)
        self.reader = Reader(self.decoder, self._graph, lambda: self.states)
        if singly:
            self._read_singly(trial)
        else:
            trial.check(self.reader, self.mask)
        first = "step" if self.decoder.reads_anywhere else "first"
        if singly or (trial.example is not None and not self.decoder.reads_all):
            self._graph(first)  # texts behind a source begin with a token, most often
        else:
            try:
                self._graph("prompt")
            except (Unsupported, UserError):
                if self.decoder.reads_all:
                    raise
                return False
        if not self.decoder.reads_all:
            self._graph("step")
        return True

    def _read_singly(self, trial: Trial) -> None:
        """Texts begin behind what pads, for all models but those that take that for text."""
        reader, reader.has_prompt = self.reader, False
        try:
            trial.check(reader, self.mask)
        except Unsupported:
            reader.forgets = False
            trial.check(reader, self.mask)

    def _graph(self, which: str) -> Any:
        if which not in self.graphs:
            with torch.no_grad():
                self.graphs[which] = self._compiled(which)
        return self.graphs[which]

    def _compiled(self, which: str) -> Any:
        decoder = self.decoder if which == "step" else self.decoder.at_begin()
        count = PROMPT if which == "prompt" else 1
        args: tuple[torch.Tensor, ...] = (torch.zeros(self.batch, count, dtype=torch.int64),)
        if not decoder.reads_all:
            args = (*args, torch.arange(count), *decoder.kept_example())
        axes: dict[str, Any] = decoder.axes()
        if which == "prompt":
            least = 1 if decoder.reads_all else 2
            axes |= {"tokens": {1: "count"}, "count": (least, decoder.readable)}
            axes |= {} if decoder.reads_all else {"place": {0: "count"}}
        named = self._named(decoder.example)
        if decoder.example is not None and _is_text(decoder.model):
            sizes = {"hidden": {1: "source"}, "cross": {2: "source"}, "mask": {1: "source"}}
            axes |= {name: size for name, size in sizes.items() if name in named}
        made: Any = self.compile(decoder, args=args, kwargs=named, dynamic=axes or None)
        states = made.structure.states
        if self.graphs and isinstance(decoder, Fixed) and states.keys() != self.shared.keys():
            raise refused(decoder.model, "keeps what only some calls change")
        for name in states:
            states[name] = self.shared.setdefault(name, states[name])
        return made

    def _named(self, encoded: Encoded | None) -> dict[str, Any]:
        """What all calls are given, by the names of a decoder's inputs."""
        named: dict[str, Any] = {} if self.mask is None else {"mask": self.mask}
        if encoded is not None:
            named["hidden"] = encoded[0]
            named |= {} if self.decoder.reads_all else {"cross": encoded[1]}
        return named

    @property
    def position(self) -> int:
        """Tokens that were read."""
        return self.reader.position

    @property
    def states(self) -> Iterable[torch.Tensor]:
        """Keys, values and how many there are."""
        return self.shared.values()

    def reset(self) -> None:
        """Forget all that was read."""
        self.reader.reset()
        for state in self.states:
            state.zero_()

    def encode(self, source: torch.Tensor, mask: torch.Tensor | None = None) -> None:
        """Read what the text is made from: another text, or sound."""
        assert self.encoder is not None
        if self.padded and mask is None:
            mask = torch.ones(source.shape[:2], dtype=torch.int64)
        self.mask = mask
        made: Any = self.encoder(source, *(() if mask is None else (mask,)))
        self.encoded = made

    def reorder(self, rows: torch.Tensor) -> None:
        """Go on with what some texts of the batch have read in the places of others."""
        self.reader.reorder(rows)

    def read(self, tokens: torch.Tensor) -> torch.Tensor:
        """The logits [batch, 1, words] behind the last of some tokens [batch, tokens], which are
        remembered."""
        batch, count = tokens.shape
        length = self.decoder.readable
        if batch != self.batch or self.position + count > length:
            raise UserError(
                "TW4046",
                f"{count} tokens of {batch} texts behind {self.position} do not fit "
                f"{length} of {self.batch}",
                help="make the Generator with more length, or of another batch",
            )
        made = self.reader.read(tokens, self._named(self.encoded))
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
        sampling, prepared = options.sampling, options.prepared
        source = None if sampling is None else sampling.generator()
        if prepared is not None and prepared.streamer is not None:
            prepared.streamer.put(tokens)
        ends = torch.tensor(options.ends)
        logits = self.read(tokens) if options.count else None
        ended = torch.zeros(len(tokens), 1, dtype=torch.bool)
        for left in reversed(range(options.count)):
            assert logits is not None
            last = options.kept(logits[:, -1], tokens)
            best = last.argmax(-1, True) if sampling is None else sampling.draw(last, source)
            if len(ends):
                pad = options.ends[0] if options.pad is None else options.pad
                best = best.masked_fill(ended, pad)
                ended |= torch.isin(best, ends)
            tokens = torch.cat([tokens, best], dim=1)
            if prepared is not None:
                ended |= prepared.stops(tokens, None)[:, None]
                if prepared.streamer is not None:
                    prepared.streamer.put(best[:, 0])
            if bool(ended.all()):
                break
            if left:
                logits = self.read(best)
        if prepared is not None and prepared.streamer is not None:
            prepared.streamer.end()
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
            chances = options.kept(chances, tokens)
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


def _filled(config: Any, known: Any) -> Any:
    """A generation config, with a model's own where it says nothing."""
    made = copy.deepcopy(config)
    made.update(**known.to_dict(), defaults_only=True, allow_custom_entries=True)
    return made


def _is_text(model: Any) -> bool:
    return bool(model.main_input_name == "input_ids")


def _source(model: Any, batch: int, given: torch.Tensor | None) -> torch.Tensor:
    """An example of a source: a text of any length, or what the model is given otherwise."""
    if given is not None and not _is_text(model):
        return given
    examples = examples_of(model, batch)
    if examples is None:
        raise refused(model, f"reads {model.main_input_name}, of which its config gives no shape")
    return examples.kwargs[model.main_input_name]


def _encoder(
    model: Any, compile: Compile, given: torch.Tensor, padded: bool, outputs: Source
) -> tuple[Module, Encoded]:
    """A model's encoder, compiled, and what it makes of an example."""
    encoder = Encoder(model, outputs).eval()
    args = (given, torch.ones(given.shape[:2], dtype=torch.int64)) if padded else (given,)
    axes = {"source": {1: "source"}} if _is_text(model) else None
    if axes and padded:
        axes["mask"] = {1: "source"}
    try:
        with torch.no_grad():
            example: Encoded = encoder(*args)
    except Exception as error:  # whatever the model's own code raises
        reason = str(error).strip().partition("\n")[0]
        raise refused(model, f"does not run as an encoder and a decoder: {reason}") from error
    with torch.no_grad():
        return compile(encoder, args=args, dynamic=axes), example


class LanguageModule(TorchModule):
    """A compiled model that also writes text. What that needs is compiled when it is asked for."""

    def __init__(self, inner: Module, structure: Structure, model: Any, compile: Compile) -> None:
        super().__init__(inner, structure)
        self._write_by(model, compile)

    def _write_by(self, model: Any, compile: Compile) -> None:
        self.model, self.compile = model, compile
        # By batch, whether padded, and the shape of sources that are no text.
        self.generators: dict[tuple[Any, ...], Generator] = {}

    @classmethod
    def of(cls, model: Any, compile: Compile) -> LanguageModule:
        """One that only writes text."""
        made = cls.__new__(cls)
        made._write_by(model, compile)
        return made

    def generate(
        self,
        inputs: torch.Tensor,
        *,
        sampling: Sampling | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        generation_config: Any = None,
        **options: Any,
    ) -> torch.Tensor:
        """Tokens [batch, tokens] behind a prompt, or those that a source is turned into.

        The likeliest at each place, or by `sampling`; else as the model's own generation config, or
        the one that is given, and `options`, by the names of transformers, say: `max_new_tokens`,
        `num_beams`, `eos_token_id`, `logits_processor`, `streamer` and so on. Prompts of several
        lengths are padded on the left, sources on the right, and `attention_mask` tells what is
        text. Models with an encoder begin with `decoder_input_ids`, or as their config says.
        """
        known = self.model.generation_config
        if generation_config is not None:
            known = _filled(generation_config, known)
        beside = {name: options.pop(name, None) for name in BESIDE}
        prompt = inputs
        if self.model.config.is_encoder_decoder:
            first = options.get("decoder_start_token_id", known.decoder_start_token_id)
            begin = torch.full((len(inputs), 1), 0 if first is None else first)
            prompt = begin if decoder_input_ids is None else decoder_input_ids
        wanted = Options.of(known, options, prompt.shape[1], sampling)
        mask = None if attention_mask is None else self._checked(attention_mask, inputs)
        left = [*wanted.left, *(name for name, each in beside.items() if each is not None)]
        if wanted.beams and STOPPING.intersection(left):
            problem = f"{', '.join(left)} of beams"
            raise UserError("TW4036", f"generate does not follow {problem}", help=OWN_LOOP)
        if left or (mask is not None and wanted.limits.repetition != 1):  # what pads is no word
            if decoder_input_ids is not None:
                options["decoder_input_ids"] = decoder_input_ids
            is_told = sampling is not None
            asked = {**options, **beside, **({"do_sample": False} if is_told else {})}
            prepared = Prepared.of(self.model, known, inputs, mask, asked)
            own = wanted.sampling if is_told or wanted.sampling is None else Sampling()
            wanted = replace(wanted, sampling=own, prepared=prepared)
        times = wanted.beams.count if wanted.beams else wanted.copies
        prompt, inputs = (x.repeat_interleave(times, 0) for x in (prompt, inputs))
        mask = None if mask is None else mask.repeat_interleave(times, 0)
        length = prompt.shape[1] + wanted.count
        text = self._generator(length, mask is not None, inputs)
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

    def _generator(self, length: int, padded: bool, inputs: torch.Tensor) -> Generator:
        """One with room for so many tokens; a longer text than any before makes a longer one."""
        batch = len(inputs)
        is_source = self.model.config.is_encoder_decoder and not _is_text(self.model)
        key = (batch, padded, *(inputs.shape[1:] if is_source else ()))
        found = self.generators.get(key)
        if found is None or found.length < length:
            room = max(ROOM, 1 << (length - 1).bit_length())
            found = Generator(
                self.model, self.compile, length=room, batch=batch, padded=padded,
                source=inputs if is_source else None)  # fmt: skip
            self.generators[key] = found
        return found
