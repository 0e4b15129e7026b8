"""fuse: nodes become kernels, so that what passes between them stays out of memory.

Nodes join the groups of their producers, in order, where one nest of loops, or a few that share
their rows, computes all:

- a product (matmul, convolution, attention) with the element-wise work, reshapes and transposes
  behind it, and the least and greatest of its results, which are found as they come; never two
  products;
- reductions along the same axes of the same rows, with the element-wise work before, between and
  behind them;
- chains of element-wise and injective work.

What only rearranges the operand of a product is read in place: a copy of it goes into each product
that uses it. Cheap work used in several kernels is repeated in each where moving its result costs
more. A value that others need too is one of several outputs. What costs more is told by the table
of costs (`graph/costs.py`), of the kernels that there would be either way; what that has no price
for is weighed by bytes and operations (`graph/rates.py`). No group may wait for itself through
others (`graph/groups.py`).

Options: `limit`, the most nodes of a kernel; `numbers`, how many numbers may be in one place of an
operator before they are parameters of kernels.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

from tilewright import sym
from tilewright.base.multiprocessor import PROLOGUE_ELEMENTS, WARP
from tilewright.base.passes import PassContext
from tilewright.base.target import CPU, CUDA, Target
from tilewright.graph.costs import Candidate, candidate_of, costs_of, note_choice
from tilewright.graph.fused_nodes import (
    MAX_SCALAR_VARIANTS,
    kernels,
    make_fused_node,
    small_constants,
)
from tilewright.graph.groups import Groups
from tilewright.graph.ir import Graph, Module, Node, Value
from tilewright.graph.op import BROADCAST, COMPLEX, ELEMENTWISE, INJECTIVE, REDUCTION
from tilewright.graph.ops import OPS
from tilewright.graph.ops.layout import CHANNELS_LAST
from tilewright.graph.rates import (
    Rates,
    elements,
    extent,
    operations_per_element,
    rates_of,
    size_bytes,
)
from tilewright.graph.types import sizes_of
from tilewright.graph.views import (
    ALIAS,
    can_copy_windows,
    has_window_copies,
    is_view,
    pads_windows,
    reads_views,
    scatters_rows,
)
from tilewright.graph.visit import attribute_sizes, map_bodies
from tilewright.sym import ONE, Expr, Var

Shape = tuple[Expr, ...]


class Kind(IntEnum):
    """What a group is: maps alone, reductions, a contraction."""

    MAP = 0
    ROW_REDUCTION = 1
    CONTRACTION = 2


MAP, ROW_REDUCTION, CONTRACTION = Kind
KINDS = {
    ELEMENTWISE: MAP,
    BROADCAST: MAP,
    INJECTIVE: MAP,
    REDUCTION: ROW_REDUCTION,
    COMPLEX: CONTRACTION,
}
RANGES = ("reduce_max", "reduce_min")  # in whatever order they are found
MOVES = ("transpose", "slice", "pad", ALIAS)  # each element is read about once
REPEATED_OPERATIONS = 8  # per element, of what may be computed in several kernels
MAX_READ_SITES = 16  # at which one kernel reads a value: concats of concats double them each time


def fuse(module: Module, ctx: PassContext) -> Module:
    """Before: %a = exp(%x); %b = neg(%a).   After: %b = fused(%x) do { graph(%x) { ... } }."""
    limit = ctx.option("fuse.limit", 64)
    numbers = ctx.option("fuse.numbers", MAX_SCALAR_VARIANTS)

    windows = has_window_copies(ctx.target)
    prologues = isinstance(ctx.target, Target) and ctx.target.kind == CUDA

    def change(graph: Graph) -> Graph:
        constants = small_constants(graph.nodes, module.constants, numbers)
        return _fused(graph, constants, limit, ctx, windows, prologues)

    return map_bodies(module, change)


def _fused(
    graph: Graph,
    constants: Mapping[Value, Node],
    limit: int,
    ctx: PassContext,
    windows: bool,
    prologues: bool,
) -> Graph:
    fusion = _Fusion(graph, limit, ctx, windows)
    if prologues:
        fusion.repeat_prologues()
    fusion.repeat_leaves()
    fusion.grow()
    fusion.repeat_cheap()
    fusion.repeat_widening()
    nodes = fusion.emit(constants)
    same = len(nodes) == len(graph.nodes) and all(
        a is b for a, b in zip(nodes, graph.nodes, strict=True)
    )
    return graph if same else replace(graph, nodes=tuple(nodes))


@dataclass(frozen=True)
class Rows:
    """What reductions of one group share: the shape they read and the axes they reduce."""

    shape: Shape
    axes: frozenset[int]

    def fits(self, shape: Shape) -> bool:
        """Whether a shape is that of the rows, or of one element per row."""
        kept = tuple(ONE if axis in self.axes else dim for axis, dim in enumerate(self.shape))
        rest = tuple(dim for axis, dim in enumerate(self.shape) if axis not in self.axes)
        return any(_same(shape, other) for other in (self.shape, kept, rest))


class _Fusion:
    """The groups of one graph."""

    def __init__(self, graph: Graph, limit: int, ctx: PassContext, windows: bool = False) -> None:
        self.graph, self.limit, self.ctx, self.windows = graph, limit, ctx, windows
        self.rates: Rates = rates_of(ctx.target)
        self.is_cpu = isinstance(ctx.target, Target) and ctx.target.kind == CPU
        self.is_gpu = isinstance(ctx.target, Target) and ctx.target.kind == CUDA
        self.nodes = graph.nodes
        self.at = {value: at for at, node in enumerate(self.nodes) for value in node.outputs}
        self.users: dict[Value, list[int]] = {}
        for at, node in enumerate(self.nodes):
            for value in dict.fromkeys(v for v in node.inputs if v is not None):
                self.users.setdefault(value, []).append(at)
        self.results = set(graph.results)
        self.is_kernel = kernels(graph)
        self.groups = Groups(self._depends())
        pairs = list(zip(self.nodes, self.is_kernel, strict=True))
        self.kind = [KINDS[OPS[node.op].pattern] if fits else MAP for node, fits in pairs]
        self.rows = [_rows(node) if fits else None for node, fits in pairs]
        self.places = [_parts(node) for node in self.nodes]  # of a group: as often is code repeated
        self.repeated = self._views()  # nodes of which each kernel that needs them has a copy

    def _depends(self) -> list[list[int]]:
        """For each node the nodes it waits for: of its inputs, and of the sizes it mentions."""
        defined: dict[Var, int] = {}
        for param in self.graph.params:
            defined.update(dict.fromkeys(sizes_of(param.type), -1))
        depends = []
        for at, node in enumerate(self.nodes):
            found = [self.at[v] for v in node.inputs if v is not None and v in self.at]
            mentioned = attribute_sizes(node)
            for value in node.outputs:
                mentioned.update(sizes_of(value.type))
            found += [defined.setdefault(size, at) for size in mentioned]
            found = [source for source in found if source not in (at, -1)]
            depends.append(list(dict.fromkeys(found)))
        return depends

    # ---------------------------------------------------------------- views

    def _views(self) -> set[int]:
        """Nodes that only rearrange the operands of products, which read them in place."""
        found: set[int] = set()
        for at in reversed(range(len(self.nodes))):
            node = self.nodes[at]
            if not self.is_kernel[at]:
                continue
            if self._is_padding(node):
                found.add(at)
            if not self._is_view(node):
                continue
            users = self.users.get(node.output, [])
            if not users or node.output in self.results:
                continue
            reading = [
                user
                for user in users
                if self.is_kernel[user]
                and reads_views(self.nodes[user])
                and not scatters_rows(node, self.nodes[user])
            ]
            if all(user in found or user in reading for user in users):
                found.add(at)
        return found

    def _is_view(self, node: Node) -> bool:
        """Whether a node is a view that costs; a reshape of what is in memory does not."""
        if self.windows and self._is_of_windows(node):
            return True
        if node.op == ALIAS:
            source = None if node.inputs[0] is None else self.at.get(node.inputs[0])
            if source is None or not is_view(self.nodes[source]):
                return False
        return is_view(node)

    def _is_padding(self, node: Node) -> bool:
        """Whether a node pads the image of one convolution of integers, of which a product made all
        else, and that takes longer than asking of each line of a window whether it is there."""
        if node.op != "pad" or node.get("mode", "constant") != "constant" or not self.is_cpu:
            return False
        x, users = node.inputs[0], [self.nodes[user] for user in self.users.get(node.output, ())]
        if len(users) != 1 or users[0].op != "conv_integer" or node.output in self.results:
            return False
        (conv,) = users
        if conv.get("layout") != CHANNELS_LAST or any(conv["pads"]) or conv.inputs[1] is None:
            return False
        if x is None or conv.inputs[0] is not node.output or not self._is_of_product(x):
            return False
        lines = extent((conv.inputs[1].tensor.shape or ())[2])
        moved_ns = self.rates.launch_ns + 2 * self.rates.byte_ns * size_bytes(node.output)
        return moved_ns > self.rates.operation_ns * lines * elements(conv.output)

    def _is_of_product(self, value: Value) -> bool:
        """Whether a product makes a value, with reshapes and element-wise work behind it that waits
        for nothing else."""
        at = self.at.get(value)
        while at is not None:
            node = self.nodes[at]
            op = OPS[node.op]
            if op.pattern == COMPLEX:
                return True
            if node.op != ALIAS and not op.is_map:
                return False
            first, *others = node.inputs
            made = [self.nodes[self.at[v]].op for v in others if v is not None and v in self.at]
            if any(each != "constant" for each in made):
                return False
            at = None if first is None else self.at.get(first)
        return False

    def _is_of_windows(self, node: Node) -> bool:
        """Whether a node is a step from an image to the rows that its windows see, which copies
        into tiles of a product take."""
        if len(node.outputs) != 1:
            return False
        users = [self.nodes[user] for user in self.users.get(node.output, ())]
        if node.op == "pad":
            return pads_windows(node) and all(can_copy_windows(user) for user in users)
        if node.op == ALIAS:
            source = None if node.inputs[0] is None else self.at.get(node.inputs[0])
            return source is not None and can_copy_windows(self.nodes[source])
        return can_copy_windows(node) and all(user.op == ALIAS for user in users)

    # ---------------------------------------------------------------- growing

    def grow(self) -> None:
        for at, node in enumerate(self.nodes):
            if not self._is_grouped(at) or self.kind[at] == CONTRACTION:
                continue
            for value in self._by_preference(node):
                self._try_join(at, value)

    def _by_preference(self, node: Node) -> list[Value]:
        """The inputs that kernels define: of products first, of rows then, the latest first.

        Not one in another shape than it was made in, if there is a choice: work that follows a
        product goes through its tiles.
        """
        inputs = [v for v in dict.fromkeys(node.inputs) if v is not None and v in self.at]
        grouped = [v for v in inputs if self._is_grouped(self.at[v])]

        def rank(value: Value) -> tuple[int, bool, int]:
            return -self.kind[self._group(value)], self._is_reshaped(value), -self.at[value]

        return sorted(grouped, key=rank)

    def _is_reshaped(self, value: Value) -> bool:
        """Whether what a group makes first gets another shape on its way to a value."""
        group = self._group(value)
        inside: list[Value] = [value]
        while inside:
            node = self.nodes[self.at[inside[0]]]
            if node.op == ALIAS:
                return True
            given = [v for v in node.inputs if v is not None and v in self.at]
            inside = [v for v in given if self._group(v) == group]
        return False

    def _is_grouped(self, at: int) -> bool:
        return self.is_kernel[at] and at not in self.repeated

    def _group(self, value: Value) -> int:
        return self.groups.group_of[self.at[value]]

    def _try_join(self, at: int, value: Value) -> None:
        groups = self.groups
        one, other = self._group(value), groups.group_of[at]
        if one == other:
            return
        if len(groups.members[one]) + len(groups.members[other]) > self.limit:
            return
        reads = self._reads(at, value)
        places = self.places[one] * reads
        # Before prices: a kernel of so many is slow to estimate.
        if reads > 1 and places > MAX_READ_SITES:
            return
        if not self._is_legal(one, other) or not self._is_worth(at, value):
            return
        if groups.merge(one, other):
            self.places[one] = max(places, self.places[other])
            self.kind[one] = max(self.kind[one], self.kind[other])
            self.rows[one] = self.rows[one] or self.rows[other]

    def _reads(self, at: int, value: Value) -> int:
        """At how many places a node reads a value for one element; the same place counts once."""
        node = self.nodes[at]
        return node.inputs.count(value) if OPS[node.op].pattern == INJECTIVE else 1

    def _is_legal(self, one: int, other: int) -> bool:
        """Whether one kernel can hold what two groups anchor."""
        kinds = {self.kind[one], self.kind[other]}
        if MAP in kinds:
            return True
        if kinds == {CONTRACTION, ROW_REDUCTION}:
            return self._is_range(other)
        if kinds != {ROW_REDUCTION} or self.rows[one] is None or self.rows[other] is None:
            return False
        a, b = self.rows[one], self.rows[other]
        return a is not None and b is not None and a.axes == b.axes and _same(a.shape, b.shape)

    def _is_range(self, group: int) -> bool:
        """Whether a group is the least or greatest of all elements, on a CPU: blocks of a GPU that
        make parts of them do not wait for each other."""
        nodes = [self.nodes[at] for at in self.groups.members[group]]
        rows = self.rows[group]
        return (
            self.is_cpu
            and len(nodes) == 1
            and nodes[0].op in RANGES
            and rows is not None
            and len(rows.axes) == len(rows.shape)
        )

    def _waits_for_range(self, at: int, group: int) -> bool:
        """Whether a node needs, for many elements, one value of all results of a product."""
        node = self.nodes[at]
        if self.kind[group] != CONTRACTION or self.rows[group] is None:
            return False
        made = [v for v in node.inputs if v is not None and v in self.at]
        scalars = [v for v in made if self._group(v) == group and elements(v) == 1]
        return bool(scalars) and elements(node.outputs[0]) > 1

    def _is_worth(self, at: int, value: Value) -> bool:
        """Whether a node should be computed where one of its inputs is."""
        node, group = self.nodes[at], self._group(value)
        if self._waits_for_range(at, group):
            return False
        pattern, kind = OPS[node.op].pattern, self.kind[group]
        shape, given = node.outputs[0].tensor.shape or (), value.tensor.shape or ()
        if pattern == REDUCTION:
            rows = self.rows[at]
            return rows is not None and value is node.inputs[0] and _same(given, rows.shape)
        if pattern == INJECTIVE:
            return self._is_worth_moving(node, value, kind)
        if kind == CONTRACTION:
            if self.is_gpu and self._meets_again(at, value):
                return False
            return _same(shape, given) and value is self.nodes[self.at[value]].outputs[0]
        if kind == ROW_REDUCTION:
            found = self.rows[group]
            return _same(shape, given) if found is None else found.fits(shape)
        mine = self.rows[self.groups.group_of[at]]
        if mine is not None and not mine.fits(given):
            return self._is_cheap_spread(at, value)
        return _same(shape, given) or self._is_cheap_spread(at, value)

    def _is_worth_moving(self, node: Node, value: Value, kind: int) -> bool:
        """Whether to compute an injective node together with what it reads."""
        if node.op == ALIAS:
            return True
        if kind == ROW_REDUCTION or not self._is_only_user(node, value):
            return False
        if node.op == "transpose":
            can_be_read = self.is_gpu and kind == CONTRACTION and self._is_reshaped(value)
            return not can_be_read or self._is_reduced_across(self.at[node.output])
        if kind == CONTRACTION:
            return False
        if node.op.startswith("gather") and value is node.inputs[0]:
            return False  # who knows how often an element is read
        if node.op == "patches" and self._narrows(value):
            return False  # windows overlap: each would read the wide elements again
        return self._is_cheap_spread(self.at[node.output], value)

    def _meets_again(self, at: int, value: Value) -> bool:
        """Whether what a node makes of a product's result comes together again with what others
        make of that, which the product's kernel cannot: both would be in memory, where one is
        enough for a kernel that makes them all."""
        others = [user for user in self.users[value] if user != at]
        moved = [user for user in others if not self._can_follow(user)]
        return bool(moved) and bool(self._maps_behind([at]) & self._maps_behind(moved))

    def _is_reduced_across(self, at: int) -> bool:
        """Whether what is made of a transposed value is reduced along other axes than the last, or
        along few elements: those that such rows of threads read lie apart in memory."""
        users = [
            user
            for map_at in self._maps_behind([at])
            for value in self.nodes[map_at].outputs
            for user in self.users.get(value, ())
        ]
        for user in users:
            rows = self.rows[user]
            if OPS[self.nodes[user].op].pattern != REDUCTION or rows is None:
                continue
            along = len(rows.shape) - 1
            if along not in rows.axes or extent(rows.shape[along]) < WARP:
                return True
        return False

    def _can_follow(self, at: int) -> bool:
        """Whether a product's kernel may do what a node does."""
        node = self.nodes[at]
        return node.op == ALIAS or OPS[node.op].pattern in (ELEMENTWISE, BROADCAST)

    def _maps_behind(self, starts: list[int]) -> set[int]:
        """What one kernel of maps may make, from some nodes on."""
        found, stack = set[int](), list(starts)
        while stack and len(found) < self.limit:
            at = stack.pop()
            if at not in found and self._is_grouped(at) and self.kind[at] == MAP:
                found.add(at)
                stack += [user for v in self.nodes[at].outputs for user in self.users.get(v, ())]
        return found

    def _narrows(self, value: Value) -> bool:
        """Whether the group of a value makes it of elements of more bytes, on a CPU."""
        if not self.is_cpu:
            return False
        nodes = [self.nodes[at] for at in self.groups.members[self._group(value)]]
        read = [v for node in nodes for v in node.inputs if v is not None and elements(v) > 1]
        most = max((v.tensor.dtype.size_bytes for v in read), default=0)
        return most > value.tensor.dtype.size_bytes

    def _is_only_user(self, node: Node, value: Value) -> bool:
        return value not in self.results and len(self.users[value]) == 1

    def _is_cheap_spread(self, at: int, value: Value) -> bool:
        """Whether computing a value anew wherever it is read costs less than storing it once."""
        node, group = self.nodes[at], self._group(value)
        if not self._is_only_user(node, value):
            return False
        members, users = self.groups.members[group], self.groups.members[self.groups.group_of[at]]
        if users is not members:
            known = self._is_priced_less(
                node,
                joined=[self._kernel("together", [*members, *users])],
                apart=[self._kernel("first", members), self._kernel("second", users)],
                kinds={self.kind[group], self.kind[self.groups.group_of[at]]},
            )
            if known is not None:
                return known
        work = sum(operations_per_element(self.nodes[n]) for n in members)
        again = max(0, elements(node.outputs[0]) - elements(value))
        rates = self.rates
        stored_ns = rates.launch_ns + 2 * rates.byte_ns * size_bytes(value)
        return stored_ns > rates.operation_ns * work * again

    # ---------------------------------------------------------------- prices

    def _kernel(self, name: str, members: list[int], copies: Collection[int] = ()) -> Candidate:
        """What the members of a group would be as a kernel, with copies of others in it."""
        inside = set(members)
        taken = self._copies([*members, *copies])
        order = sorted({*members, *copies, *taken})
        sources = {self.at[v] for at in order for v in self.nodes[at].inputs if v in self.at}
        constants = [at for at in sorted(sources) if self.nodes[at].op == "constant"]
        outputs = tuple(
            value
            for at in sorted(inside)
            for value in self.nodes[at].outputs
            if self._is_used(value, inside)
        )
        nodes = [self.nodes[at] for at in (*constants, *order)]
        return replace(candidate_of(name, nodes, outputs=outputs), is_fused=True)

    def _is_priced_less(
        self,
        node: Node,
        *,
        joined: list[Candidate],
        apart: list[Candidate],
        kinds: set[Kind],
    ) -> bool | None:
        """Whether some kernels take less than others that compute the same; None where the table
        of costs does not know. Estimates of products say nothing of the work around them."""
        target, costs = self.ctx.target, costs_of(self.ctx)
        if costs is None or not isinstance(target, Target) or target.kind != CPU:
            return None
        candidates = [*joined, *apart]
        ask = costs.measured if CONTRACTION in kinds else costs.prices
        prices = ask(candidates)
        if prices is None:
            return None
        ns = [price.ns + self.rates.launch_ns for price in prices]
        is_less = sum(ns[: len(joined)]) <= sum(ns[len(joined) :])
        chosen = joined if is_less else apart
        names = ", ".join(each.name for each in chosen)
        note_choice(self.ctx, "fuse", node, node.op, names, prices)
        return is_less

    # ---------------------------------------------------------------- repeating

    def repeat_prologues(self) -> None:
        """What makes the only row of a matmul goes into its kernel, whose blocks all compute it:
        each kernel less on the way is worth more than that. What can end another kernel does, and
        functions that take long have one of their own."""
        found, ends = set[int](), self._ends()
        for at in reversed(range(len(self.nodes))):
            node = self.nodes[at]
            if not self._is_grouped(at) or self.kind[at] != MAP or at in ends:
                continue
            if self._has_kernel(at):
                continue
            made, *others = node.outputs
            if others or made in self.results or elements(made) > PROLOGUE_ELEMENTS:
                continue
            users = self.users.get(made, [])
            leading = [user for user in users if user in found or self._is_only_row(user, made)]
            rest = [user for user in users if user not in leading]
            if leading and all(self.kind[user] == MAP for user in rest):
                found.add(at)
        self.repeated |= found

    def _ends(self) -> set[int]:
        """Nodes that are done where a product, a reduction or a function that takes long is, which
        stands before them."""
        found: set[int] = set()
        for at, node in enumerate(self.nodes):
            if not self._is_grouped(at) or self.kind[at] != MAP:
                continue
            sources = [(v, self.at[v]) for v in node.inputs if v is not None and v in self.at]
            if any(
                (source in found or self._has_kernel(source)) and self._is_worth(at, value)
                for value, source in sources
            ):
                found.add(at)
        return found

    def _has_kernel(self, at: int) -> bool:
        """Whether a node is never repeated in others' kernels."""
        takes_long = operations_per_element(self.nodes[at]) > REPEATED_OPERATIONS
        return self.kind[at] != MAP or takes_long

    def _is_only_row(self, at: int, value: Value) -> bool:
        """Whether a value is the row that a node multiplies with a matrix."""
        node = self.nodes[at]
        if node.op != "matmul" or not self.is_kernel[at] or node.inputs[0] is not value:
            return False
        weights, shape = node.inputs[1], value.tensor.shape or ()
        if weights is None or len(weights.tensor.shape or ()) != 2 or value is weights:
            return False
        return len(shape) > 0 and all(dim is ONE for dim in shape[:-1])

    def repeat_leaves(self) -> None:
        """Cheap work on what is in memory anyway goes to those who use it."""
        for at, node in enumerate(self.nodes):
            if not self._is_grouped(at) or self.kind[at] != MAP or node.op == ALIAS:
                continue
            is_shared = len(self.users.get(node.outputs[0], ())) > 1 and self._is_leaf(node)
            if (is_shared or self._widens_stored(node)) and self._is_cheaper_repeated([at]):
                self.repeated.add(at)

    def _widens_stored(self, node: Node) -> bool:
        """Whether a node makes more bytes of a tensor that must be in memory for others."""
        inputs = [v for v in node.inputs if v is not None and elements(v) > 1]
        if len(inputs) != 1 or size_bytes(inputs[0]) >= size_bytes(node.outputs[0]):
            return False
        users = [self.nodes[user] for user in self.users[inputs[0]] if self.is_kernel[user]]
        return any(reads_views(user) for user in users)

    def _is_leaf(self, node: Node) -> bool:
        sources = [self.at[v] for v in node.inputs if v is not None and v in self.at]
        return not any(self._is_grouped(source) for source in sources)

    def repeat_cheap(self) -> None:
        """Groups of cheap work go into all kernels that use them, where that moves less."""
        for group in reversed([g for g in self.groups.order if g is not None]):
            members = self.groups.members[group]
            if not self._is_grouped(members[0]) or self.kind[group] != MAP:
                continue
            if self._is_cheaper_repeated(members):
                self.repeated.update(members)

    def repeat_widening(self) -> None:
        """What makes more bytes last in a kernel is done where the result is read."""
        for at, node in enumerate(self.nodes):
            if not self._is_grouped(at) or KINDS[OPS[node.op].pattern] != MAP or node.op == ALIAS:
                continue
            group = self.groups.group_of[at]
            inputs = [v for v in node.inputs if v is not None and elements(v) > 1]
            if len(inputs) != 1 or size_bytes(inputs[0]) >= size_bytes(node.outputs[0]):
                continue
            if inputs[0] not in self.at or self._group(inputs[0]) != group:
                continue
            users = self.users.get(node.outputs[0], ())
            if any(self.groups.group_of[user] == group for user in users):
                continue
            if self._is_cheaper_repeated([at]):
                self.repeated.add(at)

    def _is_cheaper_repeated(self, members: list[int]) -> bool:
        made = [value for at in members for value in self.nodes[at].outputs]
        if any(value in self.results for value in made):
            return False
        inside = set(members)
        readers: dict[int, float] = {}  # how many elements each kernel reads
        shared: dict[Value, None] = {}
        for value in made:
            for user, read in self._readers(value):
                if user in inside:
                    continue
                if not self._can_repeat_in(user, read):
                    return False
                shared[value] = None
                kernel = self.groups.group_of[user]
                count = max(elements(self.nodes[user].outputs[0]), elements(value))
                readers[kernel] = max(readers.get(kernel, 0), count)
        if not readers or any(self.nodes[at].op == "concat" for at in members):
            return False
        if any(len(self.groups.members[k]) + len(members) > self.limit for k in readers):
            return False
        work = sum(operations_per_element(self.nodes[at]) for at in members)
        if work > REPEATED_OPERATIONS:
            return False
        groups = {kernel: self.groups.members[kernel] for kernel in readers}
        known = self._is_priced_less(
            self.nodes[members[0]],
            joined=[
                self._kernel(f"with a copy {at}", group, members)
                for at, group in enumerate(groups.values(), 1)
            ],
            apart=[
                self._kernel("once", members),
                *(self._kernel(f"user {at}", group) for at, group in enumerate(groups.values(), 1)),
            ],
            kinds={self.kind[kernel] for kernel in groups},
        )
        if known is not None:
            return known
        given = dict.fromkeys(v for at in members for v in self.nodes[at].inputs if v)
        outside = sum(size_bytes(v) for v in given if v not in made)
        stored = sum(size_bytes(v) for v in shared)
        first = max(elements(self.nodes[at].outputs[0]) for at in members)
        rates = self.rates
        saved_ns = rates.launch_ns + rates.byte_ns * (stored * (1 + len(readers)) + outside)
        again = rates.operation_ns * work * (sum(readers.values()) - first)
        return saved_ns > rates.byte_ns * outside * len(readers) + again

    def _readers(self, value: Value) -> list[tuple[int, Value]]:
        """The nodes that read a value, and as what: through those that only move it, of which each
        kernel has a copy."""
        found, stack = list[tuple[int, Value]](), [value]
        while stack:
            read = stack.pop()
            for user in self.users.get(read, ()):
                if user in self.repeated and self.nodes[user].op in MOVES:
                    stack += self.nodes[user].outputs
                else:
                    found.append((user, read))
        return found

    def _can_repeat_in(self, user: int, value: Value) -> bool:
        """Whether a node reads each element about once, from inside a kernel."""
        node = self.nodes[user]
        if not self._is_grouped(user) or user in self.repeated or node.op == "concat":
            return False
        pattern = OPS[node.op].pattern
        if pattern == REDUCTION:
            return self.rows[user] is not None and value is node.inputs[0]
        if pattern == INJECTIVE:
            return node.op in MOVES
        return pattern in (ELEMENTWISE, BROADCAST)

    # ---------------------------------------------------------------- the result

    def emit(self, constants: Mapping[Value, Node]) -> list[Node]:
        """The nodes of the graph with groups enclosed; some constants go inside."""
        self._keep_aliases()
        out: list[Node] = []
        for group in self.groups.in_order():
            members = [at for at in group if at not in self.repeated]
            if not members:
                continue
            if not self.is_kernel[members[0]]:
                out.extend(self.nodes[at] for at in members)
                continue
            copies = self._copies(members)
            numbers = sorted({*members, *copies})
            inside = set(members)
            out.extend(
                make_fused_node(
                    [self.nodes[at] for at in numbers],
                    lambda value, inside=inside: self._is_used(value, inside),  # type: ignore[misc]
                    constants,
                    private=[self.nodes[at] for at in copies],
                    separate=self._separate(members, copies),
                )
            )
        return out

    def _keep_aliases(self) -> None:
        """A reshape of what is in memory is not copied into kernels: it is an alias of its own."""
        for at in sorted(self.repeated):
            node = self.nodes[at]
            if node.op != ALIAS or node.inputs[0] is None:
                continue
            if self.at.get(node.inputs[0]) not in self.repeated:
                self.repeated.discard(at)

    def _copies(self, members: list[int]) -> list[int]:
        """The repeated nodes that a group needs copies of."""
        found: dict[int, None] = {}
        stack = list(members)
        while stack:
            for value in self.nodes[stack.pop()].inputs:
                source = None if value is None else self.at.get(value)
                if source in self.repeated and source not in found and source is not None:
                    found[source] = None
                    stack.append(source)
        return list(found)

    def _separate(self, members: list[int], copies: list[int]) -> list[Node]:
        """Views that a product reads: each operand is a parameter of its own."""
        if not any(self.kind[at] == CONTRACTION for at in members):
            return []
        return [self.nodes[at] for at in copies if is_view(self.nodes[at])]

    def _is_used(self, value: Value, inside: set[int]) -> bool:
        """Whether anything but a group, and nodes that are repeated in other kernels, uses it."""
        users = self.users.get(value, ())
        return value in self.results or any(user not in inside for user in users)


