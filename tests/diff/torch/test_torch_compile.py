"""torch.compile by our backend: inference, changed weights, gradients, what PyTorch must run."""

import copy
import threading

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F  # noqa: N812

import tilewright as tw
from tilewright.base.errors import TilewrightError, Unsupported
from tilewright.frontends.torch.flat import import_graph
from tilewright.plugins.torch import graphs, report, tilewright
from tilewright.plugins.torch.graphs import NativeGraph

REFUSE = {"fallback": "error", "threads": 1}


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.pool, self.last = nn.MaxPool2d(2), nn.Linear(8, 5)

    def forward(self, x):
        y = self.pool(torch.relu(self.norm(self.conv(x)))).mean((2, 3))
        return self.last(y), y.t(), x[0]


def test_inference_has_the_strides_and_aliases_of_eager():
    net = Net().eval()
    compiled = torch.compile(net, backend=tilewright, options=REFUSE)
    with torch.no_grad():
        for count in (2, 5, 7):
            x = torch.randn(count, 3, 8, 8)
            for made, want in zip(compiled(x), net(x), strict=True):
                torch.testing.assert_close(made, want, rtol=1e-5, atol=1e-5)
                assert made.stride() == want.stride()
            assert compiled(x)[2].data_ptr() == x.data_ptr()


def _in_place(net):
    net.last.weight.add_(1.0)


def _behind_autograd(net):
    net.last.weight.data.add_(1.0)


def _replaced(net):
    net.last.weight = nn.Parameter(torch.randn(5, 8))


def _loaded(net):
    net.load_state_dict({name: torch.rand_like(x.float()) for name, x in net.state_dict().items()})


def _other_memory(net):
    net.last.weight.data = torch.randn(5, 8)


CHANGES = (_in_place, _behind_autograd, _replaced, _loaded, _other_memory)


@pytest.mark.parametrize("order", [CHANGES, CHANGES[::-1]], ids=["one way", "the other"])
def test_weights_that_change_whole_are_noticed_by_the_next_call(order):
    net = Net().eval()
    compiled = torch.compile(net, backend=tilewright, options=REFUSE)
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        compiled(x)
        for change in order:
            change(net)
            torch.testing.assert_close(compiled(x)[0], net(x)[0], rtol=1e-5, atol=1e-5)


class Lookup(nn.Module):
    """Rows that a call chooses, rows that are always the same, and a table that is multiplied."""

    def __init__(self):
        super().__init__()
        self.words, self.places, self.tied = (nn.Embedding(500, 8) for _ in range(3))
        self.register_buffer("where", torch.arange(6))

    def forward(self, ids):
        x = self.words(ids) + self.places(self.where) + self.tied(ids)
        return x @ self.tied.weight.t(), self.words(ids + 1)


def test_tables_are_inputs_whose_changes_no_call_misses(monkeypatch):
    made = []
    compiled = NativeGraph.compiled
    monkeypatch.setattr(
        NativeGraph, "compiled", lambda self, inputs: made.append(self) or compiled(self, inputs)
    )
    net, ids = Lookup().eval(), torch.randint(0, 400, (2, 6))
    step = torch.compile(net, backend=tilewright, options=REFUSE)
    with torch.no_grad():
        for _ in range(3):
            for found, want in zip(step(ids), net(ids), strict=True):
                torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-5)
            net.words.weight.data[ids[0, 3], 5] += 1.0  # one element, which autograd does not see
            net.words.weight.data = net.words.weight.data.clone()
    (native,) = made  # compiled once
    assert len(native.candidates) == 3  # places, where, tied


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 6, 2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(12, 5)

    def forward(self, x):
        x, (h, c) = self.lstm(x)
        return *self.gru(x), h, c


def test_recurrent_layers_are_one_operator_where_dynamo_lets_them_through():
    net = Recurrent().eval()
    with torch._dynamo.config.patch(allow_rnn=True), torch.no_grad():
        compiled = torch.compile(
            net, backend=tilewright, options=REFUSE, fullgraph=True, dynamic=True
        )
        before = NativeGraph.compilations
        for length in (7, 9):
            x = torch.randn(2, length, 4)
            for made, want in zip(compiled(x), net(x), strict=True):
                torch.testing.assert_close(made, want, rtol=2e-5, atol=2e-5)
    assert NativeGraph.compilations == before + 1  # no step is unrolled


