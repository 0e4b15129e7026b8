"""Programs that depend on PyTorch's semantics: mutation, views, aliasing, strides, state, threads.

Each takes `compile`, which is `torch.compile` or leaves a function as it is, and gives everything
that may be seen of its calls: results, and inputs that were changed. `torch_semantics.py` holds
what both ways give against each other: values, element types, strides, and which tensors share
memory.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

Compile = Callable[[Any], Any]
THREADS = 8


def _values(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()


# ------------------------------------------------------------------------------------ mutation


def input_changed_in_place(compile: Compile) -> Any:
    x = _values(3, 4)
    return compile(lambda x: x.add_(1))(x), x


def input_changed_and_not_returned(compile: Compile) -> Any:
    def fn(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x.sum()

    x = _values(3, 4)
    return compile(fn)(x), x


def no_outputs(compile: Compile) -> Any:
    def fn(x: torch.Tensor) -> None:
        x.mul_(3)

    x = _values(5)
    return compile(fn)(x), x


def nothing_at_all(compile: Compile) -> Any:
    return compile(lambda x: None)(_values(3))


def slice_of_input_changed(compile: Compile) -> Any:
    def fn(x: torch.Tensor) -> torch.Tensor:
        x[1:, ::2] += 5
        return x * 2

    x = _values(4, 6)
    return compile(fn)(x), x


def input_changed_through_a_view(compile: Compile) -> Any:
    def fn(x: torch.Tensor) -> torch.Tensor:
        turned = x.t()
        turned[0].fill_(7)
        return turned

    x = _values(4, 6)
    return compile(fn)(x), x


def row_set_by_index(compile: Compile) -> Any:
    def fn(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        x[at] = -1.0
        return x + 1

    x = _values(5, 3)
    return compile(fn)(x, torch.tensor([0, 3])), x


def masked_assignment(compile: Compile) -> Any:
    def fn(x: torch.Tensor) -> torch.Tensor:
        x[x > 0] = 0
        return x

    x = _values(5, 3)
    return compile(fn)(x), x


def copied_from_another(compile: Compile) -> Any:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.copy_(y.relu())
        return y - x

    x, y = _values(4), _values(4, seed=1)
    return compile(fn)(x, y), x, y


def two_inputs_swapped(compile: Compile) -> Any:
    def fn(x: torch.Tensor, y: torch.Tensor) -> None:
        held = x.clone()
        x.copy_(y)
        y.copy_(held)

    x, y = _values(4), _values(4, seed=1)
    compile(fn)(x, y)
    return x, y


def out_argument(compile: Compile) -> Any:
    def fn(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return torch.add(x, x, out=out)

    x, out = _values(3, 3), torch.empty(3, 3)
    return compile(fn)(x, out), out


def buffer_that_counts(compile: Compile) -> Any:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return x * self.count

    model = Counting()
    called = compile(model)
    x = _values(3)
    return [called(x) for _ in range(3)], model.count


def running_statistics(compile: Compile) -> Any:
    torch.manual_seed(0)
    model = nn.BatchNorm1d(4).train()
    called = compile(model)
    results = [called(_values(8, 4, seed=seed)) for seed in range(3)]
    return results, model.running_mean, model.running_var, model.num_batches_tracked


def input_of_strange_strides_changed(compile: Compile) -> Any:
    def fn(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x.exp()

    base = _values(6, 8)
    x = base[::2, 1::3]
    return compile(fn)(x), x, base


# ------------------------------------------------------------------------------------ views


def output_is_the_input(compile: Compile) -> Any:
    x = _values(3, 4)
    return compile(lambda x: x)(x), x


def output_views_the_input(compile: Compile) -> Any:
    x = _values(4, 6)
    return compile(lambda x: (x.t(), x[1:3], x.view(2, 12)))(x), x


def output_views_and_results(compile: Compile) -> Any:
    x = _values(4, 6)
    return compile(lambda x: (x[:, 2:4], x.cos(), x.unsqueeze(0)))(x), x


def view_of_a_result(compile: Compile) -> Any:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.exp()
        return y, y.t(), y[0]

    return compile(fn)(_values(4, 6))


def same_result_twice(compile: Compile) -> Any:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + 1
        return y, y

    return compile(fn)(_values(3))


def clone_of_a_result(compile: Compile) -> Any:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + 1
        return y, y.clone(), x.clone()

    x = _values(3)
    return compile(fn)(x), x


def equal_results_apart(compile: Compile) -> Any:
    return compile(lambda x: (x + 1, x + 1, torch.zeros(3), torch.zeros(3)))(_values(3))


def expanded_result(compile: Compile) -> Any:
    return compile(lambda x: (x + 1).expand(3, 4))(_values(1, 4))


def expanded_input_returned(compile: Compile) -> Any:
    x = _values(4)
    return compile(lambda x: x.expand(3, 4))(x), x


def transposed_result(compile: Compile) -> Any:
    return compile(lambda x: x.cos().permute(2, 0, 1))(_values(2, 3, 4))


def result_split(compile: Compile) -> Any:
    return compile(lambda x: x.sin().split(2, dim=1))(_values(3, 6))


def as_strided_of_an_input(compile: Compile) -> Any:
    x = _values(12)
    return compile(lambda x: x.as_strided((3, 2), (4, 2), 1))(x), x


def diagonal_of_an_input(compile: Compile) -> Any:
    x = _values(4, 4)
    return compile(lambda x: (x.diagonal(), x * 2))(x), x


def result_changed_by_the_caller(compile: Compile) -> Any:
    called = compile(lambda x: x + 1)
    x = _values(4)
    first = called(x)
    first.zero_()
    return called(x), first, x


def view_changed_by_the_caller(compile: Compile) -> Any:
    x = _values(4, 4)
    part = compile(lambda x: x[1:3])(x)
    part.fill_(9)
    return part, x


def detached_result(compile: Compile) -> Any:
    x = _values(3).requires_grad_()
    y = compile(lambda x: (x * 2).detach())(x)
    return y, y.requires_grad


# ------------------------------------------------------------------------------------ aliasing


def same_tensor_given_twice(compile: Compile) -> Any:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * y

    x = _values(4)
    return compile(fn)(x, x), x


def overlapping_inputs(compile: Compile) -> Any:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return y + 1

    base = _values(10)
    return compile(fn)(base[:6], base[3:9]), base


def views_of_one_base(compile: Compile) -> Any:
    base = _values(4, 4)
    return compile(lambda x, y: x @ y)(base[:2], base[:, :3]), base


def tied_weights(compile: Compile) -> Any:
    torch.manual_seed(0)
    table, head = nn.Embedding(16, 8), nn.Linear(8, 16, bias=False)
    head.weight = table.weight
    called = compile(lambda x: head(table(x)))
    with torch.no_grad():
        first = called(torch.arange(5))
        table.weight.mul_(2)
        return first, called(torch.arange(5))


# ------------------------------------------------------------------------------------ strides


def channels_last_input(compile: Compile) -> Any:
    torch.manual_seed(0)
    model = nn.Conv2d(3, 4, 3).eval()
    x = _values(2, 3, 8, 8).to(memory_format=torch.channels_last)
    with torch.no_grad():
        return compile(model)(x)


def channels_last_model(compile: Compile) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    model.to(memory_format=torch.channels_last)
    x = _values(2, 3, 8, 8).to(memory_format=torch.channels_last)
    with torch.no_grad():
        return compile(model)(x)


def transposed_input(compile: Compile) -> Any:
    return compile(lambda x: x.exp())(_values(4, 6).t())


def input_with_steps(compile: Compile) -> Any:
    return compile(lambda x: x * 2 + 1)(_values(8, 9)[::2, ::3])


def expanded_input(compile: Compile) -> Any:
    return compile(lambda x: x.sum(0) + x[0])(_values(1, 5).expand(4, 5))


def input_with_an_offset(compile: Compile) -> Any:
    return compile(lambda x: x.tanh())(_values(20)[3:15].view(3, 4))


def contiguous_asked_for(compile: Compile) -> Any:
    return compile(lambda x: (x.contiguous(), x.t().contiguous()))(_values(4, 5).t())


def permuted_reduction(compile: Compile) -> Any:
    return compile(lambda x: x.permute(0, 3, 1, 2).mean(1, keepdim=True))(_values(2, 3, 4, 5))


def memory_format_of_a_result(compile: Compile) -> Any:
    return compile(lambda x: x.relu().contiguous(memory_format=torch.channels_last))(
        _values(2, 3, 4, 4)
    )


# ------------------------------------------------------------------------------------ odd sizes


def empty_input(compile: Compile) -> Any:
    return compile(lambda x: (x + 1, x.sum(), x.reshape(3, 0)))(_values(0, 3))


def empty_product(compile: Compile) -> Any:
    return compile(lambda x, y: x @ y)(_values(3, 0), _values(0, 4))


def result_cut_to_nothing(compile: Compile) -> Any:
    return compile(lambda x: x.cos()[2:2])(_values(4, 3))


def scalar_tensors(compile: Compile) -> Any:
    return compile(lambda x, y: (x + y, x * 2, (x > y)))(torch.tensor(2.0), torch.tensor(3.0))


def scalar_changed_in_place(compile: Compile) -> Any:
    x = torch.tensor(5)
    return compile(lambda x: x.add_(1))(x), x


def axes_of_one(compile: Compile) -> Any:
    return compile(lambda x: (x.squeeze(), x.transpose(0, 1) + 1))(_values(1, 4, 1))


def mixed_element_types(compile: Compile) -> Any:
    def fn(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x + n, n / 2, n // 2, n.bool(), x.half() * 2

    return compile(fn)(_values(4), torch.arange(4))


def numbers_and_structures(compile: Compile) -> Any:
    def fn(x: torch.Tensor, by: float, of: dict[str, Any]) -> dict[str, Any]:
        return {"a": x * by, "b": [of["y"], None, of["n"] + 1], "c": (x.shape[0], "word")}

    return compile(fn)(_values(3), 2.5, {"y": _values(2), "n": 4})


def size_read_from_data(compile: Compile) -> Any:
    def fn(x: torch.Tensor) -> torch.Tensor:
        kept = x[x > 0]
        return kept * 2 + kept.sum()

    return compile(fn)(_values(20))


def branch_on_data(compile: Compile) -> Any:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x - 1

    called = compile(fn)
    return called(torch.ones(3)), called(-torch.ones(3))


# ------------------------------------------------------------------------------------ modes


def autocast_to_bf16(compile: Compile) -> Any:
    model, x = _layers(), _values(2, 8)
    called = compile(model)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        half = called(x)
    with torch.no_grad():
        return half, called(x)


def under_inference_mode(compile: Compile) -> Any:
    called = compile(_layers())
    with torch.inference_mode():
        y = called(_values(2, 8))
    return y, y.is_inference()


def inference_and_gradients_in_turns(compile: Compile) -> Any:
    model, x = _layers(), _values(2, 8)
    called = compile(model)
    with torch.no_grad():
        first = called(x)
    called(x).sum().backward()
    gradients = [p.grad for p in model.parameters()]
    with torch.no_grad():
        return first, called(x), gradients


def gradients_of_inputs(compile: Compile) -> Any:
    x = _values(3, 4).requires_grad_()
    y = compile(lambda x: (x.sin() * x).sum(0))(x)
    y.backward(torch.ones_like(y))
    return y.detach(), x.grad, y.requires_grad


def training_steps(compile: Compile) -> Any:
    model = _layers().train()
    called = compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(4):
        optimizer.zero_grad()
        loss = F.mse_loss(called(_values(6, 8, seed=step)), torch.zeros(6, 4))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, [p.detach() for p in model.parameters()]


# ------------------------------------------------------------------------------------ processes


def eight_threads(compile: Compile) -> Any:
    model = _layers()
    called = compile(model)
    results: list[Any] = [None] * THREADS

    def work(at: int) -> None:
        with torch.no_grad():
            for _ in range(5):
                results[at] = called(_values(2, 8, seed=at))

    with torch.no_grad():
        called(_values(2, 8))
    workers = [threading.Thread(target=work, args=(at,)) for at in range(THREADS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return results


def after_fork(compile: Compile) -> Any:
    called = compile(_layers())
    x = _values(2, 8)
    with torch.no_grad():
        first = called(x)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        with torch.no_grad():
            os.write(write, called(x).numpy().tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    got = os.read(read, 1 << 16)
    return first, torch.frombuffer(bytearray(got), dtype=torch.float32).view(2, 4)


# ------------------------------------------------------------------------------------ weights


def _changed(compile: Compile, change: Callable[[Any], None]) -> Any:
    model, x = _layers(), _values(2, 8)
    called = compile(model)
    with torch.no_grad():
        first = called(x)
        change(model)
        return first, called(x), called(x)


def weight_changed_in_place(compile: Compile) -> Any:
    return _changed(compile, lambda model: model[0].weight.mul_(2))


def weight_changed_through_data(compile: Compile) -> Any:
    return _changed(compile, lambda model: model[0].weight.data.add_(1))


def one_element_changed_through_data(compile: Compile) -> Any:
    def change(model: Any) -> None:
        model[0].weight.data[3, 5] = 100

    return _changed(compile, change)


def weight_given_other_data(compile: Compile) -> Any:
    def change(model: Any) -> None:
        model[0].weight.data = model[0].weight.data * 3
        gc.collect()

    return _changed(compile, change)


def weights_loaded(compile: Compile) -> Any:
    def change(model: Any) -> None:
        model.load_state_dict({name: x + 1 for name, x in model.state_dict().items()})

    return _changed(compile, change)


def parameter_replaced(compile: Compile) -> Any:
    def change(model: Any) -> None:
        model[2].weight = nn.Parameter(_values(4, 16, seed=9))

    return _changed(compile, change)


def weight_changed_through_numpy(compile: Compile) -> Any:
    def change(model: Any) -> None:
        model[0].weight.detach().numpy()[7, 2] = -50

    return _changed(compile, change)


PROGRAMS: tuple[Callable[[Compile], Any], ...] = (
    *(input_changed_in_place, input_changed_and_not_returned, no_outputs, nothing_at_all),
    *(slice_of_input_changed, input_changed_through_a_view, row_set_by_index, masked_assignment),
    *(copied_from_another, two_inputs_swapped, out_argument, buffer_that_counts),
    *(running_statistics, input_of_strange_strides_changed),
    *(output_is_the_input, output_views_the_input, output_views_and_results, view_of_a_result),
    *(
        same_result_twice,
        clone_of_a_result,
        equal_results_apart,
        expanded_result,
        expanded_input_returned,
        transposed_result,
        result_split,
    ),
    *(as_strided_of_an_input, diagonal_of_an_input, result_changed_by_the_caller),
    *(view_changed_by_the_caller, detached_result),
    *(same_tensor_given_twice, overlapping_inputs, views_of_one_base, tied_weights),
    *(channels_last_input, channels_last_model, transposed_input, input_with_steps, expanded_input),
    *(input_with_an_offset, contiguous_asked_for, permuted_reduction, memory_format_of_a_result),
    *(empty_input, empty_product, result_cut_to_nothing, scalar_tensors, scalar_changed_in_place),
    *(axes_of_one, mixed_element_types, numbers_and_structures, size_read_from_data),
    branch_on_data,
    *(autocast_to_bf16, under_inference_mode, inference_and_gradients_in_turns),
    *(gradients_of_inputs, training_steps, eight_threads, after_fork),
    *(weight_changed_in_place, weight_changed_through_data, one_element_changed_through_data),
    *(weight_given_other_data, weights_loaded, parameter_replaced, weight_changed_through_numpy),
)
