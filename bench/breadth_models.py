"""Models of many kinds outside all other benchmarks, exported with random weights.

    python bench/breadth_models.py NAME FOLDER

writes NAME.onnx and the inputs of its cases, as bench/models.py does. Names begin with where a
model comes from: timm, torchvision, transformers, or own for kinds that none of these has.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch_draw
import torch_zoo
from torch import Tensor, nn

OPSET = 17

TIMM = (
    "convnext_atto", "convnextv2_atto", "cspresnet50", "darknet53", "densenet121", "dla34",
    "dpn48b", "edgenext_xx_small", "efficientnet_b0", "efficientformer_l1", "ese_vovnet19b_dw",
    "fbnetc_100", "gernet_s", "ghostnet_100", "hardcorenas_a", "hrnet_w18_small",
    "inception_next_tiny", "lcnet_050", "levit_128s", "mixer_s32_224", "mobilenetv3_small_100",
    "mobileone_s0", "mobilevit_xxs", "mnasnet_100", "poolformer_s12", "regnetx_008",
    "regnety_008", "repvgg_a0", "res2net50_26w_4s", "resnest14d", "resnext50_32x4d", "rexnet_100",
    "seresnet50", "skresnet18", "swin_tiny_patch4_window7_224", "deit_tiny_patch16_224",
    "tf_efficientnetv2_b0", "visformer_tiny", "xcit_nano_12_p16_224",
)  # fmt: skip
TORCHVISION = (
    "alexnet", "deeplabv3_mobilenet_v3_large", "fcn_resnet50", "googlenet", "inception_v3",
    "lraspp_mobilenet_v3_large", "r2plus1d_18", "shufflenet_v2_x1_0", "squeezenet1_1", "vgg11",
)  # fmt: skip
TRANSFORMERS = (
    "albert", "bart", "clip_vision_model", "detr", "distilbert", "electra", "llama", "mixtral",
    "opt", "segformer", "t5", "wav2vec2", "whisper", "yolos",
)  # fmt: skip
QUANTIZED = (
    "timm.efficientnet_b0", "timm.mobilenetv3_small_100", "timm.regnetx_008", "timm.repvgg_a0",
    "timm.resnext50_32x4d", "timm.convnext_atto", "timm.deit_tiny_patch16_224", "timm.densenet121",
    "torchvision.googlenet", "torchvision.shufflenet_v2_x1_0", "torchvision.squeezenet1_1",
    "torchvision.vgg11", "transformers.distilbert", "transformers.electra", "own.crnn",
)  # fmt: skip
MEDIUM = {  # what a config has, where it has such a field: a few layers of a real width
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim"), 256),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layers", "encoder_layers"), 4),
    **dict.fromkeys(("decoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_heads", "num_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "num_key_value_heads"), 4),
    **dict.fromkeys(("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim"), 1024),
    **dict.fromkeys(("d_ff", "hidden_dim"), 1024),
    "vocab_size": 8000,
    "head_dim": 64,
}
TOKENS = 96


@dataclass
class Made:
    """A module, inputs by case, and which of their sizes are open."""

    module: nn.Module
    cases: dict[str, dict[str, Any]]
    dynamic: dict[str, dict[int, str]] = field(default_factory=dict)


# --------------------------------------------------------------------------- kinds of our own


class Recognizer(nn.Module):
    """Text recognition: convolutions that keep the width, recurrence along it."""

    def __init__(self) -> None:
        super().__init__()
        stages: list[nn.Module] = []
        for inputs, outputs, pool in (
            (3, 32, 2),
            (32, 64, 2),
            (64, 128, (2, 1)),
            (128, 256, (2, 1)),
        ):
            stages += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs)]
            stages += [nn.ReLU(), nn.MaxPool2d(pool)]
        self.stages = nn.Sequential(*stages)
        self.recurrent = nn.LSTM(256, 128, bidirectional=True, batch_first=True)
        self.head = nn.Linear(256, 97)

    def forward(self, x: Tensor) -> Tensor:
        features = self.stages(x).mean(2).transpose(1, 2)
        scores: Tensor = self.head(self.recurrent(features)[0]).softmax(-1)
        return scores


class Spotter(nn.Module):
    """Speech: 1-d convolutions over frames of a spectrum, by channel and across, then a GRU."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv1d(80, 128, 5, 2, 2), nn.ReLU()]
        for dilation in (1, 2, 4, 8):
            pad = 4 * dilation
            layers += [nn.Conv1d(128, 128, 9, 1, pad, dilation, groups=128), nn.Conv1d(128, 128, 1)]
            layers += [nn.BatchNorm1d(128), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.gate = nn.GRU(128, 64, batch_first=True)
        self.head = nn.Linear(64, 12)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.gate(self.layers(x).transpose(1, 2))
        scores: Tensor = self.head(out)
        return scores


class Segmenter(nn.Module):
    """A U-shaped network: halves, doubles, and joins what both sides have."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 24, 48, 96)
        pairs = list(itertools.pairwise(widths))
        self.down = nn.ModuleList(self._pair(a, b) for a, b in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairs[:0:-1])
        self.join = nn.ModuleList(self._pair(2 * a, a) for a, _ in pairs[:0:-1])
        self.head = nn.Conv2d(24, 5, 1)

    @staticmethod
    def _pair(inputs: int, outputs: int) -> nn.Module:
        first, second = nn.Conv2d(inputs, outputs, 3, 1, 1), nn.Conv2d(outputs, outputs, 3, 1, 1)
        return nn.Sequential(first, nn.ReLU(), second, nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for at, stage in enumerate(self.down):
            x = stage(x if at == 0 else nn.functional.max_pool2d(x, 2))
            kept.append(x)
        for up, join, side in zip(self.up, self.join, kept[-2::-1], strict=True):
            x = join(torch.cat([up(x), side], 1))
        scores: Tensor = self.head(x)
        return scores


def recognizer() -> Made:
    sizes = {"w320": (1, 3, 32, 320), "h48w200": (1, 3, 48, 200)}
    cases = {name: {"x": torch.rand(*shape)} for name, shape in sizes.items()}
    return Made(Recognizer(), cases, {"x": {0: "batch", 2: "height", 3: "width"}})


def segmenter() -> Made:
    cases = {"base": {"x": torch.rand(1, 3, 192, 256)}}
    return Made(Segmenter(), cases, {"x": {2: "height", 3: "width"}})


OWN: dict[str, Callable[[], Made]] = {
    "crnn": recognizer,
    "unet": segmenter,
    "spotter": lambda: Made(
        Spotter(), {"base": {"x": torch.rand(1, 80, 200)}}, {"x": {0: "batch", 2: "frames"}}
    ),
}
NAMES = (
    *(f"timm.{name}" for name in TIMM),
    *(f"torchvision.{name}" for name in TORCHVISION),
    *(f"transformers.{name}" for name in TRANSFORMERS),
    *(f"own.{name}" for name in OWN),
)


def drawn(seed: int, count: int) -> list[str]:
    """Others of the same libraries, chosen by a seed."""
    paths = torch_draw.draw(seed, count, lambda path: path.replace("/", ".") not in NAMES)
    return [path.replace("/", ".") for path in paths]


# --------------------------------------------------------------------------- building


def build(name: str) -> Made:
    """A model by name, its normalizations with statistics that are not the identity."""
    torch.manual_seed(0)
    source, _, rest = name.partition(".")
    if source == "own":
        made = OWN[rest]()
    elif source == "transformers":
        made = transformer(rest)
    else:
        makers = {"timm": torch_zoo.build_timm, "torchvision": torch_zoo.build_torchvision}
        module, inputs = makers[source](rest, is_small=False)
        made = Made(module, {"base": inputs(1)})
    made.module.eval()
    for each in made.module.modules():
        if isinstance(each, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)):
            nn.init.uniform_(each.running_mean, -0.1, 0.1)
            nn.init.uniform_(each.running_var, 0.8, 1.2)
    return made


def transformer(name: str) -> Made:
    torch_zoo.prepare()
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model(name)
    for key, value in MEDIUM.items():
        if isinstance(getattr(config, key, None), int):
            setattr(config, key, value)
    for key, value in {"use_cache": False, "use_pretrained_backbone": False}.items():
        if hasattr(config, key):
            setattr(config, key, value)
    for key in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        if (getattr(config, key, None) or 0) >= MEDIUM["vocab_size"]:
            setattr(config, key, 0)
    config.attn_implementation = "eager"
    config._experts_implementation = "eager"  # the others need operators that ONNX lacks
    config.return_dict = True
    module = AutoModel.from_config(config)
    main = module.main_input_name
    shapes: dict[str, tuple[int, ...]] = {
        "pixel_values": (1, 3, 224, 224),
        "input_values": (1, 16000),
        "input_features": (1, getattr(config, "num_mel_bins", 80), 3000),
    }
    if main == "pixel_values" and isinstance(size := getattr(config, "image_size", None), int):
        shapes[main] = (1, 3, size, size)
    if main in shapes:
        given: dict[str, Any] = {main: torch.rand(*shapes[main])}
    else:
        given = {main: torch.randint(0, 8000, (1, TOKENS))}
    dynamic = {} if main == "pixel_values" else {main: {1: "length"}}
    if getattr(config, "is_encoder_decoder", False) and name != "detr":
        given["decoder_input_ids"] = torch.randint(0, 8000, (1, 16))
        given["decoder_attention_mask"] = torch.ones(1, 16, dtype=torch.int64)
    elif main == "input_ids":
        given["attention_mask"] = torch.ones(1, TOKENS, dtype=torch.int64)
        dynamic["attention_mask"] = {1: "length"}
    return Made(module, {"base": given}, {} if main == "input_features" else dynamic)


def tensors_of(made: Any) -> list[Tensor]:
    """All tensors of floats in what a model returns."""
    if isinstance(made, Tensor):
        return [made] if made.is_floating_point() else []
    values = made.values() if isinstance(made, dict) else made
    if not isinstance(made, (dict, list, tuple)):
        return []
    return [tensor for each in values for tensor in tensors_of(each)]


class Flat(nn.Module):
    """A module whose inputs go by position and whose results are a tuple."""

    def __init__(self, module: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.module, self.names = module, names

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensors_of(self.module(**dict(zip(self.names, given, strict=True))))[:2])


def export(name: str, folder: Path) -> None:
    made = build(name)
    first = next(iter(made.cases.values()))
    module = Flat(made.module, list(first)).eval()
    path = folder / f"{name}.onnx"
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            tuple(first.values()),
            str(path),
            input_names=list(first),
            dynamic_axes=made.dynamic or None,
            opset_version=OPSET,
            dynamo=False,
        )
    for case, inputs in made.cases.items():
        arrays = {key: tensor.numpy() for key, tensor in inputs.items()}
        np.savez(folder / f"{name}.{case}.in.npz", **arrays)


if __name__ == "__main__":
    export(sys.argv[1], Path(sys.argv[2]))
