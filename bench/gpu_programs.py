"""Models of timm and transformers as programs of ATen operators, for machines with torch alone.

    python bench/gpu_programs.py FOLDER [--only REGEX]         written where the libraries are

    program = read(FOLDER / "swin_tiny.f16.b1.pt")             read where they need not be
    program.module("cuda"), program.inputs("cuda")

What torch.export traces is kept as text. Of weights there are shapes, means and deviations, and
they are drawn again; integers and small tensors are kept as they are, for they mean something.
"""

from __future__ import annotations

import argparse
import re
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export.graph_signature import InputKind

SAMPLE = 100_000  # elements that tell mean and deviation
KEPT = 4096  # elements; longer tensors of floats are drawn
PRECISIONS = {"f16": torch.float16, "f32": torch.float32}
CASES = (("f16", 1), ("f16", 8))  # of every model; precision, batch
IN_F32 = ("convnext_tiny", "efficientnet_b0", "regnety_008", "densenet121", "vit_small_patch16_224",
          "swin_tiny_patch4_window7_224", "hrnet_w18_small", "distilbert", "gpt2")  # fmt: skip
IMAGES = ("convnext_tiny", "efficientnet_b0", "regnety_008", "mobilenetv3_large_100", "densenet121",
          "resnext50_32x4d", "vit_small_patch16_224", "swin_tiny_patch4_window7_224",
          "deit3_small_patch16_224", "coatnet_nano_rw_224", "mixer_b16_224", "poolformer_s12",
          "res2net50_26w_4s", "ghostnet_100", "hrnet_w18_small", "inception_v3",
          "edgenext_small", "maxvit_tiny_tf_224", "xcit_tiny_12_p16_224", "pit_s_224",
          "twins_svt_small", "pvt_v2_b1", "eca_nfnet_l0", "cspdarknet53", "seresnet50",
          "focalnet_tiny_srf", "davit_tiny", "levit_192", "convmixer_768_32",
          "beit_base_patch16_224", "mobilevit_s", "dpn68")  # fmt: skip
# Nothing was made faster for these: what others are to expect.
UNSEEN = ("efficientformer_l1", "mvitv2_tiny", "nextvit_small", "fastvit_t8", "tiny_vit_5m_224",
          "hiera_tiny_224", "eva02_tiny_patch14_224", "gcvit_xxtiny", "repvgg_a2", "vgg16_bn",
          "cait_xxs24_224", "visformer_tiny", "inception_next_tiny", "tf_efficientnetv2_s",
          "coat_lite_tiny", "volo_d1_224", "resnetv2_50", "sequencer2d_s")  # fmt: skip
QWEN = {"hidden_size": 896, "num_attention_heads": 14, "num_key_value_heads": 2,
        "intermediate_size": 4864, "num_hidden_layers": 12, "vocab_size": 32_000}  # fmt: skip
