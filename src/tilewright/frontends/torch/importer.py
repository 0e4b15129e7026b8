"""Import graphs of ATen operators as graph modules.

Every node is translated by a rule: a function in `rules/`, one family per file, one table of all.
The type and shape that PyTorch traced for each result are compared with what the rule made. All
unsupported operators of a model are reported at once, with the lines of the user's program.
"""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sympy
import torch
from torch import fx

from tilewright import sym
from tilewright.base.dtype import BOOL, F64, I64
from tilewright.base.errors import TilewrightError, Unsupported, UserError
from tilewright.base.loc import File, Loc, ModelNode, fuse
from tilewright.frontends.common.report import Problems, Skip
from tilewright.frontends.torch.floats import float_of
from tilewright.frontends.torch.rules import RULES
from tilewright.frontends.torch.rules.base import Context
from tilewright.frontends.torch.rules.complex import (
    BY_PARTS,
    PAIR_RULES,
    Pair,
    PairRule,
    by_parts,
    is_complex,
    joined,
    parted,
)
from tilewright.frontends.torch.rules.traced import try_definition
from tilewright.frontends.torch.sizes import Sizes
from tilewright.frontends.torch.tensors import PARTS, array_of, dtype_of
from tilewright.graph import Builder, Graph, Value
from tilewright.graph.types import TensorType
from tilewright.sym import Const, Expr, Size, const, size

Array = np.ndarray[Any, Any]
Env = dict[
    fx.Node, Any
]  # the translation of each node: a value, a size, a number, a tuple of those

_FRAME = re.compile(r'File "(?P<path>[^"]+)", line (?P<line>\d+)')


