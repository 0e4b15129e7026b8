"""Models of transformers made small enough to try every type there is, without a list of types.

A config's own fields say what can be made smaller: widths, counts of layers, of heads, of words, in
it and in the configs that it holds. Where the small numbers do not fit together, fewer fields are
changed. Inputs are those of the first set, in the first of its forms, that a model takes in eager.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Inputs = Callable[[int], dict[str, Any]]  # by batch size

MAX_PARAMETERS = 40_000_000
TOKENS, WORDS = 12, 128  # of a text, of a vocabulary
SAMPLES, FRAMES = 3200, 50  # of sound, of its spectra
PATCHES = 4  # along each side of an image
SIDE = 64  # of an image that is not cut into patches


@dataclass(frozen=True)
class Sizes:
    """Of what a model is given, where its config does not say."""

    tokens: int = TOKENS
    words: int = WORDS  # that texts are made of
    samples: int = SAMPLES
    frames: int = FRAMES  # half as many as of a spectrum
    side: int = SIDE


SMALLEST = Sizes()

LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers",
          "decoder_layers", "num_decoder_layers", "num_encoder_layers")  # fmt: skip
COUNTS = {
    **dict.fromkeys(LAYERS, 2),
    **dict.fromkeys(("vocab_size", "type_vocab_size"), WORDS),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), 64),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k"), 2),
    **dict.fromkeys(("n_group", "num_expert_group", "topk_group"), 1),  # of experts
    "max_source_positions": FRAMES,
}
INNER = {
    **dict.fromkeys(("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim"), 64),
    **dict.fromkeys(("n_inner", "d_ff", "d_inner", "moe_intermediate_size", "hidden_dim"), 64),
}
HEADS = {
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "n_head", "n_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "num_heads"), 4),
    "linear_num_heads": 4,
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
}
HEAD_WIDTHS = dict.fromkeys(
    ("head_dim", "linear_head_dim", "d_kv", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 8
)
WIDTHS = ("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "projection_dim",
          "embedding_size", "encoder_hidden_size", "decoder_hidden_size")  # fmt: skip
SMALL = COUNTS | INNER | HEADS
TABLES = (
    SMALL | dict.fromkeys(WIDTHS, 32) | HEAD_WIDTHS,
    SMALL | dict.fromkeys(WIDTHS, 32),
    SMALL | dict.fromkeys(WIDTHS, 4 * 64),  # parts of a head, that rotate say, are told by their
    SMALL | dict.fromkeys(WIDTHS, 4 * 128),  # sizes: heads as wide as most are
    COUNTS | INNER,
    COUNTS,
)
# Of models that write text: windows that a short text leaves, and kinds of layers that few of them
# still hold.
WINDOW = 8  # tokens
WINDOWS = dict.fromkeys(("sliding_window", "attention_chunk_size", "window_size"), WINDOW)
PERIODS = {
    **dict.fromkeys(("attn_layer_period", "expert_layer_period", "full_attention_interval"), 2),
    **dict.fromkeys(("attn_layer_offset", "expert_layer_offset"), 1),
    **dict.fromkeys(("sliding_window_pattern", "_sliding_window_pattern"), 2),
}
MOST_LAYERS = 4
STAGES = ("depths", "layers", "stage_depths", "num_blocks")  # lists: layers of every stage


def build(name: str) -> tuple[torch.nn.Module, Inputs]:
    """The base model of a type, and inputs for it."""
    from transformers import AutoConfig, AutoModel

    refused: Exception | None = None
    whole = AutoConfig.for_model(name)
    for table, with_choices in itertools.product(TABLES, (True, False)):
        try:
            config = AutoConfig.for_model(name, **_smaller(whole, table, with_choices))
            _without_cache(config)
            with torch.device("meta"):
                parameters = sum(x.numel() for x in AutoModel.from_config(config).parameters())
            if parameters > MAX_PARAMETERS:
                raise ValueError(f"{parameters} parameters are too many to try")
            model = AutoModel.from_config(config).eval()
            return model, _inputs(model, config)
        except Exception as error:  # the numbers do not fit together: fewer of them may
            refused = error
    assert refused is not None
    raise refused


def deployed(name: str, limit: int, layers: int, sizes: Sizes) -> tuple[torch.nn.Module, Inputs]:
    """The base model of a type as its config has it from its authors, and inputs of given sizes;
    with fewer layers where there are more parameters than some limit."""
    from transformers import AutoConfig, AutoModel

    whole = AutoConfig.for_model(name)
    fewer = _smaller(whole, dict.fromkeys(LAYERS, layers), True, whole_images=True)
    for config in (whole, AutoConfig.for_model(name, **fewer)):
        _without_cache(config)
        with torch.device("meta"):
            parameters = sum(x.numel() for x in AutoModel.from_config(config).parameters())
        if parameters <= limit:
            model = AutoModel.from_config(config).eval()
            return model, _inputs(model, config, sizes)
    raise ValueError(f"{parameters} parameters are too many")


def generative(name: str, kind: str) -> torch.nn.Module:
    """A model of a type that writes text, as `AutoModelForCausalLM`, say, makes it: small, with a
    layer of each kind and windows shorter than the texts that it is tried with."""
    import transformers

    auto = getattr(transformers, kind)
    refused: Exception | None = None
    whole = transformers.AutoConfig.for_model(name)
    for table, with_choices in itertools.product(TABLES, (True, False)):
        try:
            fields = _smaller(whole, table | WINDOWS | PERIODS, with_choices, layers=MOST_LAYERS)
            config = transformers.AutoConfig.for_model(name, **fields)
            if kind == "AutoModelForCausalLM" and getattr(config, "is_decoder", None) is False:
                config.is_decoder = True
            with torch.device("meta"):
                parameters = sum(x.numel() for x in auto.from_config(config).parameters())
            if parameters > MAX_PARAMETERS:
                raise ValueError(f"{parameters} parameters are too many to try")
            model: torch.nn.Module = auto.from_config(config).eval()
            return model
        except Exception as error:  # the numbers do not fit together: fewer of them may
            refused = error
    assert refused is not None
    raise refused


def source(model: Any) -> torch.Tensor:
    """What a model with an encoder for no text makes a text from, in the first shape it takes."""
    main = model.main_input_name
    for shape in _shapes(main, model.config, SMALLEST):
        given = _input(main, (1, *shape), model.config, SMALLEST)
        try:
            with torch.no_grad():
                model.get_encoder()(given)
            return given
        except Exception:
            continue
    raise ValueError(f"takes no {main} known here")


# ------------------------------------------------------------------------------------ configs


def _without_cache(config: Any) -> None:
    """Results hold no keys and values for calls to come."""
    config.use_cache = False
    for held in vars(config).values():
        if hasattr(held, "model_type"):
            _without_cache(held)


def _smaller(
    config: Any,
    table: dict[str, int],
    with_choices: bool,
    whole_images: bool = False,
    layers: int = 0,
) -> dict[str, Any]:
    """Arguments for a config like one that is given, but smaller; with what it chose for those that
    it holds (a backbone's name), some of which speaks of layers that are no more. With `layers`, as
    many as there are kinds of them, up to that number."""
    made: dict[str, Any] = {}
    count = getattr(config, "num_hidden_layers", None)
    kept = _kinds(config, count, layers) if layers else None
    if kept is not None:
        table = table | {"num_hidden_layers": len(kept)}
    for field, value in vars(config).items():
        if hasattr(value, "model_type"):
            chosen = value.to_diff_dict() if with_choices else {}
            made[field] = chosen | _smaller(value, table, with_choices, whole_images, layers)
            made[field]["model_type"] = value.model_type
        elif isinstance(value, int) and not isinstance(value, bool) and field in table:
            made[field] = min(value, table[field])
        elif isinstance(value, int) and field.endswith("_token_id") and "vocab_size" in table:
            made[field] = min(value, WORDS - 1)
        elif isinstance(value, list) and field in STAGES and not whole_images:
            made[field] = [1] * len(value)
        elif isinstance(value, list) and len(value) == count and kept is not None:
            made[field] = [value[at] for at in kept]
        elif isinstance(value, list) and len(value) == count:  # one for each layer
            made[field] = value[-table["num_hidden_layers"] :]  # the last one is of a rarer kind
    if isinstance(getattr(config, "image_size", None), int) and not whole_images:
        patch = getattr(config, "patch_size", None)
        made["image_size"] = PATCHES * patch if isinstance(patch, int) else SIDE
    return made


def _kinds(config: Any, count: int | None, most: int) -> list[int] | None:
    """Layers such that there is one of each kind, as lists with an entry per layer tell them."""
    lists = [x for x in vars(config).values() if isinstance(x, list) and len(x) == count]
    if not lists or count is None:
        return None
    kinds: dict[str, int] = {}
    for at in range(count):
        kinds.setdefault(repr([each[at] for each in lists]), at)
    return sorted(kinds.values())[:most] if len(kinds) > 1 else [0, count - 1][:count]


# ------------------------------------------------------------------------------------ inputs


def _inputs(model: Any, config: Any, sizes: Sizes = SMALLEST) -> Inputs:
    """The first set of inputs that a model takes."""
    taken = inspect.signature(model.forward).parameters
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    needed = [x.name for x in taken.values() if x.kind in named and x.default is x.empty]
    main = model.main_input_name
    sets = [(main,), (main, "decoder_input_ids"), ("input_ids", "pixel_values"),
            ("input_ids", "input_features"), ("input_ids", "input_values"),
            ("input_ids", "bbox"), ("pixel_values", "pixel_mask"),
            (main, f"{main}_mask"), (main, "attention_mask")]  # fmt: skip
    failed: Exception | None = None
    for names in sets:
        names = tuple(dict.fromkeys((*names, *needed)))
        if not all(name in taken for name in names):
            continue
        for shapes in itertools.product(*(_shapes(name, config, sizes) for name in names)):
            given = _of(dict(zip(names, shapes, strict=True)), config, sizes)
            try:
                with torch.no_grad():
                    model(**given(2))
                    model(**given(3))
                return given
            except Exception as error:
                failed = failed or error
    raise ValueError(f"takes none of the inputs known here: {failed}")


def _of(shapes: dict[str, tuple[int, ...]], config: Any, sizes: Sizes) -> Inputs:
    return lambda batch: {
        name: _input(name, (batch, *shape), config, sizes) for name, shape in shapes.items()
    }


def _shapes(name: str, config: Any, sizes: Sizes) -> list[tuple[int, ...]]:
    """Shapes that an input of this name may have, less the batch."""
    if name.startswith("pixel"):
        return _images(name, config, sizes)
    bands = _held(config, "num_mel_bins", 80)
    frames = 2 * _held(config, "max_source_positions", sizes.frames)
    if name == "input_values":
        length = _found(config, "max_length", frames)
        return [
            (sizes.samples,),
            (_held(config, "audio_channels", 1), sizes.samples),
            (length, bands),
        ]
    if name == "input_features":
        return [(bands, frames), (frames, bands)]
    if name == "input_features_mask":
        return [(frames,)]
    if name == "bbox":
        return [(sizes.tokens, 4)]
    if name.endswith("_embeds"):
        return [(sizes.tokens, _found(_text(config), "hidden_size", sizes.tokens))]
    return [(sizes.tokens,)]


def _images(name: str, config: Any, sizes: Sizes) -> list[tuple[int, ...]]:
    vision = _found(config, "vision_config")
    size = _found(vision, "image_size", sizes.side)
    own = (size, size) if isinstance(size, int) else tuple(size)[-2:]
    sides = list(dict.fromkeys([own, (sizes.side, sizes.side), (2 * sizes.side, 2 * sizes.side)]))
    if name == "pixel_mask":
        return [own]
    channels = _found(vision, "num_channels", 3)
    frames = getattr(config, "num_frames", None)
    if frames is not None:
        return [(frames, channels, *each) for each in sides]
    return [*((channels, *each) for each in sides), (2, channels, *own)]  # the last: a pair


def _input(name: str, shape: tuple[int, ...], config: Any, sizes: Sizes) -> torch.Tensor:
    if name == "bbox":
        return torch.arange(4).expand(shape).clone()
    if name.endswith("_mask"):
        return torch.ones(shape, dtype=torch.int64)
    if name.endswith("_embeds") or name.startswith(("pixel", "input_values", "input_features")):
        return torch.randn(shape)
    words = _found(_text(config), "vocab_size", sizes.words)
    return torch.randint(2, min(int(words), sizes.words), shape)


def _text(config: Any) -> Any:
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _found(config: Any, field: str, default: Any = None) -> Any:
    found = getattr(config, field, None)
    return (config if field.endswith("_config") else default) if found is None else found


def _held(config: Any, field: str, default: int) -> int:
    """What a config, or the first of those that it holds, says."""
    configs = [config, *(held for held in vars(config).values() if hasattr(held, "model_type"))]
    return next((x for x in (getattr(each, field, None) for each in configs) if x), default)