# Of transformers: type, changes to its configuration, name and shape of the input.
TOKENS, PIXELS = ("input_ids", (128,)), ("pixel_values", (3, 224, 224))
OTHERS: dict[str, tuple[str, dict[str, Any], tuple[str, tuple[int, ...]]]] = {
    "distilbert": ("distilbert", {}, TOKENS),
    "roberta": ("roberta", {}, TOKENS),
    "gpt2": ("gpt2", {}, ("input_ids", (256,))),
    "qwen2": ("qwen2", QWEN, ("input_ids", (256,))),
    "qwen2_step": ("qwen2", QWEN, ("input_ids", (1,))),
    "t5_encoder": ("t5", {}, TOKENS),
    "whisper_encoder": (
        "whisper",
        {"d_model": 384, "encoder_layers": 4, "encoder_attention_heads": 6, "encoder_ffn_dim": 1536,
         "decoder_layers": 1, "decoder_attention_heads": 6},
        ("input_features", (80, 3000)),
    ),
    "clip_vision": ("clip_vision_model", {}, PIXELS),
    "segformer": ("segformer", {}, ("pixel_values", (3, 512, 512))),
    "wav2vec2": ("wav2vec2", {}, ("input_values", (16_000,))),
    "albert": ("albert", {}, TOKENS),
    "deberta": ("deberta-v2", {"num_hidden_layers": 6, "hidden_size": 768, "vocab_size": 32_000,
                               "num_attention_heads": 12, "intermediate_size": 3072}, TOKENS),
    "opt": ("opt", {}, ("input_ids", (256,))),
    "gemma2": ("gemma2", {"hidden_size": 1024, "num_hidden_layers": 8, "intermediate_size": 4096,
                          "vocab_size": 32_000, "head_dim": 128}, ("input_ids", (256,))),
    "phi": ("phi", {"hidden_size": 1024, "num_hidden_layers": 8, "intermediate_size": 4096,
                    "num_attention_heads": 16, "vocab_size": 32_000}, ("input_ids", (256,))),
    "dinov2": ("dinov2", {"hidden_size": 384, "num_attention_heads": 6}, PIXELS),
}  # fmt: skip
UNSEEN_OTHERS: dict[str, tuple[str, dict[str, Any], tuple[str, tuple[int, ...]]]] = {
    "bloom": ("bloom", {"hidden_size": 1024, "n_layer": 8, "n_head": 16, "vocab_size": 32_000},
              ("input_ids", (256,))),
    "llama": ("llama", {"hidden_size": 1024, "num_hidden_layers": 8, "intermediate_size": 2816,
                        "num_attention_heads": 16, "vocab_size": 32_000}, ("input_ids", (256,))),
    "mistral_step": ("mistral", {"hidden_size": 1024, "num_hidden_layers": 8,
                                 "intermediate_size": 3584, "num_attention_heads": 16,
                                 "num_key_value_heads": 4, "vocab_size": 32_000},
                     ("input_ids", (1,))),
    "mobilebert": ("mobilebert", {}, TOKENS),
    "mpnet": ("mpnet", {}, TOKENS),
    "gpt_neox": ("gpt_neox", {"hidden_size": 1024, "num_hidden_layers": 8, "vocab_size": 32_000,
                              "num_attention_heads": 16, "intermediate_size": 4096},
                 ("input_ids", (256,))),
    "squeezebert": ("squeezebert", {}, TOKENS),
    "siglip_vision": ("siglip_vision_model", {}, PIXELS),
}  # fmt: skip
# Drawn later still, by kinds of layers: parallel blocks, experts, states instead of attention.
SMALL = {"hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16,
         "vocab_size": 32_000}  # fmt: skip
WORDS = ("input_ids", (256,))
FRESH: dict[str, tuple[str, dict[str, Any], tuple[str, tuple[int, ...]]]] = {
    "falcon": ("falcon", {**SMALL, "num_kv_heads": 16, "new_decoder_architecture": False}, WORDS),
    "gptj": ("gptj", {"n_embd": 1024, "n_layer": 8, "n_head": 16, "rotary_dim": 32,
                      "vocab_size": 32_000}, WORDS),
    "starcoder2": ("starcoder2", {**SMALL, "intermediate_size": 4096, "num_key_value_heads": 4},
                   WORDS),
    "olmo2": ("olmo2", {**SMALL, "intermediate_size": 2816}, WORDS),
    "cohere": ("cohere", {**SMALL, "intermediate_size": 2816, "num_key_value_heads": 16}, WORDS),
    "mamba": ("mamba", {"hidden_size": 768, "num_hidden_layers": 4, "vocab_size": 32_000}, WORDS),
    "bart": ("bart", {"encoder_layers": 6, "decoder_layers": 6, "vocab_size": 32_000}, TOKENS),
    "nystromformer": ("nystromformer", {"num_hidden_layers": 6, "vocab_size": 32_000}, WORDS),
    "xglm": ("xglm", {"d_model": 1024, "num_layers": 8, "ffn_dim": 4096, "vocab_size": 32_000},
             WORDS),
    "electra": ("electra", {}, TOKENS),
}  # fmt: skip
# Drawn last: linear attention, split attention, pixels within patches, two scales, gated tokens.
LATER = ("efficientvit_b1", "resnest14d", "tnt_s_patch16_224", "crossvit_9_240", "gmlp_s16_224",
         "mobilenetv4_conv_small")  # fmt: skip