@dataclass
class Importer:
    """State of one import."""

    name: str
    constants: dict[str, Array] = field(default_factory=dict)
    problems: Problems = field(default_factory=dict)
    sizes: Sizes = field(default_factory=Sizes)
    checks: list[tuple[Value, str]] = field(default_factory=list)  # conditions to check at run time
    names: dict[tuple[str, int], str] = field(default_factory=dict)  # of axes, given by the user
    numbers: dict[Expr, Value] = field(default_factory=dict)  # data-dependent sizes
    own: set[str] = field(default_factory=set)  # the names of the sizes of inputs

    # ------------------------------------------------------------------ inputs

    def param(self, builder: Builder, name: str, fake: torch.Tensor) -> Value | Pair:
        """A graph parameter; a dimension that is a single symbol defines a size."""
        dims: list[Expr] = []
        extents: Sequence[int | torch.SymInt] = fake.shape
        for at, dim in enumerate(extents):
            if isinstance(dim, torch.SymInt) and not self.sizes.knows(dim):
                dims.append(self.new_size(dim, name, at))
            else:
                dims.append(self.sizes.expr(dim))
        if fake.is_complex():
            of = TensorType(dtype_of(PARTS[fake.dtype]), (*dims, const(2)))
            return parted(builder, builder.param(name, of))
        return builder.param(name, TensorType(dtype_of(fake.dtype), tuple(dims)))

    def named_size(self, name: str) -> Size:
        self.own.add(name)
        return size(name)

    def new_size(self, dim: torch.SymInt, name: str, at: int) -> Size:
        """A size for a dimension; the symbol of a multiple is defined by a quotient."""
        expr = dim.node.expr
        if isinstance(expr, sympy.Symbol):
            made = self.named_size(self.names.get((name, at), str(expr)))
            self.sizes.symbols[expr] = made
            return made
        unknown = self.sizes.unknown(dim)
        factor = _factor(expr, unknown[0]) if len(unknown) == 1 else 0
        if factor < 1:
            raise Skip(f"an input with the dimension {expr}")
        made = self.named_size(self.names.get((name, at), f"{name}_{at}"))
        rest = self.sizes.expr(expr - factor * unknown[0])
        quotient = sym.floordiv(sym.sub(made, rest), factor)
        self.sizes.symbols[unknown[0]] = sym.simplify(quotient)
        return made

    def unsolved(self, extents: Sequence[int | torch.SymInt]) -> list[sympy.Symbol]:
        """The symbols that must be known before the dimensions define the others."""
        told = {dim.node.expr for dim in extents if isinstance(dim, torch.SymInt)}
        lacking = [
            [each for each in self.sizes.unknown(dim) if each not in told] for dim in extents
        ]
        return [each for several in lacking for each in several[1:]]

    def number(self, builder: Builder, name: str, given: torch.SymInt) -> Expr:
        """A size given as a number: the extent of a range up to it."""
        value = builder.param(name, TensorType(I64, ()))
        if self.sizes.knows(given):
            return self.sizes.expr(given)
        zero, one = (builder.constant(np.int64(each)) for each in (0, 1))
        counted = builder.add("range", zero, value, one, to=I64)
        (extent,) = counted.tensor.shape or ()
        self.define(given.node.expr, extent)
        return extent

    # ------------------------------------------------------------------ nodes

    def run(self, graph: fx.Graph, env: Env, builder: Builder) -> list[Any]:
        """Translate all nodes except placeholders, which are in `env`; returns the outputs."""
        for node in graph.nodes:
            if node.op == "output":
                made = fx.map_arg(node.args[0], lambda n: env.get(n))
                return list(made) if isinstance(made, (list, tuple)) else [made]
            if node.op == "call_function":
                self.node(node, builder, env)
            elif node.op != "placeholder" and node not in env:
                raise UserError("TW1122", f"{self.name} has a node of kind {node.op}: {node.name}")
        raise UserError("TW1122", f"{self.name} has no output node")

    def node(self, node: fx.Node, builder: Builder, env: Env) -> None:
        """Translate one node; what is unsupported is added to the problems."""
        loc = location(self.name, node)
        if any(source not in env for source in node.all_input_nodes):
            return  # its producer was reported already
        try:
            env[node] = self.translate(node, builder, env, loc)
        except (Unsupported, Skip) as error:
            reason = error.message if isinstance(error, Unsupported) else str(error)
            self.problems.setdefault(reason, []).append(_place(node))
        except TilewrightError:
            raise
        except Exception as error:
            message = f"{node.target} cannot be read: {type(error).__name__}: {error}"
            raise UserError("TW1110", message, loc) from error

    def counts(self) -> Counter[str]:
        """The number of nodes with each problem."""
        return Counter({reason: len(nodes) for reason, nodes in self.problems.items()})

    def translate(self, node: fx.Node, builder: Builder, env: Env, loc: Loc) -> Any:
        """The translation of a node."""
        meta = node.meta.get("val")
        if isinstance(meta, (torch.SymInt, torch.SymBool)) and self.sizes.knows(meta):
            return self.sizes.expr(meta)  # arithmetic on sizes, done by PyTorch
        if isinstance(meta, torch.SymFloat) and self.sizes.knows(meta):
            return float_of(meta.node.expr, self.sizes, builder)
        if isinstance(meta, (int, float)) and not isinstance(meta, bool):
            return meta
        if node.target is operator.getitem:
            source, at = node.args
            assert isinstance(source, fx.Node)
            return env[source][at]
        effect = node.target is torch.ops.higher_order.with_effects
        target, given = (node.args[1], node.args[2:]) if effect else (node.target, node.args)
        args, raw = bound(target, given, node.kwargs, env)
        context = Context(node, args, raw, builder, loc, self)
        made = rule_of(target, args.values(), meta)(context)
        if effect:  # results come with a token that orders effects
            return (None, *made) if isinstance(made, (list, tuple)) else (None, made)
        return self.checked(node, made)

    def checked(self, node: fx.Node, made: Any) -> Any:
        """The results of a rule, compared with PyTorch's traced ones; new sizes are defined."""
        meta = node.meta.get("val")
        if isinstance(meta, (tuple, list)):
            if not isinstance(made, (tuple, list)):
                made = (made,)
            for at, (value, fake) in enumerate(zip(made, meta, strict=False)):
                try:
                    self._check(node, value, fake)
                except Skip:
                    if _is_read(node, at):
                        raise
            return tuple(made)
        self._check(node, made, meta)
        return made

    def _check(self, node: fx.Node, value: Any, fake: Any) -> None:
        if isinstance(value, Pair) and isinstance(fake, torch.Tensor) and fake.is_complex():
            value, fake = value.re, fake.real
        if not isinstance(fake, torch.Tensor) or not isinstance(value, Value):
            return
        have, want = value.tensor, dtype_of(fake.dtype)
        if have.dtype is not want or have.rank != fake.dim():
            shape = list(fake.shape)
            raise Skip(f"{rule_name(node.target)} as {have} where PyTorch has {want}{shape}")
        extents: Sequence[int | torch.SymInt] = fake.shape
        for mine, theirs in zip(have.shape or (), extents, strict=True):
            if isinstance(theirs, torch.SymInt):
                expr = theirs.node.expr
                if isinstance(expr, sympy.Symbol) and expr not in self.sizes.symbols:
                    self.define(expr, mine)
            elif isinstance(mine, Const) and int(mine.value) != theirs:
                raise Skip(
                    f"{rule_name(node.target)} as {have} where PyTorch has {list(fake.shape)}"
                )

    def define(self, symbol: Any, size: Expr) -> None:
        """Define a symbol, such as the number of elements found, by a size."""
        self.sizes.symbols.setdefault(symbol, size)

    def check(self, cond: Value, message: str, node: Context) -> None:
        """Add a condition that is checked at run time."""
        self.checks.append((cond, message))

    # ------------------------------------------------------------------ bodies

    def body(self, module: fx.GraphModule, params: Sequence[TensorType], outer: Builder) -> Graph:
        """The graph of a branch, or of the body of a loop."""
        builder = Builder(outer=outer)
        env: Env = {}
        placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        for node, of in zip(placeholders, params, strict=True):
            env[node] = builder.param(node.name, of)
        for node in module.graph.nodes:
            if node.op == "get_attr":
                env[node] = self.attribute(module, node, builder)
        held, self.checks = self.checks, []
        before = self.counts()
        made = self.run(module.graph, env, builder)
        if lacking := [*(self.counts() - before)]:
            raise Skip("; ".join(lacking))
        results = [self.as_value(each, builder) for each in made]
        results = self.guarded(results, builder)
        self.checks = held
        return builder.graph(*results, name="body")

    def attribute(self, module: fx.GraphModule, node: fx.Node, builder: Builder) -> Any:
        """The value of a get_attr node: a constant, or the graph of a body."""
        found: Any = module
        for part in str(node.target).split("."):
            found = getattr(found, part)
        if isinstance(found, torch.Tensor) and found.is_complex():
            parts = torch.view_as_real(found.resolve_conj())
            return parted(builder, builder.constant(array_of(parts, node.name), node.name))
        if isinstance(found, torch.Tensor):
            return builder.constant(array_of(found, node.name), node.name)
        return found

    def as_value(self, result: Any, builder: Builder) -> Value:
        """A result as a tensor; sizes and numbers become scalars."""
        if isinstance(result, Value):
            return result
        if isinstance(result, Pair):
            return joined(builder, result)
        if isinstance(result, Expr) and result in self.numbers:
            return self.numbers[result]  # which may be negative
        if isinstance(result, Expr):
            return builder.add(
                "dims", values=int(result.value) if isinstance(result, Const) else result
            )
        if isinstance(result, (bool, int, float)):
            of = BOOL.numpy if isinstance(result, bool) else F64.numpy
            return builder.constant(np.asarray(result, np.int64 if type(result) is int else of))
        raise Skip(f"a result of type {type(result).__name__}")

    def guarded(self, results: list[Value], builder: Builder) -> list[Value]:
        """The results, computed only if all assertions of the program hold."""
        if not results:
            return results
        first = results[0]
        for cond, message in self.checks:
            first = builder.add("require", cond, first, message=message)
        return [first, *results[1:]]


