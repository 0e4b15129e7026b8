"""Nodes join the groups of their producers, if one kernel can compute both and costs less."""

from __future__ import annotations

from tilewright.base.multiprocessor import WARP
from tilewright.graph.fusion.prices import candidate, is_priced_less
from tilewright.graph.fusion.state import (
    CONTRACTION,
    MAP,
    MOVES,
    ROW_REDUCTION,
    Fusion,
    same_shape,
)
from tilewright.graph.ir import Node, Value
from tilewright.graph.op import BROADCAST, ELEMENTWISE, INJECTIVE, REDUCTION
from tilewright.graph.ops import OPS
from tilewright.graph.ops.layout import CHANNELS_LAST, channels_first
from tilewright.graph.rates import elements, extent, operations_per_element
from tilewright.graph.views import ALIAS

RANGES = ("reduce_max", "reduce_min")  # may be computed in any order
MAX_READ_SITES = 16  # of a value in one kernel: concats of concats double them each time


def grow(fusion: Fusion) -> None:
    """Let each node join the groups of its inputs, in order."""
    for at, node in enumerate(fusion.nodes):
        if not fusion.is_grouped(at) or fusion.kind[at] == CONTRACTION:
            continue
        for value in _by_preference(fusion, node):
            _try_join(fusion, at, value)


def _by_preference(fusion: Fusion, node: Node) -> list[Value]:
    """The inputs produced by kernels, in order of preference: contractions, then reductions,
    latest first.

    Values that were not reshaped since are preferred: an epilogue works on tiles of the
    original shape.
    """
    inputs = [v for v in dict.fromkeys(node.inputs) if v is not None and v in fusion.at]
    grouped = [v for v in inputs if fusion.is_grouped(fusion.at[v])]

    def rank(value: Value) -> tuple[int, bool, int]:
        return -fusion.kind[fusion.group(value)], _is_reshaped(fusion, value), -fusion.at[value]

    return sorted(grouped, key=rank)


def _is_reshaped(fusion: Fusion, value: Value) -> bool:
    """Whether a value has another shape than the first result of its group."""
    group = fusion.group(value)
    inside: list[Value] = [value]
    while inside:
        node = fusion.nodes[fusion.at[inside[0]]]
        if node.op == ALIAS:
            return True
        given = [v for v in node.inputs if v is not None and v in fusion.at]
        inside = [v for v in given if fusion.group(v) == group]
    return False


def _try_join(fusion: Fusion, at: int, value: Value) -> None:
    groups = fusion.groups
    one, other = fusion.group(value), groups.group_of[at]
    if one == other:
        return
    if len(groups.members[one]) + len(groups.members[other]) > fusion.limit:
        return
    reads = _reads(fusion, at, value)
    places = fusion.places[one] * reads
    # Checked before prices: estimating a kernel of many nodes is slow.
    if reads > 1 and places > MAX_READ_SITES:
        return
    if _has_many_parts(fusion, at) and not _is_moved_alone(fusion, one):
        return
    if not _is_legal(fusion, one, other) or not is_worth(fusion, at, value):
        return
    if groups.merge(one, other):
        fusion.places[one] = max(places, fusion.places[other])
        fusion.kind[one] = max(fusion.kind[one], fusion.kind[other])
        fusion.rows[one] = fusion.rows[one] or fusion.rows[other]


def _reads(fusion: Fusion, at: int, value: Value) -> int:
    """At how many places a node reads a value per element, equal places counted once."""
    node = fusion.nodes[at]
    return node.inputs.count(value) if OPS[node.op].pattern == INJECTIVE else 1


def _has_many_parts(fusion: Fusion, at: int) -> bool:
    """Whether a node joins so many parts, on a CPU, that code which computes all of them where
    they are read would be long. On a GPU each kernel costs a launch."""
    node = fusion.nodes[at]
    is_wide = OPS[node.op].pattern == INJECTIVE and len(set(node.inputs)) > 2 * MAX_READ_SITES
    return fusion.is_cpu and is_wide


