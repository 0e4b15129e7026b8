"""PyTorch models ahead of time: exported, made functional, imported.

imported = import_program(model, args=(x,), dynamic={"x": {0: "batch"}})
imported.module      the graph module
imported.wrap(...)   what was compiled from it, called with tensors in the model's own structure
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import Parameter
from os import PathLike
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    OutputKind,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
)

from tilewright.base.errors import TilewrightError, UserError
from tilewright.frontends.common.report import report
from tilewright.frontends.torch.calling import Structure, TorchModule
from tilewright.frontends.torch.decompositions import decomposed
from tilewright.frontends.torch.examples import (
    examples_of,
    is_of_transformers,
    try_exporter,
    without_cache,
)
from tilewright.frontends.torch.generate import Compile, LanguageModule, can_generate
from tilewright.frontends.torch.importer import Env, Importer
from tilewright.frontends.torch.recurrent import kept_whole
from tilewright.frontends.torch.rules.complex import Pair, parted
from tilewright.frontends.torch.tensors import array_of
from tilewright.graph import Builder, Module, Value
from tilewright.runtime import module as runtime

Source = torch.nn.Module | ExportedProgram | str | PathLike[str]
Range = int | tuple[int, int]
Dynamic = bool | Mapping[str, Any]

_WEIGHTS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
_NUMBERS = (SymIntArgument, SymFloatArgument, SymBoolArgument)
MOST_REASONS = 4  # of what torch.export could not trace, told at once
ENDLESS = 1 << 62  # of a size that nothing bounds: one more is a number of 64 bits, too
_MUTATED = (
    OutputKind.BUFFER_MUTATION,
    OutputKind.USER_INPUT_MUTATION,
    OutputKind.PARAMETER_MUTATION,
)


@dataclass(frozen=True)
class Imported:
    """A model as a graph, and how it is called."""

    module: Module
    structure: Structure
    ranges: Mapping[str, Range] = field(default_factory=dict)  # of sizes, checked at entry
    # Of a model that writes text: itself, and what compiles the graphs for that.
    text: tuple[torch.nn.Module, Compile] | None = None

    def wrap(self, compiled: runtime.Module) -> runtime.Module:
        """What takes and gives tensors as the model does."""
        if self.text is not None:
            return LanguageModule(compiled, self.structure, *self.text)
        return TorchModule(compiled, self.structure)


def import_program(
    source: Source,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    dynamic: Dynamic | None = None,
    again: Compile | None = None,
) -> Imported:
    """The graph of a model, an exported program, or the path of one."""
    name = _name(source)
    axes, ranges = _told(dynamic)
    program = _apart(exported(source, args, kwargs, dynamic, axes, ranges), name)
    imported = _Import(program, name, axes, ranges).run()
    if again is None or not isinstance(source, torch.nn.Module) or not can_generate(source):
        return imported
    return replace(imported, text=(source, again))


def _name(source: Source) -> str:
    if isinstance(source, (str, PathLike)):
        return str(source)
    return type(source).__name__


def exported(
    source: Source,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    dynamic: Dynamic | None,
    axes: Mapping[str, Mapping[int, str]],
    ranges: Mapping[str, Range],
) -> ExportedProgram:
    """The program of a model, traced by torch.export if it is not yet."""
    if isinstance(source, ExportedProgram):
        return source
    if isinstance(source, (str, PathLike)):
        try:
            return torch.export.load(source)
        except Exception as error:
            message = f"{source} is no exported program: {error}"
            raise UserError("TW1123", message, help="write it by torch.export.save") from error
    if args is None and kwargs is None:
        return _by_examples(source, dynamic, axes, ranges)
    shapes = _dynamic_shapes(source, args or (), kwargs or {}, dynamic, axes, ranges)
    return _traced(source, args or (), kwargs or {}, shapes)


def _by_examples(
    model: torch.nn.Module,
    dynamic: Dynamic | None,
    axes: Mapping[str, Mapping[int, str]],
    ranges: Mapping[str, Range],
) -> ExportedProgram:
    """A model traced with inputs that its config describes, as much left open as can be."""
    found = examples_of(model)
    if found is None:
        raise UserError(
            "TW1124",
            f"{type(model).__name__} needs example inputs to be traced with",
            help="pass them: compile(model, args=(x,))",
        )
    with without_cache(model):
        if dynamic is not None:
            shapes = _dynamic_shapes(model, (), found.kwargs, dynamic, axes, ranges)
            return _traced(model, (), found.kwargs, shapes)
        failed: UserError | None = None
        attempts = [
            _dynamic_shapes(model, (), found.kwargs, axes, axes, {}) for axes in found.attempts()
        ]
        for shapes in attempts:
            try:
                return _traced_plainly(model, (), found.kwargs, shapes)
            except UserError as error:
                failed = failed or error
        for shapes in attempts:
            program = try_exporter(model, found.kwargs, shapes)
            if program is not None:
                return program
        assert failed is not None
        raise failed


def _traced(
    source: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], shapes: Any
) -> ExportedProgram:
    """By torch.export alone, or, where that fails, by transformers' own exporter."""
    try:
        return _traced_plainly(source, args, kwargs, shapes)
    except UserError:
        if not is_of_transformers(source):
            raise
        named = dict(_bound(source, args, kwargs).arguments)
        program = try_exporter(source, named, shapes)
        if program is None:
            raise
        return program


