"""PyTorch models on an NVIDIA GPU, called with CUDA tensors: `make test-gpu`."""

import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402
from tilewright.runtime import cuda  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
from test_cuda_torch import Changes, Counts, Model, check, language_model  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True, scope="module")
def _gpu():
    if not (cuda.is_available() and torch.cuda.is_available()):
        pytest.skip("no NVIDIA GPU can be reached, or torch has no CUDA")


@pytest.fixture(scope="module")
def pair():
    """A model in eager, on the GPU, the same compiled, and arguments."""
    torch.manual_seed(0)
    eager = Model().eval()
    x, scale = torch.randn(3, 8), torch.randn(12)
    module = tw.compile(eager, args=(x,), kwargs={"scale": scale}, target="cuda")
    return eager.cuda(), module, x.cuda(), scale.cuda()


@torch.no_grad()
def test_results_have_the_structure_of_the_model_s(pair):
    eager, module, x, scale = pair
    for _ in range(4):
        made = module(x, scale=scale)
        assert made["y"].device == x.device
        check(made, eager(x, scale=scale))
    check(module(x.cpu(), scale=scale), eager(x, scale=scale))
    strided, behind = torch.randn(8, 3).cuda().T, torch.randn(13).cuda()[1:]
    check(module(strided, scale=behind), eager(strided, scale=behind))


@torch.no_grad()
@pytest.mark.parametrize("is_told", [False, True])
def test_calls_are_in_the_order_of_the_current_stream(pair, is_told):
    """Of one that does not wait for the default stream; also where the call runs on another."""
    eager, module, x, scale = pair
    side, other = torch.cuda.Stream(), torch.cuda.Stream()
    how = {"stream": other.cuda_stream} if is_told else {}
    want = eager(x * 3, scale=scale)["y"] * 2
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        for _ in range(5):
            torch.cuda._sleep(5_000_000)  # what comes first takes long
            given = x * 3
            got = module(given, scale=scale, **how)["y"] * 2
            check(got.cpu(), want.cpu())


@torch.no_grad()
def test_a_graph_of_torch_contains_calls(pair):
    """Between other operators, on the stream that torch chose."""
    eager, module, x, scale = pair
    module(x, scale=scale)
    static, recorded = x.clone(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        made = module(static * 2, scale=scale)
        result = made["y"] + 1
    for factor in (1.0, -3.0):
        static.copy_(x * factor)
        recorded.replay()
        module(x, scale=scale)
        torch.cuda.synchronize()
        check(result, eager(static * 2, scale=scale)["y"] + 1)


def test_states_are_tensors_of_the_gpu():
    eager, module = Counts().cuda(), tw.compile(Counts(), args=(torch.ones(4),), target="cuda")
    for at in range(4):
        x = torch.full((4,), float(at)).cuda()
        check(module(x), eager(x))
        for name, state in module.states.items():
            check(state, eager.get_buffer(name))
    recorded, x = torch.cuda.CUDAGraph(), torch.ones(4).cuda()
    with torch.cuda.graph(recorded):
        made = module(x)
    for at in range(7, 10):
        recorded.replay()
        torch.cuda.synchronize()
        assert module.states["sum"].tolist() == [at] * 4
        assert made.tolist() == [2.0 * at] * 4
    module.reset()
    assert module.states["sum"].tolist() == [0.0] * 4


def test_inputs_that_a_model_changes_are_changed():
    module = tw.compile(Changes(), args=(torch.ones(4), torch.ones(4)), target="cuda")
    x, y = torch.randn(4).cuda(), torch.randn(4).cuda()
    want = Changes()(mine := x.clone(), y)
    check(module(x, y), want)
    check(x, mine)


@torch.no_grad()
def test_a_dynamic_model_is_saved(tmp_path):
    eager = torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.GELU()).eval()
    axes = {"input": {0: "n"}, "n": (1, 64)}
    module = tw.compile(eager, args=(torch.randn(2, 8),), target="cuda", dynamic=axes)
    loaded = tw.load(module.save(tmp_path / "model.so", sizes={"n": [1, 5]}))
    for n in (1, 5):
        x = torch.randn(n, 8)
        check(torch.from_numpy(loaded(x.numpy())[0].numpy()), eager(x))
        check(module(x.cuda()).cpu(), eager(x))


def test_text_with_keys_and_values_on_the_gpu():
    model = language_model()
    module, prompt = tw.compile(model, target="cuda"), torch.tensor([[5, 9, 33]])
    want = prompt
    with torch.no_grad():
        for _ in range(6):
            want = torch.cat([want, model(want).logits[:, -1:].argmax(-1)], 1)
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": 1000}
    for _ in range(2):
        assert module.generate(prompt, **options).tolist() == want.tolist()
    made = module.generate(prompt.cuda(), **options)
    assert made.is_cuda
    assert made.tolist() == want.tolist()


@torch.no_grad()
def test_a_call_costs_the_host_little(pair):
    """Without walking over the nodes of the model again."""
    _, module, x, scale = pair
    module(x, scale=scale)
    took = []
    for _ in range(300):
        begun = time.perf_counter()
        module(x, scale=scale)
        took.append(time.perf_counter() - begun)
    torch.cuda.synchronize()
    assert sorted(took)[len(took) // 2] < 500e-6, sorted(took)[len(took) // 2]
