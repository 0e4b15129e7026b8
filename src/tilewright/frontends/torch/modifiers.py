"""What the functions of flex attention say: score_mod and mask_mod, read as graphs.

    score_mod = score * c, cap * tanh(score / cap), + something, or where(seen, ..., -inf) of those
    mask_mod  = comparisons of k - q with numbers, and any conditions, all of which must hold

`try_read` finds the parts; a score_mod that is none of these has no reading.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

AXES = 4  # batch, head, query, key
QUERY, KEY = 2, 3


@dataclass(frozen=True)
class Part:
    """A node of a function that does not depend on the score."""

    module: fx.GraphModule
    node: Any  # or a number
    of_score: bool  # of score_mod, else of mask_mod
    negated: bool = False  # a condition under which a key is hidden, or what is subtracted

    @property
    def places(self) -> list[fx.Node]:
        """The batch, head, query and key, then buffers."""
        return _placeholders(self.module)[self.of_score :]

    @property
    def axes(self) -> set[int]:
        """Which of batch, head, query and key the node depends on."""
        used = _ancestors(self.node)
        return {at for at, each in enumerate(self.places[:AXES]) if each in used}

    def function(self) -> Callable[..., Any]:
        """The node as a function of batch, head, query, key and buffers."""
        made, used = fx.Graph(), _ancestors(self.node)
        places = self.places
        copies = {each: made.placeholder(each.name) for each in places}
        for each in self.module.graph.nodes:
            if each in used and each not in copies:
                copies[each] = made.node_copy(each, copies.__getitem__)
        made.output(copies[self.node] if isinstance(self.node, fx.Node) else self.node)
        run = fx.GraphModule(self.module, made)

        def called(*given: Any) -> Any:
            found = torch.as_tensor(run(*given))
            if not self.negated:
                return found
            return ~found if found.dtype is torch.bool else -found

        return called


@dataclass
class Reading:
    """Both functions: scale and softcap of the scores, then what is added and which keys are
    seen."""

    scale: float = 1.0
    softcap: float = 0.0
    added: list[Part] = field(default_factory=list)
    seen: list[Part] = field(default_factory=list)
    # Seen keys before and after a query; None: all.
    band: tuple[int | None, int | None] = (None, None)

    def narrow(self, low: int | None, high: int | None) -> bool:
        """Keep keys with low <= k - q <= high, if a query is among them itself."""
        if (low or 0) > 0 or (high or 0) < 0:
            return False
        left = [each for each in (self.band[0], None if low is None else -low) if each is not None]
        right = [each for each in (self.band[1], high) if each is not None]
        self.band = min(left, default=None), min(right, default=None)
        return True


def try_read(score_mod: Any, mask_mod: Any) -> Reading | None:
    """What both functions say together."""
    if not isinstance(score_mod, fx.GraphModule) or not isinstance(mask_mod, fx.GraphModule):
        return None
    read = Reading()
    if not _read_score(score_mod, read):
        return None
    _read_condition(Part(mask_mod, _result(mask_mod), of_score=False), read)
    return read


# --------------------------------------------------------------------------- scores


def _read_score(module: fx.GraphModule, read: Reading) -> bool:
    """From the result back to the score."""
    score, node = _placeholders(module)[0], _result(module)
    while isinstance(node, fx.Node):
        factors = _try_factors(node, score)
        if factors is not None:
            read.scale, read.softcap = factors
            return True
        name, args = _name(node), node.args
        if name in ("add", "sub") and not node.kwargs:
            depends = [score in _ancestors(each) for each in args]
            if depends == [True, False]:
                read.added.append(Part(module, args[1], of_score=True, negated=name == "sub"))
                node = args[0]
                continue
            if depends == [False, True] and name == "add":
                read.added.append(Part(module, args[0], of_score=True))
                node = args[1]
                continue
        if name == "where" and score not in _ancestors(args[0]):
            shown = [at for at in (1, 2) if _number(args[at]) != -math.inf]
            if len(shown) == 1:
                negated = shown == [2]
                _read_condition(Part(module, args[0], of_score=True, negated=negated), read)
                node = args[shown[0]]
                continue
        return False
    return False


def _try_factors(node: fx.Node, score: fx.Node) -> tuple[float, float] | None:
    """The scale and softcap of a node: factor * score, or factor * tanh(inner * score)."""
    factor, inner, is_capped = 1.0, 1.0, False
    while node is not score:
        name, args = _name(node), node.args
        if name == "tanh" and not is_capped:
            is_capped, node = True, args[0]
            continue
        if name not in ("mul", "div") or node.kwargs:
            return None
        numbers = [at for at, each in enumerate(args) if _number(each) is not None]
        if len(numbers) != 1 or (name == "div" and numbers == [0]):
            return None
        number = _number(args[numbers[0]])
        assert number is not None
        if number == 0:
            return None
        number = 1 / number if name == "div" else number
        if is_capped:
            inner *= number
        else:
            factor *= number
        node = args[1 - numbers[0]]
        if not isinstance(node, fx.Node):
            return None
    if not is_capped:
        return factor, 0.0
    return (inner * factor, factor) if factor > 0 else None


# --------------------------------------------------------------------------- conditions


def _read_condition(part: Part, read: Reading) -> None:
    """Conditions that must all hold: bands along the diagonal, or others."""
    stack = [part.node]
    if part.negated:
        read.seen.append(part)
        return
    while stack:
        node = stack.pop()
        if _number(node) == 1:  # always seen
            continue
        if isinstance(node, fx.Node):
            if _name(node) in ("__and__", "bitwise_and", "logical_and"):
                stack.extend(node.args)
                continue
            bounds = _try_bounds(node, part.places)
            if bounds is not None and read.narrow(*bounds):
                continue
        read.seen.append(Part(part.module, node, part.of_score))


def _try_bounds(node: fx.Node, places: list[fx.Node]) -> tuple[int | None, int | None] | None:
    """The least and greatest k - q for which a comparison holds."""
    name = _name(node)
    if name not in ("ge", "gt", "le", "lt") or node.kwargs:
        return None
    one, other = node.args if name in ("ge", "gt") else reversed(node.args)
    strict = int(name in ("gt", "lt"))  # one >= other + strict, of integers
    if isinstance(other, fx.Node) and _name(other) == "abs":  # |x| <= y: x <= y and -x <= y
        x, y = _try_linear(other.args[0], places), _try_linear(one, places)
        if x is None or y is None or y[:2] != (0, 0) or x[:2] not in ((1, -1), (-1, 1)):
            return None
        least, greatest = -(y[2] - strict) - x[2], y[2] - strict - x[2]  # of k - q or q - k
        return (least, greatest) if x[1] == 1 else (-greatest, -least)
    a, b = _try_linear(one, places), _try_linear(other, places)
    if a is None or b is None:
        return None
    of_q, of_k, number = (x - y for x, y in zip(a, b, strict=True))
    number -= strict  # of_q q + of_k k + number >= 0
    if (of_q, of_k) == (-1, 1):
        return -number, None
    return (None, number) if (of_q, of_k) == (1, -1) else None


def _try_linear(node: Any, places: list[fx.Node]) -> tuple[int, int, int] | None:
    """The factors of the query and the key, and the number, that an integer is the sum of."""
    if isinstance(node, int) and not isinstance(node, bool):
        return 0, 0, node
    if not isinstance(node, fx.Node):
        return None
    if node is places[QUERY]:
        return 1, 0, 0
    if node is places[KEY]:
        return 0, 1, 0
    if _name(node) not in ("add", "sub") or node.kwargs:
        return None
    a, b = (_try_linear(each, places) for each in node.args)
    if a is None or b is None:
        return None
    sign = 1 if _name(node) == "add" else -1
    of_q, of_k, number = (x + sign * y for x, y in zip(a, b, strict=True))
    return of_q, of_k, number


# --------------------------------------------------------------------------- nodes


def _name(node: fx.Node) -> str:
    """An operator's name without its overload."""
    found: str = getattr(getattr(node.target, "_schema", None), "name", "")
    return found.removeprefix("aten::")


def _number(node: Any) -> float | None:
    """A number, or a tensor of that number alone."""
    if isinstance(node, bool | int | float):
        return float(node)
    if not isinstance(node, fx.Node):
        return None
    name, args = _name(node), node.args
    if name in ("ones", "new_ones", "ones_like"):
        return 1.0
    at = {"full": 1, "new_full": 2, "full_like": 1, "scalar_tensor": 0}.get(name, len(args))
    return _number(args[at]) if at < len(args) else None


def _placeholders(module: fx.GraphModule) -> list[fx.Node]:
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def _result(module: fx.GraphModule) -> Any:
    """What a function of one result returns."""
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    (result,) = output.args
    return result[0] if isinstance(result, tuple | list) else result


def _ancestors(node: Any) -> set[fx.Node]:
    """A node and all that it is computed from."""
    found: set[fx.Node] = set()
    stack = [node] if isinstance(node, fx.Node) else []
    while stack:
        each = stack.pop()
        if each not in found:
            found.add(each)
            stack.extend(each.all_input_nodes)
    return found
