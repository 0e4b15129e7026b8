"""Models that torchao quantizes, and what they are exported as: as eager, weights packed."""

import importlib.util

import pytest
import torch
from torch import nn

import tilewright as tw

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # within PyTorch's own
NEEDS_TORCHAO = pytest.mark.skipif(
    importlib.util.find_spec("torchao") is None, reason="torchao quantizes the models"
)


class Layer(nn.Module):
    """A layer of a transformer, its products large enough to matter."""

    def __init__(self, width: int = 256):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.up, self.down = nn.Linear(width, 6 * width), nn.Linear(6 * width, width)

    def forward(self, x):
        q, k, v = self.attention(self.norm(x)).chunk(3, dim=-1)
        x = x + nn.functional.scaled_dot_product_attention(q, k, v)
        return x + self.down(nn.functional.gelu(self.up(x)))


def convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def _held(compiled) -> int:
    return sum(array.nbytes for array in compiled.inside.program.module.constants.values())


def _check(model: nn.Module, x: torch.Tensor, atol: float = 1e-4):
    """The compiled module, its results and those of `torch.compile` compared with eager's."""
    compiled = tw.compile(model, args=(x,), threads=1)
    with torch.no_grad():
        want = model(x)
        through = torch.compile(model, backend="tilewright", options={"fallback": "error"})(x)
    torch.testing.assert_close(compiled(x), want, rtol=1e-4, atol=atol)
    torch.testing.assert_close(through, want, rtol=1e-4, atol=atol)
    return compiled


@NEEDS_TORCHAO
@pytest.mark.parametrize("kind", ["int8", "int4", "float8", "int8 by int4"])
def test_weights_that_torchao_quantizes(kind):
    from torchao import quantization as ao

    group = ao.PerGroup(32)
    config = {
        "int8": lambda: ao.Int8WeightOnlyConfig(),
        "int4": lambda: ao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=group),
        "float8": lambda: ao.Float8WeightOnlyConfig(),
        "int8 by int4": lambda: ao.Int8DynamicActivationIntxWeightConfig(
            weight_dtype=torch.int4, weight_granularity=group
        ),
    }
    torch.manual_seed(0)
    model = Layer().eval()
    whole = sum(p.nbytes for p in model.parameters())
    ao.quantize_(model, config[kind]())
    compiled = _check(model, torch.randn(1, 3, 256))
    if "int4" in kind:
        assert _held(compiled) < whole / 2  # the two large matrices at less than a fifth


@NEEDS_TORCHAO
def test_a_convnet_of_integers():
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    torch.manual_seed(0)
    x = torch.randn(2, 3, 32, 32)
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
    prepared = prepare_pt2e(torch.export.export(convnet().eval(), (x,)).module(), quantizer)
    prepared(x)
    # A sum that lies between two steps may round to either.
    _check(convert_pt2e(prepared), x, atol=0.05)


class Nibbles(nn.Module):
    """What weights of four bits are exported as for PyTorch's own kernels."""

    def __init__(self, columns: int, rows: int, group: int):
        super().__init__()
        codes = torch.randint(0, 16, (rows, columns), dtype=torch.int32)
        self.group = group
        self.register_buffer("w", torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1))
        scales = torch.rand(columns // group, rows, 2) / 100
        self.register_buffer("scales", scales)

    def forward(self, x):
        packed = (self.w, self.group, self.scales)
        return torch.ops.aten._weight_int4pack_mm_for_cpu(x, *packed).relu()


@pytest.mark.parametrize("rows", [1, 24])
def test_weights_of_four_bits_stay_packed(rows):
    torch.manual_seed(0)
    model, x = Nibbles(1024, 512, 64), torch.randn(rows, 1024)
    compiled = tw.compile(model, args=(x,), threads=1)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-3, atol=1e-3)
    assert _held(compiled) == 1024 * 512 // 2 + model.scales.nbytes


def test_groups_of_quantized_weights_stay_packed():
    torch.manual_seed(0)
    library = torch.ops.quantized_decomposed

    class Grouped(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("w", torch.randint(-8, 8, (512, 1024), dtype=torch.int8))
            self.register_buffer("scales", torch.rand(512, 1024 // 128) / 10)
            self.register_buffer("zeros", torch.zeros(512, 1024 // 128, dtype=torch.int8))

        def forward(self, x):
            given = (self.w, self.scales, self.zeros, -8, 7, torch.int8, 128, torch.float32)
            return nn.functional.linear(x, library.dequantize_per_channel_group(*given))

    model, x = Grouped(), torch.randn(2, 1024)
    compiled = _check(model, x, atol=1e-3)
    assert _held(compiled) == 512 * 1024 // 2 + model.scales.nbytes