def _traced_plainly(
    source: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], shapes: Any
) -> ExportedProgram:
    """Trace by torch.export. Dimensions without a range are limited to what the model accepts; what
    it cannot prove of others becomes an assertion."""

    def trace(shapes: Any, **how: bool) -> ExportedProgram:
        with warnings.catch_warnings(), kept_whole(source):
            warnings.simplefilter("ignore")
            return torch.export.export(
                source, tuple(args), dict(kwargs), dynamic_shapes=shapes, strict=False, **how
            )

    try:
        try:
            return trace(shapes)
        except Exception as error:
            limited = _try_limited(shapes, str(error))
            if limited is not None:
                return trace(limited)
            if _UNPROVEN not in str(error) or _BOUND.search(str(error)):
                raise
            return trace(shapes, prefer_deferred_runtime_asserts_over_guards=True)
    except TilewrightError:
        raise
    except Exception as error:
        raise _untraced(f"torch.export cannot trace {_name(source)}", error) from error


_UNPROVEN = "satisfy the generated guard"  # of sizes, not one that is a constant
_BOUND = re.compile(_UNPROVEN + r" L\[[^=]*\.size\(\)\[\d+\] [<>]=? \d+(?:\.|$)", re.MULTILINE)
_FIXES = re.compile(r"^Suggested fixes:\n(?P<lines>(?:  .+\n?)+)", re.MULTILINE)
_LIMITS = re.compile(r"  (\w+) = Dim\('\w+'(?:, min=(\d+))?(?:, max=(\d+))?\)")


def _try_limited(shapes: Any, message: str) -> Any:
    """Dynamic shapes narrowed to the ranges that torch.export suggests; None if it suggests
    something else, or the user gave a range."""
    told = _FIXES.search(message)
    if told is None:
        return None
    limits: dict[str, Any] = {}
    for line in told["lines"].splitlines():
        found = _LIMITS.fullmatch(line)
        if found is None:
            return None
        name, low, high = found.groups()
        ends = {end: int(value) for end, value in (("min", low), ("max", high)) if value}
        limits[name] = Dim(name, **ends)
    given = [each for each in torch.utils._pytree.tree_leaves(shapes) if isinstance(each, Dim)]
    anything = Dim("anything")
    if any((dim.min, dim.max) != (anything.min, anything.max)
           for dim in given if dim.__name__ in limits):  # fmt: skip
        return None
    return torch.utils._pytree.tree_map(
        lambda each: limits.get(each.__name__, each) if isinstance(each, Dim) else each, shapes
    )


def _apart(program: ExportedProgram, name: str) -> ExportedProgram:
    """A program of the operators that rules speak of: PyTorch's formulas are traced, too."""
    try:
        return decomposed(program)
    except TilewrightError:
        raise
    except Exception as error:
        raise _untraced(f"PyTorch cannot take the operators of {name} apart", error) from error


def _untraced(what: str, error: Exception) -> UserError:
    text = str(error).strip().split("\n\n")[0].splitlines() or [""]
    reasons = [line.strip() for line in text[1:] if line.startswith("  - ")]  # of constraints
    message = "\n  ".join([f"{what}: {type(error).__name__}: {text[0]}", *reasons[:MOST_REASONS]])
    help = 'torch.compile(model, backend="tilewright") runs what cannot be traced as a whole'
    return UserError("TW1125", message, help=help)