def test_training_goes_the_way_of_eager():
    nets = [Net()]
    nets.append(copy.deepcopy(nets[0]))
    steps = [nets[0], torch.compile(nets[1], backend=tilewright, options=REFUSE)]
    optimizers = [torch.optim.SGD(net.parameters(), 0.1) for net in nets]
    for _ in range(3):
        x, labels = torch.randn(4, 3, 8, 8), torch.randint(0, 5, (4,))
        for step, optimizer in zip(steps, optimizers, strict=True):
            optimizer.zero_grad()
            F.cross_entropy(step(x)[0], labels).backward()
            optimizer.step()
    for one, other in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(nets[0].norm.running_var, nets[1].norm.running_var)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # Dynamo looks at all
def test_a_compiled_function_may_call_backward():
    def step(net, x):
        net.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        return loss.detach()

    nets = [nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))]
    nets.append(copy.deepcopy(nets[0]))
    compiled = torch.compile(step, backend=tilewright, options=REFUSE)
    for _ in range(2):
        x = torch.randn(5, 3)
        torch.testing.assert_close(compiled(nets[1], x), step(nets[0], x))
        for one, other in zip(*(net.parameters() for net in nets), strict=True):
            torch.testing.assert_close(other.grad, one.grad)


def several_views(x, y):
    """Of a product nobody else sees, of one that two outputs view, and one without memory."""
    whole, seen, spread = x @ y, x @ y + 1, (x * y).sum()
    return whole.t().t(), whole.sum(0, keepdim=True).view(4), seen.t(), seen[1], spread.expand(3)


def test_a_view_of_what_nobody_else_sees_is_given_by_the_module():
    inputs = (torch.randn(4, 4), torch.randn(4, 4))
    graph = make_fx(several_views, tracing_mode="fake")(*inputs)
    flat = import_graph(graph, {})
    assert [step.node.name for step in flat.steps] == ["t_2", "select", "expand"]
    native = NativeGraph(graph, (), 1, True)
    made, want = native(inputs), several_views(*inputs)
    for one, other in zip(made, want, strict=True):
        torch.testing.assert_close(one, other)
        assert one.stride() == other.stride()
    assert made[3].data_ptr() == made[2].data_ptr() + 4 * made[2].element_size()


def test_views_are_taken_neither_for_the_backward_graph_nor_by_it(monkeypatch):
    found = []
    monkeypatch.setattr(
        graphs, "import_graph", lambda *given: found.append(import_graph(*given)) or found[-1]
    )
    net = nn.Sequential(nn.Linear(4, 8), nn.Softsign(), nn.Linear(8, 2))
    x = torch.randn(3, 4)
    torch.compile(net, backend=tilewright, options=REFUSE)(x).sum().backward()
    forward, backward = found
    assert not forward.steps  # weights are kept, not views of them
    assert not backward.steps
    compiled = [each.grad.clone() for each in net.parameters()]
    net.zero_grad()
    net(x).sum().backward()
    for one, other in zip(compiled, net.parameters(), strict=True):
        torch.testing.assert_close(one, other.grad)


def with_factors(x):
    y = torch.relu(x @ x.T) + 1
    factors, pivots, _ = torch.linalg.ldl_factor_ex(y)
    return factors * 2, pivots, y