LATER_OTHERS: dict[str, tuple[str, dict[str, Any], tuple[str, tuple[int, ...]]]] = {
    "modernbert": ("modernbert", {"num_hidden_layers": 6}, WORDS),
    "qwen3": ("qwen3", {**SMALL, "intermediate_size": 2816, "num_key_value_heads": 4,
                        "head_dim": 64}, WORDS),
}  # fmt: skip
# A third draw: gathers within windows, convolutional attention, large kernels, odd channels.
THIRD = ("convformer_s18", "efficientnet_lite0", "rexnet_100", "lcnet_100", "selecsls42b",
         "ese_vovnet19b_dw", "nf_resnet50", "halonet26t", "lambda_resnet26t", "botnet26t_256",
         "convit_tiny", "xception41", "dla34", "swinv2_tiny_window8_256",
         "maxxvit_rmlp_nano_rw_256", "mobilevitv2_050", "rdnet_tiny", "starnet_s1",
         "mambaout_femto", "swiftformer_xs", "fasternet_t0", "hgnetv2_b0", "nest_tiny",
         "resmlp_12_224", "repvit_m0_9", "nasnetalarge")  # fmt: skip
THIRD_OTHERS: dict[str, tuple[str, dict[str, Any], tuple[str, tuple[int, ...]]]] = {
    "convbert": ("convbert", {"num_hidden_layers": 6}, TOKENS),
    "fnet": ("fnet", {}, TOKENS),
    "xlnet": ("xlnet", {"n_layer": 6}, TOKENS),
    "phi3": ("phi3", {**SMALL, "intermediate_size": 2816, "pad_token_id": 0}, WORDS),
    "gemma3": ("gemma3_text", {**SMALL, "num_key_value_heads": 4, "head_dim": 64,
                               "intermediate_size": 2816}, WORDS),
    "stablelm": ("stablelm", {**SMALL, "intermediate_size": 2816, "num_key_value_heads": 16},
                 WORDS),
    "codegen": ("codegen", {"n_embd": 1024, "n_layer": 8, "n_head": 16, "rotary_dim": 32,
                            "vocab_size": 32_000}, WORDS),
    "rembert": ("rembert", {"num_hidden_layers": 6, "vocab_size": 32_000}, TOKENS),
    "yolos": ("yolos", {"num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 6,
                        "intermediate_size": 1536, "image_size": [224, 224]}, PIXELS),
    "hubert": ("hubert", {"num_hidden_layers": 6}, ("input_values", (16_000,))),
    "mpt": ("mpt", {"d_model": 1024, "n_layers": 8, "n_heads": 16, "vocab_size": 32_000}, WORDS),
    "granite_step": ("granite", {**SMALL, "intermediate_size": 2816, "num_key_value_heads": 4},
                     ("input_ids", (1,))),
}  # fmt: skip
# A fourth: relative positions, gated states, blur, mixed kernels, two towers of heads.
FOURTH = ("tresnet_m", "inception_resnet_v2", "regnetx_032", "skresnet18", "convnextv2_atto",
          "efficientvit_m0", "res2next50", "mixnet_s", "vit_relpos_small_patch16_224",
          "gcresnet33ts", "eca_halonext26ts", "coatnet_rmlp_nano_rw_224", "mobileone_s0",
          "densenetblur121d", "cs3darknet_s", "fastvit_sa12", "pvt_v2_b0",
          "ghostnetv3_100")  # fmt: skip
FOURTH_OTHERS: dict[str, tuple[str, dict[str, Any], tuple[str, tuple[int, ...]]]] = {
    "roformer": ("roformer", {"num_hidden_layers": 6}, TOKENS),
    "esm": ("esm", {**SMALL, "intermediate_size": 4096, "pad_token_id": 1,
                    "position_embedding_type": "rotary"}, WORDS),
    "wavlm": ("wavlm", {"num_hidden_layers": 6}, ("input_values", (16_000,))),
    "gpt_bigcode": ("gpt_bigcode", {"n_embd": 1024, "n_layer": 8, "n_head": 16,
                                    "vocab_size": 32_000}, WORDS),
    "glm": ("glm", {**SMALL, "intermediate_size": 2816, "num_key_value_heads": 2, "head_dim": 64,
                    "pad_token_id": 0}, WORDS),
    "nemotron": ("nemotron", {**SMALL, "intermediate_size": 4096, "num_key_value_heads": 16,
                              "head_dim": 64}, WORDS),
    "mbart": ("mbart", {"encoder_layers": 6, "decoder_layers": 6, "vocab_size": 32_000}, TOKENS),
    "dpt": ("dpt", {"num_hidden_layers": 6}, ("pixel_values", (3, 384, 384))),
    "lfm2": ("lfm2", {**SMALL, "intermediate_size": 2816, "num_key_value_heads": 4}, WORDS),
    "olmo2_step": ("olmo2", {**SMALL, "intermediate_size": 2816, "num_key_value_heads": 16},
                   ("input_ids", (1,))),
}  # fmt: skip
NAMES = (*IMAGES, *OTHERS, *UNSEEN, *UNSEEN_OTHERS, *FRESH, *LATER, *LATER_OTHERS, *THIRD,
         *THIRD_OTHERS, *FOURTH, *FOURTH_OTHERS)  # fmt: skip
