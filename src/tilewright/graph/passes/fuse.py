"""fuse: group nodes into kernels, so that intermediate results stay in registers or caches.

A node joins the group of a producer if one loop nest, or several that share their rows, can compute
both. A group is one of:

- a contraction (matmul, convolution, attention) with an epilogue of elementwise operators, reshapes
  and transposes, and minimum and maximum reductions over all of its results; never two
  contractions;
- reductions along the same axes of the same rows, with elementwise operators before, between and
  after them;
- elementwise and injective operators.

Data movement before a contraction is a view that the contraction reads through: each contraction
gets a copy of it. Cheap producers with several consumers are recomputed in each kernel if storing
their results costs more. A group may have several outputs. Costs come from `graph/costs.py` for the
kernels of either alternative; where it has none, bytes and operations decide (`graph/rates.py`). No
group may depend on itself through others (`graph/groups.py`).

Options: `limit`, the most nodes of a kernel; `numbers`, how many constant elements an operand may
have without becoming a parameter of the kernel.
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
from tilewright.graph.ops.layout import CHANNELS_LAST, channels_first
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
    keeps_window_pixels,
    pads_windows,
    reads_views,
    scatters_rows,
)
from tilewright.graph.visit import attribute_sizes, map_bodies
from tilewright.sym import ONE, Expr, Var

Shape = tuple[Expr, ...]


class Kind(IntEnum):
    """Kinds of groups by what they contain: maps only, row reductions, a contraction."""

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
RANGES = ("reduce_max", "reduce_min")  # may be computed in any order
MOVES = ("transpose", "slice", "pad", ALIAS)  # read each element about once
REPEATED_OPERATIONS = 8  # per element, of a producer that may be recomputed in several kernels
MAX_READ_SITES = 16  # of a value in one kernel: concats of concats double them each time


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
    """The rows that all reductions of a group share: the shape read and the axes reduced."""

    shape: Shape
    axes: frozenset[int]

    def fits(self, shape: Shape) -> bool:
        """Whether a shape is that of the rows, or of one element per row."""
        kept = tuple(ONE if axis in self.axes else dim for axis, dim in enumerate(self.shape))
        rest = tuple(dim for axis, dim in enumerate(self.shape) if axis not in self.axes)
        return any(_same(shape, other) for other in (self.shape, kept, rest))


class _Fusion:
    """The fusion groups of one graph."""

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
        # of each group: how many times code is repeated
        self.places = [_parts(node) for node in self.nodes]
        self.repeated = self._views()  # nodes that are copied into each kernel that reads them

    def _depends(self) -> list[list[int]]:
        """For each node the nodes it depends on, through inputs and through dynamic sizes."""
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
        """Nodes that only rearrange operands of contractions, which read through them."""
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
        """Whether a node is a view that would cost a copy; a reshape in memory is free."""
        if self.windows and self._is_of_windows(node):
            return True
        if node.op == ALIAS:
            source = None if node.inputs[0] is None else self.at.get(node.inputs[0])
            if source is None or not is_view(self.nodes[source]):
                return False
        return is_view(node)

    def _is_padding(self, node: Node) -> bool:
        """Whether a node pads the image of a single integer convolution, and the image is a
        contraction's result: then a padded copy is slower than bounds checks for each line of a
        window."""
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
        """Whether a value is a contraction's result after reshapes and elementwise operators with
        no other dependence."""
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
        """Whether a node is a step of im2col, which the copies into tiles of a GEMM compute on the
        fly."""
        if len(node.outputs) != 1:
            return False
        users = [self.nodes[user] for user in self.users.get(node.output, ())]
        if node.op == "pad":
            return pads_windows(node) and all(can_copy_windows(user) for user in users)
        if node.op == ALIAS:
            return self._is_made_of_windows(node)
        if node.op == "transpose":
            return keeps_window_pixels(node) and self._is_made_of_windows(node)
        return can_copy_windows(node) and all(user.op == ALIAS for user in users)

    def _is_made_of_windows(self, node: Node) -> bool:
        """Whether a node lays out windows in another order, those of each group of channels say."""
        while node.op in (ALIAS, "transpose"):
            source = None if node.inputs[0] is None else self.at.get(node.inputs[0])
            if source is None:
                return False
            node = self.nodes[source]
        return can_copy_windows(node)

    # ---------------------------------------------------------------- growing groups

    def grow(self) -> None:
        for at, node in enumerate(self.nodes):
            if not self._is_grouped(at) or self.kind[at] == CONTRACTION:
                continue
            for value in self._by_preference(node):
                self._try_join(at, value)

    def _by_preference(self, node: Node) -> list[Value]:
        """The inputs produced by kernels, in order of preference: contractions, then reductions,
        latest first.

        Values that were not reshaped since are preferred: an epilogue works on tiles of the
        original shape.
        """
        inputs = [v for v in dict.fromkeys(node.inputs) if v is not None and v in self.at]
        grouped = [v for v in inputs if self._is_grouped(self.at[v])]

        def rank(value: Value) -> tuple[int, bool, int]:
            return -self.kind[self._group(value)], self._is_reshaped(value), -self.at[value]

        return sorted(grouped, key=rank)

    def _is_reshaped(self, value: Value) -> bool:
        """Whether a value has another shape than the first result of its group."""
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
        # Checked before prices: estimating a kernel of many nodes is slow.
        if reads > 1 and places > MAX_READ_SITES:
            return
        if self._has_many_parts(at) and not self._is_moved_alone(one):
            return
        if not self._is_legal(one, other) or not self._is_worth(at, value):
            return
        if groups.merge(one, other):
            self.places[one] = max(places, self.places[other])
            self.kind[one] = max(self.kind[one], self.kind[other])
            self.rows[one] = self.rows[one] or self.rows[other]

    def _reads(self, at: int, value: Value) -> int:
        """At how many places a node reads a value per element, equal places counted once."""
        node = self.nodes[at]
        return node.inputs.count(value) if OPS[node.op].pattern == INJECTIVE else 1

    def _has_many_parts(self, at: int) -> bool:
        """Whether a node joins so many parts, on a CPU, that code which computes all of them where
        they are read would be long. On a GPU each kernel costs a launch."""
        node = self.nodes[at]
        is_wide = OPS[node.op].pattern == INJECTIVE and len(set(node.inputs)) > 2 * MAX_READ_SITES
        return self.is_cpu and is_wide

    def _is_moved_alone(self, group: int) -> bool:
        """Whether a group computes nothing."""
        return all(self.nodes[at].op in MOVES for at in self.groups.members[group])

    def _is_legal(self, one: int, other: int) -> bool:
        """Whether one kernel can contain two groups, by their kinds."""
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
        """Whether a group is a minimum or maximum of all elements, on a CPU. On a GPU, blocks that
        compute partial results cannot wait for each other."""
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
        """Whether each element of a node needs a scalar reduced from all results of a
        contraction."""
        node = self.nodes[at]
        if self.kind[group] != CONTRACTION or self.rows[group] is None:
            return False
        made = [v for v in node.inputs if v is not None and v in self.at]
        scalars = [v for v in made if self._group(v) == group and elements(v) == 1]
        return bool(scalars) and elements(node.outputs[0]) > 1

    def _is_worth(self, at: int, value: Value) -> bool:
        """Whether a node should join the group of one of its inputs."""
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
        """Whether to compute an injective node in the kernel that produces its input."""
        if node.op == ALIAS:
            return True
        if kind == ROW_REDUCTION or not self._is_only_user(node, value):
            return False
        if node.op == "transpose":
            if self.is_cpu and kind == CONTRACTION and self._is_image(node, value):
                return False
            can_be_read = self.is_gpu and kind == CONTRACTION and self._is_reshaped(value)
            return not can_be_read or self._is_reduced_across(self.at[node.output])
        if kind == CONTRACTION:
            return False
        if node.op.startswith("gather") and value is node.inputs[0]:
            return False  # unknown how often elements are read
        if node.op == "patches" and self._narrows(value):
            return False  # overlapping windows would read wide elements several times
        return self._is_cheap_spread(self.at[node.output], value)

    def _is_image(self, node: Node, value: Value) -> bool:
        """Whether a transpose takes an image that is computed channels last to channels first. In a
        kernel of its own it works on rows of all pixels."""
        members = [self.nodes[at] for at in self.groups.members[self._group(value)]]
        is_last = any(each.get("layout") == CHANNELS_LAST for each in members)
        return is_last and tuple(node["perm"]) == channels_first(range(len(node["perm"])))

    def _meets_again(self, at: int, value: Value) -> bool:
        """Whether a node's result is later combined with another consumer of the same contraction's
        result in a kernel that cannot be the contraction's. Both intermediate results would be
        stored, where the contraction's result alone suffices for a kernel that computes both."""
        others = [user for user in self.users[value] if user != at]
        moved = [user for user in others if not self._can_follow(user)]
        return bool(moved) and bool(self._maps_behind([at]) & self._maps_behind(moved))

    def _is_reduced_across(self, at: int) -> bool:
        """Whether results of a transpose are reduced along other axes than the last, or along few
        elements, so that adjacent threads would read addresses far apart."""
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
        """Whether a node can be in the epilogue of a contraction."""
        node = self.nodes[at]
        return node.op == ALIAS or OPS[node.op].pattern in (ELEMENTWISE, BROADCAST)

    def _maps_behind(self, starts: list[int]) -> set[int]:
        """The maps that one kernel could compute, starting from some nodes."""
        found, stack = set[int](), list(starts)
        while stack and len(found) < self.limit:
            at = stack.pop()
            if at not in found and self._is_grouped(at) and self.kind[at] == MAP:
                found.add(at)
                stack += [user for v in self.nodes[at].outputs for user in self.users.get(v, ())]
        return found

    def _narrows(self, value: Value) -> bool:
        """Whether a group converts to narrower elements, on a CPU."""
        if not self.is_cpu:
            return False
        nodes = [self.nodes[at] for at in self.groups.members[self._group(value)]]
        read = [v for node in nodes for v in node.inputs if v is not None and elements(v) > 1]
        most = max((v.tensor.dtype.size_bytes for v in read), default=0)
        return most > value.tensor.dtype.size_bytes

    def _is_only_user(self, node: Node, value: Value) -> bool:
        return value not in self.results and len(self.users[value]) == 1

    def _is_cheap_spread(self, at: int, value: Value) -> bool:
        """Whether recomputing a value for each reader costs less than storing it."""
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

    # ---------------------------------------------------------------- costs

    def _kernel(self, name: str, members: list[int], copies: Collection[int] = ()) -> Candidate:
        """A group's members as a candidate kernel, with copies of other nodes."""
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
        """Whether `joined` kernels are cheaper than `apart`; None if a cost is unknown. Estimates
        of contractions do not cover their prologues and epilogues."""
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

    # ---------------------------------------------------------------- recomputation

    def repeat_prologues(self) -> None:
        """Fuse the producer of a matmul's only row into the matmul, though every thread block
        recomputes it: a kernel less on the critical path is worth more. Nodes that can be in an
        epilogue stay there, and expensive functions keep kernels of their own."""
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
        """Nodes in the epilogue of a contraction, reduction or expensive function."""
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
        """Whether a node is never recomputed in other kernels."""
        takes_long = operations_per_element(self.nodes[at]) > REPEATED_OPERATIONS
        return self.kind[at] != MAP or takes_long

    def _is_only_row(self, at: int, value: Value) -> bool:
        """Whether a value is the single row that a node multiplies with a matrix."""
        node = self.nodes[at]
        if node.op != "matmul" or not self.is_kernel[at] or node.inputs[0] is not value:
            return False
        weights, shape = node.inputs[1], value.tensor.shape or ()
        if weights is None or len(weights.tensor.shape or ()) != 2 or value is weights:
            return False
        return len(shape) > 0 and all(dim is ONE for dim in shape[:-1])

    def repeat_leaves(self) -> None:
        """Recompute cheap functions of values that are stored anyway in all their consumers."""
        for at, node in enumerate(self.nodes):
            if not self._is_grouped(at) or self.kind[at] != MAP or node.op == ALIAS:
                continue
            is_shared = len(self.users.get(node.outputs[0], ())) > 1 and self._is_leaf(node)
            if (is_shared or self._widens_stored(node)) and self._is_cheaper_repeated([at]):
                self.repeated.add(at)

    def _widens_stored(self, node: Node) -> bool:
        """Whether a node widens a tensor that has to be stored for others anyway."""
        inputs = [v for v in node.inputs if v is not None and elements(v) > 1]
        if len(inputs) != 1 or size_bytes(inputs[0]) >= size_bytes(node.outputs[0]):
            return False
        users = [self.nodes[user] for user in self.users[inputs[0]] if self.is_kernel[user]]
        return any(reads_views(user) for user in users)

    def _is_leaf(self, node: Node) -> bool:
        sources = [self.at[v] for v in node.inputs if v is not None and v in self.at]
        return not any(self._is_grouped(source) for source in sources)

    def repeat_cheap(self) -> None:
        """Recompute groups of cheap operators in all consumers, if that moves fewer bytes."""
        for group in reversed([g for g in self.groups.order if g is not None]):
            members = self.groups.members[group]
            if not self._is_grouped(members[0]) or self.kind[group] != MAP:
                continue
            if self._is_cheaper_repeated(members):
                self.repeated.update(members)

    def repeat_widening(self) -> None:
        """Recompute a final widening conversion in the consumers."""
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
        readers: dict[int, float] = {}  # elements read by each kernel
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
        """The nodes that read a value, directly or through views that are copied into each
        kernel."""
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
        """Whether a node inside a kernel reads each element about once."""
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
        """The nodes of the graph with groups as `fused` nodes; some constants move inside."""
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
        """Reshapes of stored values are not copied into kernels: they stay aliases."""
        for at in sorted(self.repeated):
            node = self.nodes[at]
            if node.op != ALIAS or node.inputs[0] is None:
                continue
            if self.at.get(node.inputs[0]) not in self.repeated:
                self.repeated.discard(at)

    def _copies(self, members: list[int]) -> list[int]:
        """The recomputed nodes of which a group needs copies."""
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
        """Views read by a contraction: each operand becomes a parameter of its own."""
        if not any(self.kind[at] == CONTRACTION for at in members):
            return []
        return [self.nodes[at] for at in copies if is_view(self.nodes[at])]

    def _is_used(self, value: Value, inside: set[int]) -> bool:
        """Whether a value has users outside of a group and of nodes recomputed elsewhere."""
        users = self.users.get(value, ())
        return value in self.results or any(user not in inside for user in users)