def _is_moved_alone(fusion: Fusion, group: int) -> bool:
    """Whether a group computes nothing."""
    return all(fusion.nodes[at].op in MOVES for at in fusion.groups.members[group])


def _is_legal(fusion: Fusion, one: int, other: int) -> bool:
    """Whether one kernel can contain two groups, by their kinds."""
    kinds = {fusion.kind[one], fusion.kind[other]}
    if MAP in kinds:
        return True
    if kinds == {CONTRACTION, ROW_REDUCTION}:
        return _is_range(fusion, other)
    if kinds != {ROW_REDUCTION} or fusion.rows[one] is None or fusion.rows[other] is None:
        return False
    a, b = fusion.rows[one], fusion.rows[other]
    return a is not None and b is not None and a.axes == b.axes and same_shape(a.shape, b.shape)


def _is_range(fusion: Fusion, group: int) -> bool:
    """Whether a group is a minimum or maximum of all elements, on a CPU. On a GPU, blocks that
    compute partial results cannot wait for each other."""
    nodes = [fusion.nodes[at] for at in fusion.groups.members[group]]
    rows = fusion.rows[group]
    return (
        fusion.is_cpu
        and len(nodes) == 1
        and nodes[0].op in RANGES
        and rows is not None
        and len(rows.axes) == len(rows.shape)
    )


def _waits_for_range(fusion: Fusion, at: int, group: int) -> bool:
    """Whether each element of a node needs a scalar reduced from all results of a
    contraction."""
    node = fusion.nodes[at]
    if fusion.kind[group] != CONTRACTION or fusion.rows[group] is None:
        return False
    made = [v for v in node.inputs if v is not None and v in fusion.at]
    scalars = [v for v in made if fusion.group(v) == group and elements(v) == 1]
    return bool(scalars) and elements(node.outputs[0]) > 1


def is_worth(fusion: Fusion, at: int, value: Value) -> bool:
    """Whether a node should join the group of one of its inputs."""
    node, group = fusion.nodes[at], fusion.group(value)
    if _waits_for_range(fusion, at, group):
        return False
    pattern, kind = OPS[node.op].pattern, fusion.kind[group]
    shape, given = node.outputs[0].tensor.shape or (), value.tensor.shape or ()
    if pattern == REDUCTION:
        rows = fusion.rows[at]
        return rows is not None and value is node.inputs[0] and same_shape(given, rows.shape)
    if pattern == INJECTIVE:
        return _is_worth_moving(fusion, node, value, kind)
    if kind == CONTRACTION:
        if fusion.is_gpu and _meets_again(fusion, at, value):
            return False
        return same_shape(shape, given) and value is fusion.nodes[fusion.at[value]].outputs[0]
    if kind == ROW_REDUCTION:
        found = fusion.rows[group]
        return same_shape(shape, given) if found is None else found.fits(shape)
    mine = fusion.rows[fusion.groups.group_of[at]]
    if mine is not None and not mine.fits(given):
        return _is_cheap_spread(fusion, at, value)
    return same_shape(shape, given) or _is_cheap_spread(fusion, at, value)


def _is_worth_moving(fusion: Fusion, node: Node, value: Value, kind: int) -> bool:
    """Whether to compute an injective node in the kernel that produces its input."""
    if node.op == ALIAS:
        return True
    if kind == ROW_REDUCTION or not fusion.has_one_user(value):
        return False
    if node.op == "transpose":
        if fusion.is_cpu and kind == CONTRACTION and _is_image(fusion, node, value):
            return False
        can_be_read = fusion.is_gpu and kind == CONTRACTION and _is_reshaped(fusion, value)
        return not can_be_read or _is_reduced_across(fusion, fusion.at[node.output])
    if kind == CONTRACTION:
        return False
    if node.op.startswith("gather") and value is node.inputs[0]:
        return False  # unknown how often elements are read
    if node.op == "patches" and _narrows(fusion, value):
        return False  # overlapping windows would read wide elements several times
    return _is_cheap_spread(fusion, fusion.at[node.output], value)


