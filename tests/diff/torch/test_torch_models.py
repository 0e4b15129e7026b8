"""PyTorch models as native code give what PyTorch gives, in the model's own structure."""

import numpy as np
import pytest
import torch
from cases import FAMILIES, Family, Recurrent, differences, interpreted
from torch import nn

import tilewright as tw
from tilewright.frontends.torch import import_program


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_native_and_right(name):
    """By the references of the operators that the rules make, and as native code."""
    family = Family(name)
    want = family(*family.inputs)
    imported = import_program(family, family.inputs)
    assert differences(interpreted(imported, family.inputs), want) == []
    model = imported.wrap(tw.compile(imported.module, threads=1))
    assert model.fallbacks == ()
    assert differences(model(*family.inputs), want) == []


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.last = nn.Linear(8, 5)

    def forward(self, x, *, scale=None):
        y = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        return {"logits": self.last(y), "others": [y, x.shape[0]], "none": None}


def test_results_are_tensors_in_the_models_own_structure():
    net = Net().eval()
    x = torch.randn(2, 3, 8, 8)
    model = tw.compile(net, args=(x,), dynamic={"x": {0: "batch"}, "batch": (1, 16)}, threads=1)
    for count in (1, 2, 7):
        x = torch.randn(count, 3, 8, 8)
        made, want = model(x), net(x)
        torch.testing.assert_close(made["logits"], want["logits"].detach(), rtol=1e-5, atol=1e-5)
        assert made["others"][1] == count
        assert made["none"] is None
    with pytest.raises(tw.TilewrightError, match="batch"):
        model(torch.randn(17, 3, 8, 8))


def test_memory_is_shared_with_results():
    model = tw.compile(nn.ReLU(), args=(torch.ones(4),), threads=1)
    array = model.inner(np.ones(4, np.float32))[0]
    tensor = model(torch.ones(4))
    assert tensor.data_ptr() % 64 == 0  # our memory, not a copy of PyTorch's allocator
    assert torch.from_dlpack(array).data_ptr() == np.asarray(array).ctypes.data


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count += 1
        return x * self.count


def test_buffers_that_a_call_changes_are_kept():
    model = tw.compile(Counter(), args=(torch.ones(2),), threads=1)
    assert [float(model(torch.ones(2))[0]) for _ in range(3)] == [1.0, 2.0, 3.0]


class Both(nn.Module):
    def forward(self, x):
        def more(y):
            return y * 2 + 1

        def less(y):
            return y - 1

        chosen = torch.cond(x.sum() > 0, more, less, (x,))
        found = x[x > 0]
        return chosen, found, found.sum()


def test_branches_and_sizes_that_only_the_data_tells():
    x = torch.tensor([1.0, -2.0, 3.0, -4.0])
    model = tw.compile(Both(), args=(x,), threads=1)
    for given in (x, -x, torch.zeros(4) - 1):
        for made, want in zip(model(given), Both()(given), strict=True):
            torch.testing.assert_close(made, want)


def test_an_exported_program_is_saved_and_loaded(tmp_path):
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8)).eval()
    x = torch.randn(2, 7, 4)
    program = torch.export.export(model, (x,))
    torch.export.save(program, tmp_path / "model.pt2")
    compiled = tw.compile(tmp_path / "model.pt2", threads=1)
    loaded = tw.load(compiled.save(tmp_path / "model.so"))
    with torch.no_grad():
        want = model(x)
    torch.testing.assert_close(compiled(x), want, rtol=2e-5, atol=2e-5)
    (again,) = loaded(x.numpy())
    np.testing.assert_allclose(again, want.numpy(), rtol=2e-5, atol=2e-5)


class Bytes(nn.Module):
    def __init__(self, columns: int, rows: int):
        super().__init__()
        self.register_buffer("w", torch.randint(-128, 128, (rows, columns), dtype=torch.int8))
        self.register_buffer("scales", torch.rand(rows) / 100)

    def forward(self, x):
        return torch.ops.aten._weight_int8pack_mm(x, self.w, self.scales).relu()


@pytest.mark.parametrize("rows", [1, 64])
def test_weights_of_eight_bits_are_read_as_they_are_by_few_rows(rows):
    model, x = Bytes(512, 768), torch.randn(rows, 512)
    compiled = tw.compile(model, args=(x,), threads=1)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
    held = sum(array.nbytes for array in compiled.inside.program.module.constants.values())
    few, scales = model.w.nbytes, model.scales.nbytes
    assert held == (scales + few if rows == 1 else 4 * few)