PAST = 512  # tokens before the one of a step


def cases() -> list[tuple[str, str, int]]:
    """Name, precision, batch."""
    made = [(name, precision, batch) for precision, batch in CASES for name in NAMES]
    return made + [(name, "f32", 1) for name in IN_F32]


def title(name: str, precision: str, batch: int) -> str:
    return f"{name}.{precision}.b{batch}"


# ------------------------------------------------------------------------------------ builders


class First(nn.Module):
    """A model of transformers that gives its first result."""

    def __init__(self, model: nn.Module, key: str) -> None:
        super().__init__()
        self.model, self.key = model, key

    def forward(self, given: Tensor) -> Tensor:
        result: Tensor = self.model(**{self.key: given}, return_dict=False)[0]
        return result


class Step(nn.Module):
    """A language model that reads one token after those whose keys and values it is given."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, token: Tensor, past: Tensor) -> Tensor:
        from transformers import DynamicCache

        cache = DynamicCache()
        for layer, (keys, values) in enumerate(past):
            cache.update(keys, values, layer)
        places = torch.full_like(token, PAST)
        result: Tensor = self.model(
            input_ids=token, past_key_values=cache, position_ids=places, return_dict=False
        )[0]
        return result


def with_statistics(model: nn.Module, images: Tensor) -> None:
    """Batch norms keep in bounds what made-up weights make: without them some exceed f16."""
    norms = [each for each in model.modules() if isinstance(each, nn.BatchNorm2d)]
    if norms:
        for each in norms:
            each.momentum = 1.0
        with torch.no_grad():
            model.train()(images)


def build(name: str, batch: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A model with weights that its library makes up, and inputs."""
    import torch_zoo

    torch.manual_seed(0)
    torch_zoo.prepare()
    if name in {*IMAGES, *UNSEEN, *LATER, *THIRD, *FOURTH}:
        import timm

        model = timm.create_model(name, pretrained=False)
        side = model.default_cfg["input_size"][-1]
        with_statistics(model, torch.randn(2, 3, side, side))
        return model, (torch.randn(batch, 3, side, side),)
    from transformers import AutoConfig, AutoModel

    kind, changes, (key, shape) = {
        **OTHERS,
        **UNSEEN_OTHERS,
        **FRESH,
        **LATER_OTHERS,
        **THIRD_OTHERS,
        **FOURTH_OTHERS,
    }[name]
    config = AutoConfig.for_model(kind, **changes)
    config.use_cache = name.endswith("_step")
    model = AutoModel.from_config(config)
    if name.endswith("_encoder"):
        model = model.encoder
    size = (batch, *shape)
    given = torch.randint(0, 1000, size) if key == "input_ids" else torch.randn(size)
    if not name.endswith("_step"):
        return First(model, key), (given,)
    width = config.hidden_size // config.num_attention_heads
    past = (config.num_hidden_layers, 2, batch, config.num_key_value_heads, PAST, width)
    return Step(model), (given, torch.randn(past))


# ------------------------------------------------------------------------------------ programs


