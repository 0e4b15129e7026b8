"""Nodes that every kernel which reads them computes for itself, where that costs less than storing
their results."""

from __future__ import annotations

from tilewright.base.multiprocessor import multiprocessor_of
from tilewright.graph.fusion.joins import is_worth
from tilewright.graph.fusion.prices import candidate, is_priced_less
from tilewright.graph.fusion.state import KINDS, MAP, MOVES, Fusion
from tilewright.graph.ir import Node, Value
from tilewright.graph.op import BROADCAST, ELEMENTWISE, INJECTIVE, REDUCTION
from tilewright.graph.ops import OPS
from tilewright.graph.rates import elements, operations_per_element, size_bytes
from tilewright.graph.views import ALIAS, reads_views
from tilewright.sym import ONE

REPEATED_OPERATIONS = 8  # per element, of a producer that may be recomputed in several kernels


def repeat_prologues(fusion: Fusion) -> None:
    """Fuse the producer of a matmul's only row into the matmul, though every thread block
    recomputes it: a kernel less on the critical path is worth more. Nodes that can be in an
    epilogue stay there, and expensive functions keep kernels of their own."""
    found, ends = set[int](), _ends(fusion)
    most = multiprocessor_of(fusion.ctx.target).prologue_elements
    for at in reversed(range(len(fusion.nodes))):
        node = fusion.nodes[at]
        if not fusion.is_grouped(at) or fusion.kind[at] != MAP or at in ends:
            continue
        if _has_kernel(fusion, at):
            continue
        made, *others = node.outputs
        if others or made in fusion.results or elements(made) > most:
            continue
        users = fusion.users.get(made, [])
        leading = [user for user in users if user in found or _is_only_row(fusion, user, made)]
        rest = [user for user in users if user not in leading]
        if leading and all(fusion.kind[user] == MAP for user in rest):
            found.add(at)
    fusion.repeated |= found


def _ends(fusion: Fusion) -> set[int]:
    """Nodes in the epilogue of a contraction, reduction or expensive function."""
    found: set[int] = set()
    for at, node in enumerate(fusion.nodes):
        if not fusion.is_grouped(at) or fusion.kind[at] != MAP:
            continue
        sources = [(v, fusion.at[v]) for v in node.inputs if v is not None and v in fusion.at]
        if any(
            (source in found or _has_kernel(fusion, source)) and is_worth(fusion, at, value)
            for value, source in sources
        ):
            found.add(at)
    return found


def _has_kernel(fusion: Fusion, at: int) -> bool:
    """Whether a node is never recomputed in other kernels."""
    takes_long = operations_per_element(fusion.nodes[at]) > REPEATED_OPERATIONS
    return fusion.kind[at] != MAP or takes_long


def _is_only_row(fusion: Fusion, at: int, value: Value) -> bool:
    """Whether a value is the single row that a node multiplies with a matrix."""
    node = fusion.nodes[at]
    if node.op != "matmul" or not fusion.is_kernel[at] or node.inputs[0] is not value:
        return False
    weights, shape = node.inputs[1], value.tensor.shape or ()
    if weights is None or len(weights.tensor.shape or ()) != 2 or value is weights:
        return False
    return len(shape) > 0 and all(dim is ONE for dim in shape[:-1])


def repeat_leaves(fusion: Fusion) -> None:
    """Recompute cheap functions of values that are stored anyway in all their consumers."""
    for at, node in enumerate(fusion.nodes):
        if not fusion.is_grouped(at) or fusion.kind[at] != MAP or node.op == ALIAS:
            continue
        is_shared = len(fusion.users.get(node.outputs[0], ())) > 1 and _is_leaf(fusion, node)
        if (is_shared or _widens_stored(fusion, node)) and _is_cheaper_repeated(fusion, [at]):
            fusion.repeated.add(at)


def _widens_stored(fusion: Fusion, node: Node) -> bool:
    """Whether a node widens a tensor that has to be stored for others anyway."""
    inputs = [v for v in node.inputs if v is not None and elements(v) > 1]
    if len(inputs) != 1 or size_bytes(inputs[0]) >= size_bytes(node.outputs[0]):
        return False
    users = [fusion.nodes[user] for user in fusion.users[inputs[0]] if fusion.is_kernel[user]]
    return any(reads_views(user) for user in users)


def _is_leaf(fusion: Fusion, node: Node) -> bool:
    sources = [fusion.at[v] for v in node.inputs if v is not None and v in fusion.at]
    return not any(fusion.is_grouped(source) for source in sources)


def repeat_cheap(fusion: Fusion) -> None:
    """Recompute groups of cheap operators in all consumers, if that moves fewer bytes."""
    for group in reversed([g for g in fusion.groups.order if g is not None]):
        members = fusion.groups.members[group]
        if not fusion.is_grouped(members[0]) or fusion.kind[group] != MAP:
            continue
        if _is_cheaper_repeated(fusion, members):
            fusion.repeated.update(members)