def _told(
    dynamic: Dynamic | None,
) -> tuple[dict[str, dict[int, str]], dict[str, Range]]:
    """What `dynamic` says of axes of inputs, and of sizes by name."""
    axes: dict[str, dict[int, str]] = {}
    ranges: dict[str, Range] = {}
    if isinstance(dynamic, Mapping):
        for name, said in dynamic.items():
            if isinstance(said, Mapping):
                axes[name] = {int(axis): str(size) for axis, size in said.items()}
            else:
                ranges[name] = said
    return axes, ranges


def _dynamic_shapes(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dynamic: Dynamic | None,
    axes: Mapping[str, Mapping[int, str]],
    ranges: Mapping[str, Range],
) -> Any:
    """The same in torch.export's words."""
    if dynamic is None or dynamic is False:
        return None
    bound = _bound(model, args, kwargs)
    if dynamic is True:
        return torch.utils._pytree.tree_map(_all_axes, dict(bound.arguments))
    names: list[str] = []
    known: dict[str, Any] = {}

    def shapes(name: str, value: Any) -> Any:
        names.append(name)
        sizes = {axis: known.setdefault(size, _dim(size, ranges)) for axis, size in
                 axes.get(name, {}).items()}  # fmt: skip
        held = torch.utils._pytree.tree_structure(value)  # one tensor, or several
        return held.unflatten([sizes or None] * held.num_leaves)

    made: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is Parameter.VAR_POSITIONAL:
            made[name] = tuple(shapes(f"{name}_{at}", each) for at, each in enumerate(value))
        elif kind is Parameter.VAR_KEYWORD:
            made[name] = {key: shapes(key, each) for key, each in value.items()}
        else:
            made[name] = shapes(name, value)
    for name in axes:
        if name not in names:
            help = f"its inputs are {', '.join(names)}"
            raise UserError("TW6005", f"the model has no input {name}", help=help)
    return made


def _dim(name: str, ranges: Mapping[str, Range]) -> Any:
    said = ranges.get(name)
    if isinstance(said, tuple):
        return Dim(name, min=said[0], max=said[1])
    return Dim(name)