@dataclass(frozen=True)
class Drawn:
    """A tensor that is drawn again."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    mean: float
    deviation: float

    def tensor(self) -> Tensor:
        drawn = torch.empty(self.shape, dtype=torch.float32).normal_(self.mean, self.deviation)
        return drawn.to(self.dtype)


def told(value: Tensor) -> Tensor | Drawn:
    """What is kept of a tensor."""
    value = value.detach()
    if value.numel() <= KEPT or not value.is_floating_point():
        return value.clone()
    exact = value.flatten()[:SAMPLE].float()
    return Drawn(tuple(value.shape), value.dtype, float(exact.mean()), float(exact.std()))


class Traced(nn.Module):
    """The operators of a program over its weights."""

    def __init__(self, text: str, weights: Sequence[Tensor]) -> None:
        super().__init__()
        names = {"torch": torch, "device": torch.device, "inf": float("inf"), "nan": float("nan")}
        exec(compile(text, "<program>", "exec"), names)
        self.run: Any = names["forward"]
        self.weights = []
        for at, value in enumerate(weights):
            self.register_buffer(f"w{at}", value)
            self.weights.append(f"w{at}")

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        result: tuple[Tensor, ...] = self.run(
            None, *[getattr(self, name) for name in self.weights], *inputs
        )
        return result


@dataclass(frozen=True)
class Program:
    """A model that needs nothing but torch."""

    text: str
    weights: tuple[Tensor | Drawn, ...]
    given: tuple[Tensor | Drawn, ...]

    def module(self, device: str = "cpu") -> Traced:
        """The same weights each time."""
        torch.manual_seed(0)
        weights = [each.tensor() if isinstance(each, Drawn) else each for each in self.weights]
        return Traced(self.text.replace("type='cpu'", f"type='{device}'"), weights).to(device)

    def inputs(self, device: str = "cpu") -> tuple[Tensor, ...]:
        torch.manual_seed(1)
        made = [each.tensor() if isinstance(each, Drawn) else each for each in self.given]
        return tuple(each.to(device) for each in made)

    def in_f32(self) -> Widened:
        """The same numbers, computed with in f32."""
        text = re.sub(r"torch\.(float16|half)\b", "torch.float32", self.text)
        return Widened(text, self.weights, self.given)


class Widened(Program):
    """A program whose tensors are drawn as they were, then widened."""

    def module(self, device: str = "cpu") -> Traced:
        return super().module(device).float()

    def inputs(self, device: str = "cpu") -> tuple[Tensor, ...]:
        return tuple(
            each.float() if each.is_floating_point() else each for each in super().inputs(device)
        )


def traced(model: nn.Module, inputs: tuple[Tensor, ...]) -> Program:
    """What torch.export makes of a model."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.export.export(model.eval(), inputs)
        if any(node.op == "get_attr" for node in exported.graph_module.graph.nodes):
            exported = exported.run_decompositions({})  # regions of gradients and autocasts: inline
    weights: list[Tensor | Drawn] = []
    for spec in exported.graph_signature.input_specs:
        if spec.kind != InputKind.USER_INPUT:
            held = {**exported.state_dict, **exported.constants}
            weights.append(told(held[str(spec.target)]))
    drop_checks(exported.graph_module)
    return Program(exported.graph_module.code, tuple(weights), tuple(map(told, inputs)))


def drop_checks(module: torch.fx.GraphModule) -> None:
    """Checks of what tensors are have no result, and name the device of the tracing."""
    for node in list(module.graph.nodes):
        if str(node.target) == "aten._assert_tensor_metadata.default":
            module.graph.erase_node(node)
    module.recompile()


def in_precision(values: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    return tuple(each.to(dtype) if each.is_floating_point() else each for each in values)


def write(name: str, precision: str, batch: int, folder: Path) -> Path:
    model, inputs = build(name, batch)
    dtype = PRECISIONS[precision]
    made = traced(model.to(dtype), in_precision(inputs, dtype))
    path = folder / f"{title(name, precision, batch)}.pt"
    parts = {key: [vars(each) if isinstance(each, Drawn) else each for each in getattr(made, key)]
             for key in ("weights", "given")}  # fmt: skip
    torch.save({"text": made.text, **parts}, path)
    return path


def read(path: Path) -> Program:
    found = torch.load(path, weights_only=True)

    def values(key: str) -> Iterator[Tensor | Drawn]:
        return (Drawn(**each) if isinstance(each, dict) else each for each in found[key])

    return Program(found["text"], tuple(values("weights")), tuple(values("given")))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="a regular expression on titles")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for case in cases():
        path = options.folder / f"{title(*case)}.pt"
        if re.search(options.only, path.stem) and not path.exists():
            try:
                path = write(*case, options.folder)
                print(f"{path.name}: {path.stat().st_size >> 10} KB", flush=True)
            except Exception:  # one model's trouble is its own
                print(f"{title(*case)}: {traceback.format_exc(limit=-3)[-900:]}", flush=True)


if __name__ == "__main__":
    main()
