"""PyTorch models on a GPU, called with tensors: the host's memory stands in for that of the GPU."""

import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright.base.errors import TilewrightError  # noqa: E402
from tilewright.frontends.torch import on_gpu  # noqa: E402
from tilewright.runtime import cuda  # noqa: E402
from tilewright.runtime.device import Device  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
from host_gpu import CAPTURED, LIVE, on_host  # noqa: E402

HOPPER = "cuda -arch=sm_90a"


class Lent:
    """Memory of a tensor."""

    def __init__(self, tensor):
        self.address = tensor.data_ptr()
        self.end = self.address + tensor.numel() * tensor.element_size()


@pytest.fixture
def lent(monkeypatch):
    """Tensors on the host are on the GPU; those that were lent."""
    found, shared = [], on_gpu.shared

    def noted(tensor):
        found.append(Lent(tensor))
        LIVE.add(found[-1])
        return shared(tensor)

    monkeypatch.setattr(cuda, "DEVICE", Device("cpu", 7))
    monkeypatch.setattr(on_gpu, "shared", noted)
    return found


class Model(nn.Module):
    """Named results, one of them a constant, and a keyword."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 12)

    def forward(self, x, scale=None):
        y = self.linear(x)
        return {"y": y if scale is None else y * scale, "kept": (x.relu(), 3)}


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("sum", torch.zeros(4))
        self.register_buffer("late", torch.zeros(4, dtype=torch.bfloat16))

    def forward(self, x):
        self.late.copy_(self.sum.to(torch.bfloat16))
        self.sum.add_(x)
        return self.sum * 2


class Changes(nn.Module):
    def forward(self, x, y):
        x.mul_(2)
        return x + y


def compiled(model, *args, **options):
    return on_host(tw.compile(model, args=args, target=HOPPER, **options))


def check(made, want):
    torch.testing.assert_close(made, want, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def pair():
    torch.manual_seed(0)
    eager = Model().eval()
    x, scale = torch.randn(3, 8), torch.randn(12)
    given = {"args": (x,), "kwargs": {"scale": scale}}
    return eager, tw.compile(eager, target=HOPPER, **given), x, scale


def test_results_have_the_structure_of_the_model_s(pair, lent):
    eager, module, x, scale = pair
    on_host(module)
    for _ in range(3):
        made = module(x, scale=scale)
        assert list(made) == ["y", "kept"]
        check(made, eager(x, scale=scale))
    addresses = {each.address for each in lent}
    assert {x.data_ptr(), scale.data_ptr(), made["y"].data_ptr()} <= addresses


def test_tensors_are_not_copied_unless_kernels_need_that(pair, lent):
    eager, module, x, _ = pair
    on_host(module)
    copies = []
    module.flat._gpu.copy_in = lambda *given: copies.append(given)
    strided, behind = torch.randn(8, 3).T, torch.randn(13)[1:]
    for given in (x, strided):
        check(module(given, scale=behind), eager(given, scale=behind))
    assert not copies


def test_results_go_where_the_caller_says(pair, lent):
    eager, module, x, scale = pair
    on_host(module)
    out = [torch.empty(3, 12), torch.empty(3, 8)]
    made = module(x, scale=scale, out=out)
    assert [a is b for a, b in zip(made, out, strict=True)] == [True, True]
    want = eager(x, scale=scale)
    check(out, [want["y"], want["kept"][0]])
    strided = torch.empty(12, 3).T
    module(x, scale=scale, out=[strided, out[1]])
    check(strided, want["y"])
    with pytest.raises(TilewrightError) as caught:
        module(x, scale=scale, out=out[:1])
    assert caught.value.code == "TW4042"


def test_calls_are_in_the_order_of_the_current_stream(pair, lent, monkeypatch):
    """On another stream a call follows the current one, which then follows the call."""
    eager, module, x, scale = pair
    on_host(module)
    followed, asked = [], []
    monkeypatch.setattr(cuda, "follow", lambda *given: followed.append(given))
    monkeypatch.setattr(on_gpu, "current_stream", lambda: 5)
    monkeypatch.setattr(module.flat._gpu, "is_capturing", lambda stream: asked.append(stream))
    check(module(x, scale=scale), eager(x, scale=scale))
    check(module(x, scale=scale, stream=6), eager(x, scale=scale))
    assert followed == [(5, 5), (5, 5), (6, 5), (5, 6)]
    assert asked == [5, 6]


def test_a_capture_takes_calls_with_tensors(pair, lent, monkeypatch):
    """The current stream is what torch.cuda.graph captures."""
    eager, module, x, scale = pair
    on_host(module)
    module.flat._known.clear()
    with monkeypatch.context() as patched:
        patched.setattr(on_gpu, "current_stream", lambda: CAPTURED)
        with pytest.raises(TilewrightError) as caught:
            module(x, scale=scale)
        assert caught.value.code == "TW4024"
    module(x, scale=scale)
    monkeypatch.setattr(on_gpu, "current_stream", lambda: CAPTURED)
    other = torch.randn(3, 8)
    check(module(other, scale=scale), eager(other, scale=scale))


def test_states_are_tensors_of_the_gpu(lent):
    eager, module = Counts(), compiled(Counts(), torch.ones(4))
    for at in range(4):
        x = torch.full((4,), float(at))
        version = module.states["sum"]._version
        check(module(x), eager(x))
        for name, state in module.states.items():
            check(state, eager.get_buffer(name))
        assert module.states["sum"]._version > version
    assert module.states["sum"].data_ptr() in {each.address for each in lent}
    assert module.inner._states is None  # nobody needs others
    other = module.fork()
    other(torch.ones(4))
    assert (module.states["sum"][0], other.states["sum"][0]) == (6, 7)
    module.reset()
    assert module.states["sum"].tolist() == [0.0] * 4


def test_inputs_that_a_model_changes_are_changed(lent):
    module = compiled(Changes(), torch.ones(4), torch.ones(4))
    x, y = torch.randn(4), torch.randn(4)
    want = Changes()(mine := x.clone(), y)
    check(module(x, y), want)
    check(x, mine)


def test_sizes_that_the_data_tells(lent):
    class Found(nn.Module):
        def forward(self, x):
            return x.nonzero()

    module = compiled(Found(), torch.ones(5))
    x = torch.tensor([0.0, 1.0, 0.0, 2.0, 3.0])
    assert module(x).tolist() == [[1], [3], [4]]


def test_dynamic_models_are_called_and_saved(lent, tmp_path):
    eager = nn.Sequential(nn.Linear(8, 12), nn.GELU()).eval()
    module = compiled(eager, torch.randn(2, 8), dynamic={"input": {0: "n"}, "n": (1, 64)})
    for n in (1, 5, 2):
        x = torch.randn(n, 8)
        check(module(x), eager(x))
    saved = module.save(tmp_path / "model.so", sizes={"n": [1, 2, 5]})
    assert saved.exists()
    with pytest.raises(TilewrightError) as caught:
        module.save(tmp_path / "other.so")
    assert caught.value.code == "TW6015"


def test_a_profile_has_every_launch(pair, lent):
    _, module, x, scale = pair
    on_host(module)
    assert module.profile(x, scale=scale).events
    counts = compiled(Counts(), torch.ones(4))
    assert counts.profile(torch.ones(4)).events
    assert counts.states["sum"].tolist() == [0.0] * 4


def test_a_model_for_a_cpu_may_have_an_argument_named_stream(tmp_path):
    class Streams(nn.Module):
        def forward(self, x, stream):
            return x + stream

    x = torch.ones(3)
    module = tw.compile(Streams(), args=(x,), kwargs={"stream": x}, threads=1)
    check(module(x, stream=x), x + x)
    assert module.save(tmp_path / "model.so", sizes={"n": [1]}).exists()  # it has all sizes


def test_a_torch_without_cuda_gets_tensors_on_the_host(monkeypatch):
    """Memory on the GPU is nothing that it knows."""
    fetched = []

    def to_host(array, stream):
        made = np.empty(array.shape, array.dtype.numpy)
        module.flat._gpu.copy_out(made, array.address, stream)
        fetched.append(array.address)
        return made

    monkeypatch.setattr(cuda, "to_host", to_host)
    monkeypatch.setattr(on_gpu, "place", lambda: torch.device("cpu"))
    eager = nn.Linear(8, 12).to(torch.bfloat16).eval()
    module, x = compiled(eager, torch.randn(2, 8).bfloat16()), torch.randn(2, 8).bfloat16()
    torch.testing.assert_close(module(x), eager(x), rtol=2e-2, atol=2e-2)
    assert fetched
    counts, other = compiled(Counts(), torch.ones(4)), Counts()
    module = counts.inner.inner
    monkeypatch.setattr(type(module), "flat", property(lambda self: self), raising=False)
    for _ in range(3):
        check(counts(torch.ones(4)), other(torch.ones(4)))
    check(counts.states["late"], other.late)


def language_model():
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except Exception:  # it is not installed, or a torchvision that does not load
        pytest.skip("transformers does not load")
    torch.manual_seed(0)
    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 16, "vocab_size": 64, "n_positions": 32}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:  # weights that prefer some tokens to others
            nn.init.normal_(parameter, std=0.3)
    return model


def test_text_with_keys_and_values_on_the_gpu(lent):
    from tilewright.frontends.torch.generate import Generator

    model = language_model()

    def compiled(*args, **options):
        return on_host(tw.compile(*args, target=HOPPER, **options))

    text = Generator(model, compiled, length=8)
    states = {state.data_ptr() for state in text.states}
    for prompt in (torch.tensor([[5, 9, 33]]), torch.tensor([[7, 7]])):
        want = prompt
        with torch.no_grad():
            for _ in range(3):
                want = torch.cat([want, model(want).logits[:, -1:].argmax(-1)], 1)
        assert text.generate(prompt, 3).tolist() == want.tolist()
    assert states <= {each.address for each in lent}