def _factor(expr: sympy.Expr, symbol: sympy.Symbol) -> int:
    """The integer coefficient of a symbol; 0 if the expression is not linear in it."""
    found = expr.coeff(symbol)
    if not isinstance(found, sympy.Integer) or (expr - found * symbol).has(symbol):
        return 0
    return int(found)


def bound(
    target: Any, positional: Sequence[Any], named: Mapping[str, Any], env: Mapping[fx.Node, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments by name, as graph values and as PyTorch's fake tensors."""
    schema = getattr(target, "_schema", None)
    if schema is None:
        given: dict[str, Any] = {str(at): each for at, each in enumerate(positional)}
    else:
        given = {arg.name: arg.default_value for arg in schema.arguments if arg.has_default_value()}
        names = [arg.name for arg in schema.arguments]
        given |= dict(zip(names, positional, strict=False))
    given |= named
    values = {key: fx.map_arg(value, lambda n: env[n]) for key, value in given.items()}
    fakes = {key: fx.map_arg(value, lambda n: n.meta.get("val")) for key, value in given.items()}
    return values, fakes


def rule_of(target: Any, args: Iterable[Any], meta: Any) -> PairRule:
    """The rule of an operator; if complex numbers are involved, the one for those."""
    key = rule_name(target)
    given = [each for x in args for each in (x if isinstance(x, (list, tuple)) else (x,))]
    if any(isinstance(x, Pair) for x in given) or is_complex(meta):
        rule = PAIR_RULES.get(key)
        if rule is None and key in BY_PARTS:
            rule = by_parts(RULES[key])
        if rule is None:
            raise Skip(f"operator {key} of complex numbers")
        return rule
    found = RULES.get(key) or try_definition(target)
    if found is None:
        raise Skip(f"operator {key}")
    return found


def rule_name(target: Any) -> str:
    """For example aten.add.Tensor; Python functions by their own names."""
    if isinstance(target, torch._ops.OpOverload):
        return str(target).removesuffix(".default")
    if isinstance(target, torch._ops.HigherOrderOperator):
        return str(target._name)
    return f"{target.__module__}.{target.__name__}"


def location(model: str, node: fx.Node) -> Loc:
    """The line of the user's program a node comes from, and the node."""
    return fuse(*lines_of(node), ModelNode(model, node.name))


def _is_read(node: fx.Node, at: int) -> bool:
    """Whether a result of a node is used."""
    return any(user.target is not operator.getitem or user.args[1] == at for user in node.users)


def lines_of(node: fx.Node) -> list[File]:
    """The line of the user's program that a node comes from, if known."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    return [File(path, int(line)) for path, line in frames[-1:]]


def _place(node: fx.Node) -> str:
    return " at ".join([node.name, *(str(place) for place in lines_of(node))])
