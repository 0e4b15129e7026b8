"""Kernels that keep one thread busy run at the same time as others that need nothing of them.

    gru(%forward)                   project(%backward)
    project(%backward)     ->       gru(%forward), and concurrently
    gru(%backward)                  gru(%backward)

A step of a small recurrent layer is not worth a second thread, but the other direction of the layer
is; so are branches of a small model. A kernel node with `concurrent` begins with the one before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tilewright.driver.kernels import KernelSetting
from tilewright.driver.lowering import Program
from tilewright.graph import ir
from tilewright.graph.ir import Graph, Node, Value

MOVED = ("constant", "kernel", "reshape")  # what has no other effect than its results
NODES_AHEAD = 32  # among which a partner is looked for
WORTH_WAKES = 2  # times what waking a thread takes, a kernel must


def overlap_kernels(program: Program, setting: KernelSetting) -> Program:
    """The program with kernels of one thread side by side, where waking a thread is worth it."""
    if setting.threads == 1:
        return program
    least_ns = WORTH_WAKES * setting.target.machine.thread_wake_ns

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
    """The graph with independent nodes of those that are worth it next to each other."""
    nodes: list[Node] = []
    left = list(graph.nodes)
    while left:
        node, *left = left
        if is_worth(node):
            before, beside, left = _split(node, left, is_worth, threads - 1)
            nodes += before
            if beside:
                # Nobody may write what a neighbour still reads.
                node = _with(node, in_place=())
                beside = [_with(each, in_place=(), concurrent=True) for each in beside]
            nodes += [node, *beside]
        else:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def _split(
    node: Node, after: Sequence[Node], is_worth: Callable[[Node], bool], most: int
) -> tuple[list[Node], list[Node], list[Node]]:
    """What runs before a node so that others can run beside it; these; and what runs later."""
    waiting = set(node.outputs)  # for the node, or for one beside it
    free: dict[Value, Node] = {}
    beside: list[Node] = []
    for each in after[:NODES_AHEAD]:
        if each.op not in MOVED or len(beside) == most:
            break
        if any(value in waiting for value in each.inputs):
            waiting.update(each.outputs)
        elif is_worth(each):
            beside.append(each)
            waiting.update(each.outputs)
        else:
            free.update(dict.fromkeys(each.outputs, each))
    before: set[Node] = set()
    asked = [value for each in beside for value in each.inputs]
    while asked:
        value = asked.pop()
        maker = None if value is None else free.get(value)
        if maker is not None and maker not in before:
            before.add(maker)
            asked += maker.inputs
    moved = {*before, *beside}
    return (
        [each for each in after if each in before],
        beside,
        [each for each in after if each not in moved],
    )


def _with(node: Node, **attributes: ir.Attribute) -> Node:
    return replace(node, attributes=ir.attributes(**{**dict(node.attributes), **attributes}))