def repeat_widening(fusion: Fusion) -> None:
    """Recompute a final widening conversion in the consumers."""
    for at, node in enumerate(fusion.nodes):
        if not fusion.is_grouped(at) or KINDS[OPS[node.op].pattern] != MAP or node.op == ALIAS:
            continue
        group = fusion.groups.group_of[at]
        inputs = [v for v in node.inputs if v is not None and elements(v) > 1]
        if len(inputs) != 1 or size_bytes(inputs[0]) >= size_bytes(node.outputs[0]):
            continue
        if inputs[0] not in fusion.at or fusion.group(inputs[0]) != group:
            continue
        users = fusion.users.get(node.outputs[0], ())
        if any(fusion.groups.group_of[user] == group for user in users):
            continue
        if _is_cheaper_repeated(fusion, [at]):
            fusion.repeated.add(at)


def _is_cheaper_repeated(fusion: Fusion, members: list[int]) -> bool:
    """Whether all kernels that read a group's results had better compute them for themselves."""
    made = {value for at in members for value in fusion.nodes[at].outputs}
    if any(value in fusion.results for value in made):
        return False
    inside = set(members)
    reads = [
        (user, read, value)
        for at in members
        for value in fusion.nodes[at].outputs
        for user, read in _readers(fusion, value)
        if user not in inside
    ]
    if not reads or not all(_can_repeat_in(fusion, user, read) for user, read, _ in reads):
        return False
    rates = fusion.rates
    readers: dict[int, float] = {}  # elements read by each kernel
    for user, _, value in reads:
        kernel = fusion.groups.group_of[user]
        count = max(rates.elements(fusion.nodes[user].outputs[0]), rates.elements(value))
        readers[kernel] = max(readers.get(kernel, 0), count)
    if any(len(fusion.groups.members[k]) + len(members) > fusion.limit for k in readers):
        return False
    if any(fusion.nodes[at].op == "concat" for at in members):
        return False
    if _work(fusion, members) > REPEATED_OPERATIONS:
        return False
    known = _is_priced_less_repeated(fusion, members, list(readers))
    if known is not None:
        return known
    return _saves_bytes(fusion, members, list(dict.fromkeys(value for *_, value in reads)), readers)


def _work(fusion: Fusion, members: list[int]) -> float:
    """Operations per element."""
    return sum(operations_per_element(fusion.nodes[at]) for at in members)


def _is_priced_less_repeated(fusion: Fusion, members: list[int], readers: list[int]) -> bool | None:
    """Whether kernels with copies of a group are cheaper; None if a cost is unknown."""
    groups = [fusion.groups.members[kernel] for kernel in readers]
    copied = [
        candidate(fusion, f"with a copy {at}", group, members) for at, group in enumerate(groups, 1)
    ]
    users = [candidate(fusion, f"user {at}", group) for at, group in enumerate(groups, 1)]
    return is_priced_less(
        fusion,
        fusion.nodes[members[0]],
        joined=copied,
        apart=[candidate(fusion, "once", members), *users],
        kinds={fusion.kind[kernel] for kernel in readers},
    )


def _saves_bytes(
    fusion: Fusion, members: list[int], shared: list[Value], readers: dict[int, float]
) -> bool:
    """Whether bytes that need not be moved outweigh operands and operations that are repeated."""
    nodes, rates = [fusion.nodes[at] for at in members], fusion.rates
    made = {value for node in nodes for value in node.outputs}
    given = dict.fromkeys(value for node in nodes for value in node.inputs if value)
    outside = sum(rates.size_bytes(value) for value in given if value not in made)
    stored = sum(rates.size_bytes(value) for value in shared)
    first = max(rates.elements(node.outputs[0]) for node in nodes)
    saved_ns = rates.launch_ns + rates.byte_ns * (stored * (1 + len(readers)) + outside)
    again = rates.operation_ns * _work(fusion, members) * (sum(readers.values()) - first)
    return saved_ns > rates.byte_ns * outside * len(readers) + again


def _readers(fusion: Fusion, value: Value) -> list[tuple[int, Value]]:
    """The nodes that read a value, directly or through views that are copied into each
    kernel."""
    found, stack = list[tuple[int, Value]](), [value]
    while stack:
        read = stack.pop()
        for user in fusion.users.get(read, ()):
            if user in fusion.repeated and fusion.nodes[user].op in MOVES:
                stack += fusion.nodes[user].outputs
            else:
                found.append((user, read))
    return found


def _can_repeat_in(fusion: Fusion, user: int, value: Value) -> bool:
    """Whether a node inside a kernel reads each element about once."""
    node = fusion.nodes[user]
    if not fusion.is_grouped(user) or node.op == "concat":
        return False
    pattern = OPS[node.op].pattern
    if pattern == REDUCTION:
        return fusion.rows[user] is not None and value is node.inputs[0]
    if pattern == INJECTIVE:
        return node.op in MOVES
    return pattern in (ELEMENTWISE, BROADCAST)


def keep_aliases(fusion: Fusion) -> None:
    """Reshapes of stored values are not copied into kernels: they stay aliases."""
    for at in sorted(fusion.repeated):
        node = fusion.nodes[at]
        if node.op != ALIAS or node.inputs[0] is None:
            continue
        if fusion.at.get(node.inputs[0]) not in fusion.repeated:
            fusion.repeated.discard(at)