def test_pytorch_runs_what_has_no_code_and_says_so():
    x = torch.randn(4, 4)
    with pytest.warns(UserWarning, match="linalg_ldl_factor"):
        made = torch.compile(with_factors, backend=tilewright)(x)
    for one, other in zip(made, with_factors(x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_effects_beside_what_has_no_code_are_ordered_by_nothing():
    def checked(x):
        factors, pivots = torch.linalg.ldl_factor(x @ x.T)  # looks at errors by an effect
        return factors * 2, pivots

    x = torch.randn(4, 4)
    with pytest.warns(UserWarning, match="linalg_ldl_factor"):
        made = torch.compile(checked, backend=tilewright)(x)
    torch.testing.assert_close(made, checked(x), rtol=1e-4, atol=1e-5)


def test_inputs_whose_sizes_multiply_are_left_to_pytorch_or_refused():
    def flat(x):
        return x.reshape(-1) * 2

    def grad(function):
        x = torch.arange(15.0).reshape(3, 5).requires_grad_()
        function(x).sum().backward()  # what comes back has s0 * s1 elements
        return x.grad

    options = {"fallback": "eager", "threads": 1}
    compiled = torch.compile(flat, backend=tilewright, dynamic=True, options=options)
    with pytest.warns(UserWarning, match="PyTorch runs these"):
        torch.testing.assert_close(grad(compiled), grad(flat))
    torch._dynamo.reset()
    refusing = torch.compile(flat, backend=tilewright, dynamic=True, options=REFUSE)
    with pytest.raises(Unsupported, match=r"TW1101.*an input with the dimension"):
        grad(refusing)


def test_fallback_error_refuses():
    with pytest.raises(TilewrightError, match="linalg_ldl_factor"):
        torch.compile(with_factors, backend=tilewright, options=REFUSE)(torch.randn(4, 4))


def test_tensors_of_other_devices_are_told():
    x = torch.ones(3, device="meta")
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="TW1121"):
        torch.compile(lambda x: x * 2, backend=tilewright)(x)


def test_what_fell_back_is_reported_with_reasons_and_lines():
    made = torch.compile(with_factors, backend=tilewright)
    with pytest.warns(UserWarning, match="linalg_ldl_factor"):
        made(torch.randn(4, 4))
    found = [graph for graph in report().graphs if graph.fallbacks]
    (fallback,) = found[-1].fallbacks
    assert fallback.operator == "aten.linalg_ldl_factor_ex.default"
    assert fallback.reason == "operator aten.linalg_ldl_factor_ex"
    first = with_factors.__code__.co_firstlineno
    (path, line) = fallback.lines[0].rsplit(":", 1)
    assert path == __file__
    assert first < int(line) <= first + 5
    assert found[-1].operators > 1
    assert f"{fallback.operator}: {fallback.reason} ({fallback.lines[0]}" in str(report())


def _joined(p, q):
    y = torch.cat([p, q]) * 2
    torch._dynamo.graph_break()
    first, second = y.split([p.shape[0], q.shape[0]])
    return first + 1, second * 2


def test_an_input_may_be_as_long_as_two_numbers_together():
    compiled = torch.compile(_joined, backend=tilewright, options=REFUSE, dynamic=True)
    for sizes in ((3, 4), (7, 2)):
        p, q = (torch.randn(size, 5) for size in sizes)
        for made, want in zip(compiled(p, q), _joined(p, q), strict=True):
            torch.testing.assert_close(made, want)


def test_one_compilation_serves_dynamic_sizes():
    count = 0

    def counting(module, examples, **kwargs):
        nonlocal count
        count += 1
        return tilewright(module, examples, **kwargs)

    compiled = torch.compile(
        lambda x, y: F.softmax(x @ y, -1), backend=counting, dynamic=True, options=REFUSE
    )
    for rows in (3, 4, 9):
        x, y = torch.randn(rows, 6), torch.randn(6, rows + 1)
        torch.testing.assert_close(compiled(x, y), F.softmax(x @ y, -1), rtol=1e-5, atol=1e-5)
    assert count == 1


def _weighted(y):
    return (y * torch.linspace(0, 1, y.numel()).view(y.shape)).sum()


HEADS = tuple(torch.randn(2, 4, 6, 8) for _ in range(3))
GRADIENTS = {
    "attention": (F.scaled_dot_product_attention, HEADS),
    "causal attention": (lambda *x: F.scaled_dot_product_attention(*x, is_causal=True), HEADS),
    "embedding": (lambda w: F.embedding(torch.tensor([[1, 2], [1, 0]]), w), (torch.randn(4, 3),)),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (8,), w, b), (HEADS[0], *torch.rand(2, 8))),
    "group norm": (lambda x, w, b: F.group_norm(x, 2, w, b), (HEADS[0], *torch.rand(2, 4))),
    "cross entropy": (lambda x: F.cross_entropy(x, torch.tensor([1, 0, 2])), (torch.randn(3, 5),)),
    "products": (
        lambda a, b, c: torch.addmm(c, a, b).tanh(),
        (*torch.randn(2, 5, 5), torch.randn(5)),
    ),
    "pools": (lambda x: F.avg_pool2d(F.max_pool2d(x, 3, 2, 1), 2), (torch.randn(2, 3, 8, 8),)),
    "gelu": (lambda x: F.gelu(x) + F.silu(x) + F.gelu(x, approximate="tanh"), (torch.randn(9),)),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_native_and_those_of_eager(name):
    function, inputs = GRADIENTS[name]
    found = []
    for run in (function, torch.compile(function, backend=tilewright, options=REFUSE)):
        given = [x.clone().requires_grad_() for x in inputs]
        _weighted(run(*given)).backward()
        found.append([x.grad for x in given])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def _selected(table, i):
    return table.index_select(0, i)