def _is_image(fusion: Fusion, node: Node, value: Value) -> bool:
    """Whether a transpose takes an image that is computed channels last to channels first. In a
    kernel of its own it works on rows of all pixels."""
    members = [fusion.nodes[at] for at in fusion.groups.members[fusion.group(value)]]
    is_last = any(each.get("layout") == CHANNELS_LAST for each in members)
    return is_last and tuple(node["perm"]) == channels_first(range(len(node["perm"])))


def _meets_again(fusion: Fusion, at: int, value: Value) -> bool:
    """Whether a node's result is later combined with another consumer of the same contraction's
    result in a kernel that cannot be the contraction's. Both intermediate results would be
    stored, where the contraction's result alone suffices for a kernel that computes both."""
    others = [user for user in fusion.users[value] if user != at]
    moved = [user for user in others if not _can_follow(fusion, user)]
    return bool(moved) and bool(_maps_behind(fusion, [at]) & _maps_behind(fusion, moved))


def _is_reduced_across(fusion: Fusion, at: int) -> bool:
    """Whether results of a transpose are reduced along other axes than the last, or along few
    elements, so that adjacent threads would read addresses far apart."""
    users = [
        user
        for map_at in _maps_behind(fusion, [at])
        for value in fusion.nodes[map_at].outputs
        for user in fusion.users.get(value, ())
    ]
    for user in users:
        rows = fusion.rows[user]
        if OPS[fusion.nodes[user].op].pattern != REDUCTION or rows is None:
            continue
        along = len(rows.shape) - 1
        if along not in rows.axes or extent(rows.shape[along]) < WARP:
            return True
    return False


def _can_follow(fusion: Fusion, at: int) -> bool:
    """Whether a node can be in the epilogue of a contraction."""
    node = fusion.nodes[at]
    return node.op == ALIAS or OPS[node.op].pattern in (ELEMENTWISE, BROADCAST)


def _maps_behind(fusion: Fusion, starts: list[int]) -> set[int]:
    """The maps that one kernel could compute, starting from some nodes."""
    found, stack = set[int](), list(starts)
    while stack and len(found) < fusion.limit:
        at = stack.pop()
        if at not in found and fusion.is_grouped(at) and fusion.kind[at] == MAP:
            found.add(at)
            stack += [user for v in fusion.nodes[at].outputs for user in fusion.users.get(v, ())]
    return found


def _narrows(fusion: Fusion, value: Value) -> bool:
    """Whether a group converts to narrower elements, on a CPU."""
    if not fusion.is_cpu:
        return False
    nodes = [fusion.nodes[at] for at in fusion.groups.members[fusion.group(value)]]
    read = [v for node in nodes for v in node.inputs if v is not None and elements(v) > 1]
    most = max((v.tensor.dtype.size_bytes for v in read), default=0)
    return most > value.tensor.dtype.size_bytes


def _is_cheap_spread(fusion: Fusion, at: int, value: Value) -> bool:
    """Whether recomputing a value for each reader costs less than storing it."""
    node, group = fusion.nodes[at], fusion.group(value)
    if not fusion.has_one_user(value):
        return False
    members, users = fusion.groups.members[group], fusion.groups.members[fusion.groups.group_of[at]]
    if users is not members:
        known = is_priced_less(
            fusion,
            node,
            joined=[candidate(fusion, "together", [*members, *users])],
            apart=[candidate(fusion, "first", members), candidate(fusion, "second", users)],
            kinds={fusion.kind[group], fusion.kind[fusion.groups.group_of[at]]},
        )
        if known is not None:
            return known
    work = sum(operations_per_element(fusion.nodes[n]) for n in members)
    rates = fusion.rates
    again = max(0, rates.elements(node.outputs[0]) - rates.elements(value))
    stored_ns = rates.launch_ns + 2 * rates.byte_ns * rates.size_bytes(value)
    return stored_ns > rates.operation_ns * work * again
