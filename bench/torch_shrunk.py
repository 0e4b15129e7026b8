"""Models of transformers made small enough to try every type there is, without a list of types.

A config's own fields say what can be made smaller: widths, counts of layers, of heads, of words, in
it and in the configs that it holds. Where the small numbers do not fit together, fewer fields are
changed. Inputs are those of the first set that the model takes in eager.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

Inputs = Callable[[int], dict[str, Any]]  # by batch size

MAX_PARAMETERS = 40_000_000
TOKENS, WORDS = 12, 128  # of a text, of a vocabulary
SAMPLES, FRAMES = 3200, 50  # of sound, of its spectra
PATCHES = 4  # along each side of an image
SIDE = 64  # of an image that is not cut into patches

COUNTS = {
    **dict.fromkeys(
        ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers"), 2
    ),
    **dict.fromkeys(("decoder_layers", "num_decoder_layers", "num_encoder_layers"), 2),
    **dict.fromkeys(("vocab_size", "type_vocab_size"), WORDS),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), 64),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_top_k"), 2),
    "max_source_positions": FRAMES,
}
WIDTHS = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "projection_dim"), 32),
    **dict.fromkeys(("embedding_size", "encoder_hidden_size", "decoder_hidden_size"), 32),
    **dict.fromkeys(("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim"), 64),
    **dict.fromkeys(("n_inner", "d_ff", "d_inner", "moe_intermediate_size", "hidden_dim"), 64),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "n_head", "n_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "num_heads"), 4),
    **dict.fromkeys(("head_dim", "d_kv", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
}
STAGES = ("depths", "layers", "stage_depths", "num_blocks")  # lists: layers of every stage


def build(name: str) -> tuple[torch.nn.Module, Inputs]:
    """The base model of a type, and inputs for it."""
    from transformers import AutoModel

    refused: Exception | None = None
    for config in _configs(name):
        try:
            with torch.device("meta"):
                parameters = sum(x.numel() for x in AutoModel.from_config(config).parameters())
            if parameters > MAX_PARAMETERS:
                raise ValueError(f"{parameters} parameters are too many to try")
            model = AutoModel.from_config(config).eval()
            return model, _inputs(model, config)
        except Exception as error:
            refused = refused or error
    assert refused is not None
    raise refused


# ------------------------------------------------------------------------------------ configs


def _configs(name: str) -> Iterator[Any]:
    """Configs of a type, the smallest first."""
    from transformers import AutoConfig

    whole = AutoConfig.for_model(name)
    for table in (COUNTS | WIDTHS, COUNTS):
        try:
            config = AutoConfig.for_model(name, **_smaller(whole, table))
        except Exception:  # the numbers do not fit together: fewer of them may
            continue
        _without_cache(config)
        yield config


def _without_cache(config: Any) -> None:
    """Results hold no keys and values for calls to come."""
    config.use_cache = False
    for held in vars(config).values():
        if hasattr(held, "model_type"):
            _without_cache(held)


def _smaller(config: Any, table: dict[str, int]) -> dict[str, Any]:
    """Arguments for a config like one that is given, but smaller."""
    made: dict[str, Any] = {}
    layers = getattr(config, "num_hidden_layers", None)
    for field, value in vars(config).items():
        if hasattr(value, "model_type"):
            made[field] = {"model_type": value.model_type, **_smaller(value, table)}
        elif isinstance(value, int) and not isinstance(value, bool) and field in table:
            made[field] = min(value, table[field])
        elif isinstance(value, int) and field.endswith("_token_id"):
            made[field] = min(value, WORDS - 1)
        elif isinstance(value, list) and field in STAGES:
            made[field] = [1] * len(value)
        elif isinstance(value, list) and len(value) == layers:  # one for each layer
            made[field] = value[: table["num_hidden_layers"]]
    if isinstance(getattr(config, "image_size", None), int):
        patch = getattr(config, "patch_size", None)
        made["image_size"] = PATCHES * patch if isinstance(patch, int) else SIDE
    return made


# ------------------------------------------------------------------------------------ inputs


def _inputs(model: Any, config: Any) -> Inputs:
    """The first set of inputs that a model takes."""
    taken = inspect.signature(model.forward).parameters
    main = model.main_input_name
    sets = [(main,), (main, "decoder_input_ids"), ("input_ids", "pixel_values"),
            ("input_ids", "input_features"), ("input_ids", "input_values"),
            ("input_ids", "bbox"), ("pixel_values", "pixel_mask")]  # fmt: skip
    failed: Exception | None = None
    for names in sets:
        if not all(name in taken for name in names):
            continue
        given = _of(names, config)
        try:
            with torch.no_grad():
                model(**given(2))
                model(**given(3))
            return given
        except Exception as error:
            failed = failed or error
    raise ValueError(f"takes none of the inputs known here: {failed}")


def _of(names: tuple[str, ...], config: Any) -> Inputs:
    return lambda batch: {name: _input(name, config, batch) for name in names}


def _input(name: str, config: Any, batch: int) -> torch.Tensor:
    if name.startswith("pixel"):
        vision = _found(config, "vision_config")
        size = _found(vision, "image_size", SIDE)
        sides = (size, size) if isinstance(size, int) else tuple(size)[-2:]
        if name == "pixel_mask":
            return torch.ones(batch, *sides, dtype=torch.int64)
        shape = (batch, _found(vision, "num_channels", 3), *sides)
        frames = getattr(config, "num_frames", None)
        return torch.randn(shape if frames is None else (batch, frames, *shape[1:]))
    if name == "input_values":
        return torch.randn(batch, SAMPLES)
    if name == "input_features":
        bands = _found(config, "num_mel_bins", 80)
        return torch.randn(batch, bands, 2 * _found(config, "max_source_positions", FRAMES))
    if name == "bbox":
        return torch.arange(4).expand(batch, TOKENS, 4).clone()
    words = _found(_text(config), "vocab_size", WORDS)
    return torch.randint(2, min(int(words), WORDS), (batch, TOKENS))


def _text(config: Any) -> Any:
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _found(config: Any, field: str, default: Any = None) -> Any:
    found = getattr(config, field, None)
    return (config if field.endswith("_config") else default) if found is None else found
