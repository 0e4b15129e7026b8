"""Inter-operator parallelism: run independent single-threaded kernels at the same time.

    gru(%forward)                   project(%backward)
    project(%backward)     ->       gru(%forward), and concurrently
    gru(%backward)                  gru(%backward)

A step of a small recurrent layer is too short to share between threads, but the two directions of
the layer can run side by side; so can the branches of a small model. A kernel node with
`concurrent` starts together with the node before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tilewright.driver.kernels import KernelSetting
from tilewright.driver.lowering import Program
from tilewright.graph import ir
from tilewright.graph.ir import Graph, Node, Value

PURE = ("constant", "kernel", "reshape")  # nodes without side effects
NODES_AHEAD = 32  # how far ahead an independent partner is searched
MIN_WAKES = 2  # the least duration of a kernel, as a multiple of the time to wake a thread


def overlap_kernels(program: Program, setting: KernelSetting) -> Program:
    """The program with independent single-threaded kernels side by side, where that pays for waking
    a thread."""
    if setting.threads == 1:
        return program
    least_ns = MIN_WAKES * setting.target.machine.thread_wake_ns

    def is_worth(node: Node) -> bool:
        if node.op != "kernel" or node.get("variants"):
            return False
        kernel = program.kernels[node["function"]]
        # What threads share out is for one alone beside another kernel, but then both are done.
        lost_ns = (setting.threads - 2) * kernel.predicted_ns(is_shared=True)
        return kernel.predicted_ns(is_shared=False) >= max(least_ns, lost_ns)

    main = overlapped(program.module.main, is_worth, setting.threads)
    graphs = {**program.module.graphs, "main": main}
    return replace(program, module=replace(program.module, graphs=graphs))


def overlapped(graph: Graph, is_worth: Callable[[Node], bool], threads: int) -> Graph:
    """The graph with independent nodes that are worth it moved next to each other."""
    nodes: list[Node] = []
    left = list(graph.nodes)
    while left:
        node, *left = left
        if is_worth(node):
            before, beside, left = _split(node, left, is_worth, threads - 1)
            nodes += before
            if beside:
                # In-place results could overwrite what a concurrent kernel still reads.
                node = _with(node, in_place=())
                beside = [_with(each, in_place=(), concurrent=True) for each in beside]
            nodes += [node, *beside]
        else:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def _split(
    node: Node, after: Sequence[Node], is_worth: Callable[[Node], bool], max_beside: int
) -> tuple[list[Node], list[Node], list[Node]]:
    """Nodes to run before `node`, nodes to run beside it, and all later nodes."""
    # results of the node and of those beside it, and what depends on them
    dependent = set(node.outputs)
    independent: dict[Value, Node] = {}
    beside: list[Node] = []
    for each in after[:NODES_AHEAD]:
        if each.op not in PURE or len(beside) == max_beside:
            break
        if any(value in dependent for value in each.inputs):
            dependent.update(each.outputs)
        elif is_worth(each):
            beside.append(each)
            dependent.update(each.outputs)
        else:
            independent.update(dict.fromkeys(each.outputs, each))
    before: set[Node] = set()
    needed = [value for each in beside for value in each.inputs]
    while needed:
        value = needed.pop()
        maker = None if value is None else independent.get(value)
        if maker is not None and maker not in before:
            before.add(maker)
            needed += maker.inputs
    moved = {*before, *beside}
    return (
        [each for each in after if each in before],
        beside,
        [each for each in after if each not in moved],
    )


def _with(node: Node, **attributes: ir.Attribute) -> Node:
    return replace(node, attributes=ir.attributes(**{**dict(node.attributes), **attributes}))