def test_recurrent_layers_are_native():
    model, x = Recurrent().eval(), torch.randn(2, 7, 4)
    compiled = tw.compile(model, args=(x,), threads=1)
    assert compiled.fallbacks == ()
    with torch.no_grad():
        want = model(x)
    for made, expected in zip(compiled(x), want, strict=True):
        torch.testing.assert_close(made, expected, rtol=2e-5, atol=2e-5)


class Picked(nn.Module):
    """Elements by indices that broadcast, as regions of images are sampled."""

    def forward(self, x, which, rows, columns):
        channels = torch.arange(x.shape[1])
        low = x[which[:, None, None, None], channels[:, None, None], rows[:, None, :, None],
                columns[:, None, None, :]]  # fmt: skip
        high = x[which[:, None, None, None], channels[:, None, None], rows[:, None, :, None] + 1,
                 columns[:, None, None, :]]  # fmt: skip
        return (low * 0.25 + high * 0.75).sum((2, 3))


def test_indices_that_broadcast_are_never_in_memory():
    x, which = torch.randn(2, 32, 8, 8), torch.randint(0, 2, (20,))
    rows, columns = (torch.randint(0, 7, (20, 16)) for _ in range(2))
    axes = {name: {0: "regions"} for name in ("which", "rows", "columns")}
    model = tw.compile(Picked(), args=(x, which, rows, columns), dynamic=axes, threads=1)
    want = Picked()(x, which, rows, columns)
    torch.testing.assert_close(model(x, which, rows, columns), want, rtol=1e-5, atol=1e-4)
    assert model.arena_bytes < 8 * 20 * 32 * 16 * 16  # of one index for each element read
    with pytest.raises(tw.TilewrightError, match="outside of the dimension 2"):
        model(x, which + 2, rows, columns)


class Several(nn.Module):
    def forward(self, first, *others, last):
        return first + sum(others) * last


BY_NAME = {name: {0: "n"} for name in ("first", "others_0", "others_1", "last")}


@pytest.mark.parametrize("dynamic", [True, BY_NAME])
def test_inputs_without_names_of_their_own_are_dynamic(dynamic):
    x = torch.randn(3)
    model = tw.compile(Several(), args=(x, x, x), kwargs={"last": x}, dynamic=dynamic, threads=1)
    x = torch.randn(7)
    torch.testing.assert_close(model(x, x, x, last=x), Several()(x, x, x, last=x))


class Limited(nn.Module):
    def __init__(self):
        super().__init__()
        self.places = nn.Buffer(torch.randn(16, 3))

    def forward(self, x):
        if x.shape[1] > 16:
            raise ValueError("too long")
        return x + self.places[: x.shape[1]]


def test_a_size_without_a_range_has_the_limits_of_the_model():
    example = (torch.randn(2, 5, 3),)
    dynamic = {"x": {0: "batch", 1: "count"}}
    model = tw.compile(Limited(), args=example, dynamic=dynamic, threads=1)
    assert model(torch.randn(3, 16, 3)).shape == (3, 16, 3)
    with pytest.raises(tw.TilewrightError, match="count"):
        model(torch.randn(3, 17, 3))
    with pytest.raises(tw.TilewrightError, match="<= 16"):  # the user wanted more
        tw.compile(Limited(), args=example, dynamic={**dynamic, "count": (1, 40)}, threads=1)


class Triples(nn.Module):
    def forward(self, x):
        return x.reshape(-1, 3).sum(1)


def test_what_cannot_be_proved_of_a_size_is_asserted():
    """torch.export asks for sizes that are multiples, which a range does not tell."""
    dynamic = {"x": {0: "n"}, "n": (6, 60)}
    model = tw.compile(Triples(), args=(torch.ones(6),), dynamic=dynamic, threads=1)
    assert model(torch.ones(9)).tolist() == [3.0, 3.0, 3.0]
    with pytest.raises(tw.TilewrightError, match="TW4012"):
        model(torch.ones(8))


def test_recurrent_layers_run_for_any_length():
    net = nn.GRU(4, 3, batch_first=True).eval()
    model = tw.compile(net, args=(torch.randn(2, 5, 4),), dynamic=True, threads=1)
    for count in (1, 9):
        x = torch.randn(3, count, 4)
        for made, want in zip(model(x), net(x), strict=True):
            torch.testing.assert_close(made, want.detach(), rtol=1e-5, atol=1e-5)