def _parts(node: Node) -> int:
    """The number of cases of a node for the origin of an element, such as parts of a concat."""
    return len(node.inputs) if node.op in ("concat", "interleave") else 1


def _rows(node: Node) -> Rows | None:
    """The rows that a reduction reduces; None for pooling and the like."""
    if OPS[node.op].pattern != REDUCTION or node.inputs[0] is None:
        return None
    shape = node.inputs[0].tensor.shape or ()
    names = {attr.name for attr in OPS[node.op].attributes}
    if "kernel" in names or "size" in names or "groups" in names:
        return None
    axes = node.get("axes", node.get("axis"))
    if axes is None:
        return Rows(shape, frozenset(range(len(shape))))
    if isinstance(axes, int):  # layer_norm reduces from an axis on, arg_max along one
        front = axes % max(1, len(shape))
        keeps = len(node.outputs[0].tensor.shape or ()) == len(shape)
        by_norm = keeps and _same(node.outputs[0].tensor.shape or (), shape)
        return Rows(shape, frozenset(range(front, len(shape)) if by_norm else (front,)))
    return Rows(shape, frozenset(int(axis) % len(shape) for axis in axes))


def _same(a: Shape, b: Shape) -> bool:
    return len(a) == len(b) and all(x is y or sym.equal(x, y) for x, y in zip(a, b, strict=True))