def _parts(node: Node) -> int:
    """How many cases a node has for where an element comes from."""
    return len(node.inputs) if node.op in ("concat", "interleave") else 1


def _rows(node: Node) -> Rows | None:
    """What a reduction reduces, if it is by rows; pooling and its kind are not."""
    if OPS[node.op].pattern != REDUCTION or node.inputs[0] is None:
        return None
    shape = node.inputs[0].tensor.shape or ()
    names = {attr.name for attr in OPS[node.op].attributes}
    if "kernel" in names or "size" in names or "groups" in names:
        return None
    axes = node.get("axes", node.get("axis"))
    if axes is None:
        return Rows(shape, frozenset(range(len(shape))))
    if isinstance(axes, int):  # layer_norm reduces from an axis on, arg_max along it
        front = axes % max(1, len(shape))
        keeps = len(node.outputs[0].tensor.shape or ()) == len(shape)
        by_norm = keeps and _same(node.outputs[0].tensor.shape or (), shape)
        return Rows(shape, frozenset(range(front, len(shape)) if by_norm else (front,)))
    return Rows(shape, frozenset(int(axis) % len(shape) for axis in axes))


def _same(a: Shape, b: Shape) -> bool:
    return len(a) == len(b) and all(x is y or sym.equal(x, y) for x, y in zip(a, b, strict=True))