def _all_axes(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return None
    return dict.fromkeys(range(value.dim()), Dim.AUTO)


def _bound(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    """The arguments by the parameters of the model's forward."""
    try:
        return inspect.signature(model.forward).bind(*args, **kwargs)
    except TypeError as error:
        raise _untraced(f"torch.export cannot trace {_name(model)}", error) from error


class _Import:
    """The import of one exported program."""

    def __init__(
        self,
        program: ExportedProgram,
        name: str,
        axes: Mapping[str, Mapping[int, str]],
        ranges: Mapping[str, Range],
    ) -> None:
        self.program = program
        self.signature = program.graph_signature
        self.importer = Importer(name)
        self.builder = Builder(self.importer.constants)
        self.importer.names = {
            (name, axis): size for name, sizes in axes.items() for axis, size in sizes.items()
        }
        self.given = ranges
        self.env: Env = {}

    def run(self) -> Imported:
        structure = self._inputs()
        importer = self.importer
        if importer.problems:
            raise report(importer.name, importer.problems)
        made = importer.run(self.program.graph, self.env, self.builder)
        if importer.problems:
            raise report(importer.name, importer.problems)
        values = self._outputs(made, structure)
        values = importer.guarded(values, self.builder)
        graph = self.builder.graph(*values)
        states = tuple(self._begins(*state) for state in structure.states.items())
        outputs = tuple(structure.names)
        module = Module({"main": graph}, importer.constants, outputs=outputs, states=states)
        return Imported(module, structure, {**self._ranges(), **self._given_ranges()})

    # ------------------------------------------------------------------ inputs

    def _inputs(self) -> Structure:
        """Parameters for what users give and what the model changes; constants for weights."""
        structure = Structure(self.program.call_spec.in_spec, self.program.call_spec.out_spec)
        mutated = set(self.signature.buffers_to_mutate.values())
        mutated |= set(getattr(self.signature, "parameters_to_mutate", {}).values())
        for node in self.program.graph.nodes:
            if node.op == "get_attr":
                module = self.program.graph_module
                self.env[node] = self.importer.attribute(module, node, self.builder)
        nodes = [node for node in self.program.graph.nodes if node.op == "placeholder"]
        held: list[tuple[Any, str, torch.Tensor]] = []
        for node, spec in zip(nodes, self.signature.input_specs, strict=True):
            if spec.kind in _WEIGHTS:
                tensor = self._tensor(spec)
                if spec.target in mutated:
                    held.append((node, str(spec.target), tensor))
                else:
                    self.env[node] = self._constant(tensor, str(spec.target))
            elif spec.kind is InputKind.TOKEN:  # orders side effects; runs have none
                self.env[node] = None
            elif isinstance(spec.arg, ConstantArgument):
                structure.constants[len(structure.order)] = spec.arg.value
                structure.order.append(None)
                self.env[node] = spec.arg.value
            elif spec.kind is InputKind.USER_INPUT:
                self._input(node, structure)
            else:
                reason = f"an input of kind {spec.kind.name.lower()}"  # of side effects, say
                self.importer.problems.setdefault(reason, []).append(node.name)
        for node, name, tensor in held:
            self.env[node] = self.importer.param(self.builder, _word(name), node.meta["val"])
            structure.states[name] = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        return structure

    def _input(self, node: torch.fx.Node, structure: Structure) -> None:
        fake = node.meta["val"]
        if isinstance(fake, torch.Tensor):
            self.env[node] = self.importer.param(self.builder, node.name, fake)
            structure.order.append(len(structure.inputs))
            structure.inputs.append(node.name)
            return
        if isinstance(fake, torch.SymInt):
            self.env[node] = self.importer.number(self.builder, node.name, fake)
            structure.order.append(len(structure.inputs))
            structure.inputs.append(node.name)
            return
        structure.constants[len(structure.order)] = fake
        structure.order.append(None)
        self.env[node] = fake

    def _constant(self, tensor: torch.Tensor, name: str) -> Value | Pair:
        if tensor.is_complex():
            parts = torch.view_as_real(tensor.detach().resolve_conj())
            return parted(self.builder, self.builder.constant(array_of(parts, name), _word(name)))
        return self.builder.constant(array_of(tensor, name), _word(name))

    def _begins(self, name: str, tensor: torch.Tensor) -> str:
        """The constant that a state begins with."""
        while name in self.importer.constants:
            name += "_"
        self.importer.constants[name] = array_of(tensor.detach().clone(), name)
        return name

    def _tensor(self, spec: Any) -> torch.Tensor:
        state, constants = self.program.state_dict, self.program.constants
        found: torch.Tensor | None = state.get(spec.target)
        return constants[spec.target] if found is None else found

    # ------------------------------------------------------------------ outputs

    def _outputs(self, made: Sequence[Any], structure: Structure) -> list[Value]:
        """Results of ours: what the model gives and which inputs it changes, then its states."""
        values: list[Value] = []
        user_inputs = {name: at for at, name in enumerate(structure.inputs)}
        states: dict[str, Any] = {}
        for result, spec in zip(made, self.signature.output_specs, strict=True):
            if spec.kind is OutputKind.TOKEN:
                continue
            if spec.kind in _MUTATED and spec.target in structure.states:
                states[spec.target] = result
                continue
            if spec.kind in _MUTATED:
                structure.changes.append((user_inputs[spec.target], len(values)))
            elif isinstance(result, Pair):
                structure.results.append(("complex", len(values)))
            elif not isinstance(result, Value):
                if isinstance(spec.arg, ConstantArgument) or result is None:
                    structure.results.append(("constant", getattr(spec.arg, "value", None)))
                    continue
                structure.results.append(("number", len(values)))
            elif isinstance(spec.arg, _NUMBERS):
                structure.results.append(("number", len(values)))
            else:
                structure.results.append(("tensor", len(values)))
            values.append(self.importer.as_value(result, self.builder))
            structure.names.append(_word(spec.arg.name))
        return [*values, *(self.importer.as_value(states[name], self.builder)
                           for name in structure.states)]  # fmt: skip

    # ------------------------------------------------------------------ sizes

    def _ranges(self) -> dict[str, Range]:
        """What the export found out about sizes; those of 0 and 1 may pass, as in torch."""
        found: dict[str, Range] = {}
        for symbol, span in self.program.range_constraints.items():
            size = self.importer.sizes.symbols.get(symbol)
            name = getattr(size, "name", None)
            if name is None or name not in self.importer.own:
                continue
            low = int(span.lower) if span.lower > 2 else 0
            high = min(int(span.upper), ENDLESS) if _is_number(span.upper) else ENDLESS
            if low or high < ENDLESS:
                found[name] = (low, high)
        return found

    def _given_ranges(self) -> dict[str, Range]:
        return {name: said for name, said in self.given.items() if name in self.importer.own}


def _is_number(bound: Any) -> bool:
    return bool(getattr(bound, "is_finite", False)) and "oo" not in str(bound)


def _word(name: str) -> str:
    return "".join(c if c.isalnum() or c == "_" else "_" for c in name)