def _gathered(table, i):
    return table.gather(0, i[:, None])


def _replaced_at(table, i):
    return table.scatter(0, i[:, None], 1.0)


@pytest.mark.parametrize("fn", [lambda w, i: F.embedding(i, w), _selected, _gathered, _replaced_at])
def test_indices_below_zero_are_refused_where_eager_refuses_them(fn):
    table = torch.arange(12.0).reshape(4, 3)
    compiled = torch.compile(fn, backend=tilewright, options=REFUSE)
    inside = torch.tensor([3, 0])
    torch.testing.assert_close(compiled(table, inside), fn(table, inside))
    with pytest.raises((IndexError, RuntimeError)):
        fn(table, torch.tensor([3, -1]))
    with pytest.raises(TilewrightError, match="outside of the dimension 4"):
        compiled(table, torch.tensor([3, -1]))


def test_indices_below_zero_count_from_the_end_in_brackets():
    table = torch.arange(12.0).reshape(4, 3)
    compiled = torch.compile(lambda w, i: w[i], backend=tilewright, options=REFUSE)
    at = torch.tensor([3, -1, -4])
    torch.testing.assert_close(compiled(table, at), table[at])


def _turned_about():
    return torch.complex(torch.randn(3, 4), torch.randn(3, 4)).conj().imag


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(lambda: torch.randn(4, 3).t(), id="transposed"),
        pytest.param(lambda: torch.randn(1, 4).expand(3, 4), id="expanded"),
        pytest.param(lambda: torch.randn(6, 8)[::2, 1::2], id="strided"),
        pytest.param(_turned_about, id="with the bit that negates"),
        pytest.param(lambda: nn.Parameter(torch.randn(3, 4)), id="a parameter"),
        pytest.param(lambda: torch.randn(0, 4), id="empty"),
    ],
)
def test_tensors_are_taken_and_given_without_arrays_of_ours(value):
    def fn(x):
        return (x * 2).relu(), x.sum(1) > 0

    given = value().requires_grad_(False)
    for called in (
        torch.compile(fn, backend=tilewright, options=REFUSE),
        tw.compile(_Called(fn), args=(given,), threads=1),
    ):
        for made, want in zip(called(given), fn(given), strict=True):
            assert type(made) is torch.Tensor
            torch.testing.assert_close(made, want)


class _Called(nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def forward(self, x):
        return self.fn(x)


def test_results_may_be_dropped_by_another_thread():
    compiled = torch.compile(lambda x: x + 1, backend=tilewright, options=REFUSE)
    held = [compiled(torch.full((1000,), float(each))) for each in range(20)]
    compiled = None
    kept = held.pop()
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert kept.eq(20.0).all()


def test_gradients_come_in_any_layout():
    w = nn.Parameter(torch.randn(4, 5))
    compiled = torch.compile(lambda x: torch.tanh(x @ w), backend=tilewright, options=REFUSE)
    x, seed = torch.randn(3, 4), torch.complex(torch.randn(5, 3), torch.randn(5, 3)).conj().imag.t()
    grads = []
    for fn in (compiled, lambda x: torch.tanh(x @ w)):
        w.grad = None
        fn(x).backward(seed)
        grads.append(w.grad)
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.LayerNorm])
def test_gradients_under_autocast(norm):
    net = nn.Sequential(nn.Linear(8, 16), norm(16), nn.Linear(16, 4))
    x = torch.randn(6, 8)

    def step(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return net(x)

    def gradients(step):
        net.zero_grad()
        made = step(x)
        made.float().square().sum().backward()
        return made, [each.grad.clone() for each in net[1:].parameters()]

    want, made = gradients(step), gradients(torch.compile(step, backend=tilewright, options=REFUSE))
    torch.testing.assert_close(made, want, rtol=0.05, atol=0.05)


def test_attention_in_bf16_has_gradients():
    given = [torch.randn(1, 2, 5, 8, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    attend = torch.compile(F.scaled_dot_product_attention, backend=tilewright, options=REFUSE)
    made = torch.autograd.grad(attend(*given).float().square().sum(), given)
    plain = F.scaled_dot_product_attention(*given).float().square().sum()
    for one, two in zip(made, torch.autograd.grad(plain, given), strict=True):
        torch.testing.assert_close(one, two, rtol=0.05, atol=0.05)
