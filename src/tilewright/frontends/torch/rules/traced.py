"""Operators defined by Python functions, which are imported from traces of these.

The function is traced again with the fake tensors of the node. This serves PyTorch's dense form of
flex attention, and operators that libraries define in Python by `torch.library.custom_op` or
`torch.library.impl`, including those that mutate their operands.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._higher_order_ops.auto_functionalize import auto_functionalized_v2_dense
from torch._library.custom_ops import OPDEFS
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from tilewright.base.errors import TilewrightError
from tilewright.frontends.common.report import Skip
from tilewright.frontends.torch.decompositions import under_autograd
from tilewright.frontends.torch.rules.base import Context, Rule
from tilewright.frontends.torch.rules.control import body_of, inlined
from tilewright.graph import Value

_OF = torch.Tensor
READS = (_OF.numpy, _OF.__array__, _OF.tolist, _OF.data_ptr, _OF.__dlpack__, _OF.untyped_storage)
KERNELS = ("CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd")  # that a CPU runs


def traced(function: Callable[..., Any]) -> Rule:
    """The rule of an operator that a function defines."""

    def rule(node: Context) -> Value | Sequence[Value | None]:
        given, spec = pytree.tree_flatten(dict(node.args))
        fakes, _ = pytree.tree_flatten(dict(node.raw))
        places = [at for at, each in enumerate(given) if isinstance(each, Value)]
        values = [given[at] for at in places]

        made_of: list[Any] = []  # the structure of the function's results, once traced

        def run(*tensors: torch.Tensor) -> Any:
            filled = list(given)
            for at, tensor in zip(places, tensors, strict=True):
                filled[at] = tensor
            found = pytree.tree_unflatten(filled, spec)
            # Without a schema, arguments are named by numbers.
            positional = [value for name, value in found.items() if name.isdigit()]
            named = {name: value for name, value in found.items() if not name.isdigit()}
            leaves, structure = pytree.tree_flatten(function(*positional, **named))
            made_of[:] = [structure, [isinstance(leaf, torch.Tensor) for leaf in leaves]]
            return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

        module = _trace(run, [fakes[at] for at in places])
        for each in module.graph.nodes:  # where the user's program has it
            each.meta.setdefault("stack_trace", node.node.meta.get("stack_trace"))
        body = body_of(node, module, [value.tensor for value in values])
        rest = iter(inlined(node, body, values))
        structure, are_tensors = made_of
        made = [next(rest) if is_tensor else None for is_tensor in are_tensors]
        return pytree.tree_unflatten(made, structure)  # type: ignore[no-any-return]

    return rule


class _OnlyOperators(TorchFunctionMode):
    """Runs operators by the Python functions that define them. Functions that access tensors other
    than by operators are rejected: fake tensors have no contents."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func in READS:
            raise Skip(f"a function that reads tensors by {func.__name__}")
        return (try_python(func) or func)(*args, **(kwargs or {}))


def _trace(run: Callable[..., Any], examples: list[Any]) -> fx.GraphModule:
    with examples[0].fake_mode, torch.no_grad(), _OnlyOperators():
        module = make_fx(functionalize(run), decomposition_table=under_autograd())(*examples)
    tags = [tag for node in module.graph.nodes for tag in getattr(node.target, "tags", ())]
    if torch.Tag.nondeterministic_seeded in tags:
        raise Skip("a function with random numbers")
    return module


def try_python(target: Any) -> Callable[..., Any] | None:
    """The Python function that a library defines an operator by."""
    if not isinstance(target, torch._ops.OpOverload):
        return None
    found = OPDEFS.get(target._schema.name)
    if found is not None:
        return found._init_fn
    for key in KERNELS:
        if f"{str(target._name).replace('::', '/')}/{key}" in torch.library._impls:
            return functools.partial(target._op_dk, getattr(torch._C.DispatchKey, key))
    return None


def try_definition(target: Any) -> Rule | None:
    """The rule of an operator that a library defines in Python without mutating operands."""
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
        return None
    found = try_python(target)
    return None if found is None else _guarded(traced(found))


def _changed(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """The results of an operator, and the operands that it mutates, which are copied first."""
    if try_python(operator) is None:
        raise Skip(f"operator {operator}, which changes its operands")
    return auto_functionalized_v2_dense(operator, *args, **kwargs)


def _guarded(rule: Rule) -> Rule:
    """Arbitrary user code, which may do more than call operators."""

    def guarded(node: Context) -> Value | Sequence[Value | None]:
        fakes = [x for x in pytree.tree_leaves(tuple(node.raw.values())) if _is_tensor(x)]
        if not fakes or any(isinstance(dim, torch.SymInt) for x in fakes for dim in x.shape):
            raise Skip(f"operator {node.op_type}, which Python defines, of dynamic sizes")
        try:
            return rule(node)
        except (Skip, TilewrightError):
            raise
        except Exception as error:  # whatever user code raises
            said = str(error).partition("\n")[0] or type(error).__name__
            raise Skip(f"operator {node.op_type}, whose Python has no trace: {said}") from error

    return guarded


def _is_tensor(x: Any) -> bool:
    return isinstance(x, torch.Tensor)


RULES: dict[str, Rule] = {"auto_functionalized_v2": _guarded(traced(_changed))}
