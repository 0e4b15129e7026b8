"""The model's main: one native function that calls the kernels.

    int32_t NAME_main(tw_call *call, const DLTensor *const *inputs, int32_t n_inputs)

It checks the inputs, reads the sizes, takes the arena, requests the memory of each result from the
caller as soon as its shape is known, and runs the nodes in order: kernels are direct calls on
addresses and sizes, control flow is branches. No interpreter, no dispatch. States are inputs that
are updated in place for the next call.

Nodes of a lowered graph: `constant`; `kernel`, a call of a tensor function of the module; `sizes`,
which reads the values of sizes from a computed tensor; views (`reshape`, `require`), which copy
nothing; `if`, `loop` and `scan` with bodies of the same; `foreign`, a part without native code that
the model's callbacks run, and `fetch`, which copies the results of that part.

A kernel node with a `site` is called through a table (`codegen/adapter.py`), so that tuning can
swap its code between runs. One with `variants` has specialized kernels: the first whose `limits` (a
size and its maximum) hold is called, else the node's own; `takes` lists the inputs of each, the
node's own first. `concurrent` nodes run in parallel with the node before, as tasks of one region.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Protocol

from tilewright import sym
from tilewright.base.errors import CompilerBug
from tilewright.codegen.builder import Arm, ModuleText, Value, i1, i32, i64
from tilewright.codegen.emitter import Emitter
from tilewright.codegen.entry import (
    CHECK_FAILED,
    check_dimensions,
    check_requirements,
    data_pointer,
    emit_signature,
    signature_of,
    symbol_sizes,
)
from tilewright.codegen.host_carried import Carried, Given, Rows
from tilewright.codegen.host_memory import CALL, HostMemory, Place
from tilewright.codegen.machine import Machine
from tilewright.codegen.targets import handlers_of
from tilewright.graph.ir import Graph, Module, Node
from tilewright.graph.memory import MemoryPlan
from tilewright.graph.ops.control import trip_of
from tilewright.runtime.signature import Param, Signature
from tilewright.sym import Expr, Var
from tilewright.tensor.ir import FLAT, Buffer, Function, seq

MAX_SIZE = 1 << 40
TABLE = (
    "#kernels"  # among the constants: per site, the addresses of an adapter and of packed weights
)


class Callee(Protocol):
    """The interface of a kernel that the host needs."""

    @property
    def name(self) -> str: ...
    @property
    def scalars(self) -> tuple[Var, ...]: ...
    @property
    def requires(self) -> tuple[Expr, ...]: ...


def input_function(graph: Graph, name: str) -> Function:
    """A function of the model's inputs only: its signature is what callers are checked against."""
    params = tuple(
        Buffer(param.name, param.tensor.shape or (), param.tensor.dtype) for param in graph.params
    )
    return Function(name, params, seq(), stage=FLAT)


def input_signature(model: Module, name: str) -> Signature:
    """The inputs of a model as callers give them; states are written to."""
    told = signature_of(input_function(model.main, name))
    first = len(model.given)
    params = tuple(
        replace(param, writable=True, is_state=True) if at >= first else param
        for at, param in enumerate(told.params)
    )
    return Signature(told.name, params)


def emit_main(
    module: ModuleText,
    machine: Machine,
    model: Module,
    plan: MemoryPlan,
    name: str,
    kernels: Mapping[str, Callee],
    constants: Mapping[str, int],
) -> None:
    """Write `NAME_main`. `constants` tells the place of each constant in the call's table."""
    graph = model.main
    inputs = input_function(graph, name)
    signature = emit_signature(module, input_signature(model, name))
    params = (("ptr", "call"), ("ptr", "inputs"), ("i32", "n_inputs"))
    with module.function("i32", f"{name}_main", params) as (b, (call, args, n_args)):
        emitter = Emitter(module, machine, b, name, handlers_of(machine))
        sizes = symbol_sizes(inputs)
        symbols = b.alloca(f"[{max(1, len(sizes))} x i64]", align=8, hint="symbols")
        emitter.check(b.call("tw_check_args", "i32", signature, args, n_args, symbols))
        for at, size in enumerate(sizes):
            emitter.variables[size] = b.load("i64", b.offset("i64", symbols, i64(at)))
            emitter.non_negative[size] = None
        count = len(graph.params)
        tensors = [b.load("ptr", b.offset("ptr", args, i64(at))) for at in range(count)]
        check_dimensions(emitter, inputs, tensors)
        host = _Host(emitter, model, plan, call, kernels, constants)
        for param, tensor in zip(graph.params, tensors, strict=True):
            host.pointers[param] = data_pointer(b, tensor)
        host.take_arena()
        host.graph(graph)
        host.copy_results(graph)
        b.ret(i32(0))


class _Host(HostMemory):
    """Writes the nodes of a graph and of its bodies."""

    def __init__(
        self,
        emitter: Emitter,
        model: Module,
        plan: MemoryPlan,
        call: Value,
        kernels: Mapping[str, Callee],
        constants: Mapping[str, int],
    ) -> None:
        super().__init__(emitter, model, plan, call)
        self.kernels = kernels
        self.constants = constants
        self.open = {  # results whose rank depends on the branch taken
            result: at
            for at, result in enumerate(model.main.results)
            if result.tensor.shape is None
        }

    # ------------------------------------------------------------------ nodes

    def graph(self, graph: Graph) -> None:
        """Write the nodes of a graph whose parameters have been placed."""
        for nodes in _at_a_time(graph.nodes):
            self.emitter.forget()
            if len(nodes) > 1:
                self._concurrent(nodes)
            else:
                _NODES.get(nodes[0].op, _Host._unknown)(self, nodes[0])
            for node in nodes:
                self._end_lives(node)

    def _end_lives(self, node: Node) -> None:
        """Free late memory whose last reader is a node."""
        for value in (*node.inputs, *node.outputs):
            root = None if value is None else self.plan.root(value)
            ends = root is not None and self.plan.last_use.get(root) is node
            if ends and root in self.pointers:
                self.drop(self.pointers.pop(root))

    def _unknown(self, node: Node) -> None:
        raise CompilerBug("TW3903", f"the host program cannot run {node.op}", node.loc)

    def _constant(self, node: Node) -> None:
        at = self.constants[node["data"]]
        table = self.b.load("ptr", self.b.member(CALL, self.call, 0))
        self.pointers[node.output] = self.b.load("ptr", self.b.offset("ptr", table, i64(at)))

    def _view(self, node: Node) -> None:
        if node.op == "require":
            (cond, _) = node.inputs
            assert cond is not None
            bad = self.b.op("xor", self.truth(cond), i1(True))
            with self.b.when(bad, unlikely=True):
                text = self.emitter.module.string(node["message"])
                self.emitter.fail(self.b.call("tw_error", "i32", i32(CHECK_FAILED), text))

    def _kernel(self, node: Node) -> None:
        b, emitter = self.b, self.emitter
        fn = self.kernels[node["function"]]
        values = [value for value in node.inputs if value is not None]
        inputs = [self.pointer(value) for value in values]
        outputs = [self.place(value) for value in node.outputs]
        numbers = [self.size(expr) for expr in node["sizes"]]
        begin = b.call("tw_profile_begin", "i64")
        names = [*node.get("variants", ()), fn.name]
        own, *others = node.get("takes") or (tuple(range(len(inputs))),)
        takes = [[inputs[at] for at in each] for each in (*others, own)]
        self._call_first(node, names, takes, outputs, numbers)
        with b.when(b.compare("icmp ne", begin, i64(0)), unlikely=True):
            emitter.forget()
            flops, touched = self._work(node, fn, [values[at] for at in own])
            name = emitter.module.string(node["label"] or fn.name)
            b.call("tw_profile_end", "void", name, begin, flops, touched)

    def _work(self, node: Node, fn: Callee, taken: Sequence[Place]) -> tuple[Value, Value]:
        """The operations of a kernel, and the bytes it touches."""
        touched = i64(0)
        for value in (*taken, *node.outputs):
            touched = self.b.op("add", touched, self.bytes_of(value))
        given: dict[Var, Expr] = dict(zip(fn.scalars, node["sizes"], strict=True))
        return self.size(sym.substitute(sym.as_expr(node["flops"]), given)), touched

    def _concurrent(self, nodes: Sequence[Node]) -> None:
        """Run kernels as tasks of one region: addresses and sizes are known before it starts."""
        b, module = self.b, self.emitter.module
        given: list[Value] = []
        calls: list[tuple[str, str, int, int]] = []  # callee, label, what it is given: from, to
        for node in nodes:
            fn = self.kernels[node["function"]]
            values = [value for value in node.inputs if value is not None]
            pointers = [self.pointer(value) for value in values]
            pointers += [self.place(value) for value in node.outputs]
            numbers = [self.size(expr) for expr in node["sizes"]]
            label = node["label"] or fn.name
            self._check(node, fn)
            begin = len(given)
            given += [*self._work(node, fn, values), *pointers, *numbers]
            calls.append((self._declared(fn, pointers, numbers), label, begin, len(given)))
        types = [value.type for value in given]
        struct = "{ " + ", ".join(types) + " }"
        environment = b.alloca(struct, align=8, hint="environment")
        for at, value in enumerate(given):
            b.store(value, b.member(struct, environment, at))
        task = f"{self.emitter.name}.concurrent.{len(module.functions)}"
        params = (("ptr noalias readonly", "environment"), ("i64", "begin"), ("i64", "end"))
        with module.function("i32", task, params, linkage="internal") as (t, (own, first, last)):
            for at, (callee, label, begin, end) in enumerate(calls):
                is_taken = t.op(
                    "and",
                    t.compare("icmp sle", first, i64(at)),
                    t.compare("icmp slt", i64(at), last),
                )
                with t.when(is_taken):
                    flops, touched, *args = [
                        t.load(types[k], t.member(struct, own, k)) for k in range(begin, end)
                    ]
                    started = t.call("tw_profile_begin", "i64")
                    code = t.value("i32", f"call i32 {callee}({', '.join(map(str, args))})")
                    with t.when(t.compare("icmp ne", code, i32(0)), unlikely=True):
                        t.ret(code)
                    t.call("tw_profile_end", "void", module.string(label), started, flops, touched)
            t.ret(i32(0))
        count = i64(len(nodes))
        where = Value("ptr", f"@{task}")
        self.emitter.check(b.call("tw_parallel_for", "i32", where, environment, count, i32(0)))

    def _call_first(
        self,
        node: Node,
        names: Sequence[str],
        takes: Sequence[list[Value]],
        outputs: list[Value],
        numbers: list[Value],
    ) -> None:
        """Call the first kernel whose sizes fit; the last one fits any."""
        name, *rest = names
        if not rest:
            self._call_kernel(node, self.kernels[name], [*takes[0], *outputs], numbers)
            return
        size, most = node["limits"][len(node["variants"]) - len(rest)]
        with self.b.branch(self.b.compare("icmp sle", numbers[size], i64(most))) as (small, large):
            with small:
                self._call_kernel(node, self.kernels[name], [*takes[0], *outputs], numbers)
            with large:
                self._call_first(node, rest, takes[1:], outputs, numbers)
        self.emitter.forget()

    def _call_kernel(
        self, node: Node, fn: Callee, pointers: list[Value], numbers: list[Value]
    ) -> None:
        self._check(node, fn)
        site = node.get("site")
        if site is not None:
            self.emitter.check(self._call_site(int(site), pointers, numbers))
            return
        callee = self._declared(fn, pointers, numbers)
        shown = ", ".join(str(value) for value in (*pointers, *numbers))
        self.emitter.check(self.b.value("i32", f"call i32 {callee}({shown})"))

    def _check(self, node: Node, fn: Callee) -> None:
        """End the call where the sizes are not what a kernel requires."""
        given: dict[Var, Expr] = dict(zip(fn.scalars, node["sizes"], strict=True))
        self.emitter.forget()
        requires = tuple([sym.simplify(sym.substitute(cond, given)) for cond in fn.requires])
        check_requirements(self.emitter, node["label"] or fn.name, requires)

    def _declared(self, fn: Callee, pointers: Sequence[Value], numbers: Sequence[Value]) -> str:
        types = ["ptr"] * len(pointers) + ["i64"] * len(numbers)
        return str(self.emitter.module.declare("i32", f"{fn.name}_kernel", types))

    def _call_site(self, site: int, pointers: list[Value], numbers: list[Value]) -> Value:
        """Call the current entry of the table of kernels."""
        b = self.b
        args = b.alloca(f"[{max(1, len(pointers))} x ptr]", align=8, hint="args")
        for at, pointer in enumerate(pointers):
            b.store(pointer, b.offset("ptr", args, i64(at)))
        sizes = b.alloca(f"[{max(1, len(numbers))} x i64]", align=8, hint="sizes")
        for at, number in enumerate(numbers):
            b.store(number, b.offset("i64", sizes, i64(at)))
        weights = b.load("ptr", b.member(CALL, self.call, 0))
        table = b.load("ptr", b.offset("ptr", weights, i64(self.constants[TABLE])))
        code = b.load("ptr", b.offset("ptr", table, i64(2 * site)))
        packed = b.load("ptr", b.offset("ptr", table, i64(2 * site + 1)))
        return b.value("i32", f"call i32 {code.text}({args}, {sizes}, {packed})")

    def _sizes(self, node: Node) -> None:
        """Read sizes from a tensor; absurd ones fail the call."""
        (source,) = node.inputs
        assert source is not None
        for at, size in enumerate(node["sizes"]):
            value = self.element(source, at)
            bad = self.b.compare("icmp ugt", value, i64(MAX_SIZE))
            with self.b.when(bad, unlikely=True):
                label = node["label"].replace("%", "%%")
                self.refuse(f"{label}: the size {size.name} would be %lld", value)
            self.bind(size, value)

    # ------------------------------------------------------------------ foreign parts

    def _foreign(self, node: Node) -> None:
        """Run a part by the callbacks of the call, and read its sizes."""
        b = self.b
        (told,) = node.outputs
        asked = node["sizes"]
        sizes = b.alloca(f"[{max(1, len(asked))} x i64]", align=8, hint="asked")
        for at, size in enumerate(asked):
            b.store(self.size(size), b.offset("i64", sizes, i64(at)))
        inputs = [value for value in node.inputs if value is not None]
        begin = b.call("tw_profile_begin", "i64")
        described = self._described(node, inputs, "inputs")
        part, memory = i32(int(node["part"])), self.place(told)
        self.emitter.check(
            b.call("tw_call_foreign", "i32", self.call, part, *described, sizes, memory)
        )
        with b.when(b.compare("icmp ne", begin, i64(0)), unlikely=True):
            name = self.emitter.module.string(node["label"])
            b.call("tw_profile_end", "void", name, begin, i64(0), i64(0))

    def _fetch(self, node: Node) -> None:
        """The results of the part that ran last."""
        described = self._described(node, node.outputs, "outputs")
        part = i32(int(node["part"]))
        self.emitter.check(self.b.call("tw_call_fetch", "i32", self.call, part, *described))

    def _described(
        self, node: Node, values: Sequence[Place], role: str
    ) -> tuple[Value, Value, Value]:
        """Tensors for callbacks: their signature, addresses, and extents."""
        b = self.b
        params = tuple(
            Param(value.name, value.tensor.dtype, (None,) * len(value.tensor.shape or ()))
            for value in values
        )
        prefix = f"part{node['part']}.{role}"
        signature = emit_signature(self.emitter.module, Signature(node["label"], params), prefix)
        data = b.alloca(f"[{max(1, len(values))} x ptr]", align=8, hint="data")
        dims = [dim for value in values for dim in value.tensor.shape or ()]
        extents = b.alloca(f"[{max(1, len(dims))} x i64]", align=8, hint="extents")
        place = self.place if role == "outputs" else self.pointer
        for at, value in enumerate(values):
            b.store(place(value), b.offset("ptr", data, i64(at)))
        for at, dim in enumerate(dims):
            b.store(self.size(dim), b.offset("i64", extents, i64(at)))
        return signature, data, extents

    # ------------------------------------------------------------------ control flow

    def _if(self, node: Node) -> None:
        self._branches(node, lambda cond: self.b.branch(self.truth(cond)))

    def _switch(self, node: Node) -> None:
        count = len(node.bodies)
        self._branches(node, lambda index: self.b.choose(self.element(index), count))

    def _branches(
        self, node: Node, split: Callable[[Place], AbstractContextManager[Sequence[Arm]]]
    ) -> None:
        """One of the bodies, by the first input."""
        chooser = node.inputs[0]
        assert chooser is not None
        ends = [self._end(value) for value in node.outputs]
        with split(chooser) as arms:
            for arm, body in zip(arms, node.bodies, strict=True):
                for value, result in zip(node.outputs, body.results, strict=True):
                    if value in self.open and result.tensor.shape is None:
                        self.open[result] = self.open[value]
                with arm, self.body():
                    self.graph(body)
                    for end, result in zip(ends, body.results, strict=True):
                        end.set(result)
                    self._leave(body)
        for end in ends:
            end.publish()

    def _end(self, value: Place) -> Carried | Given:
        at = self.open.get(value)
        return Carried(self, value) if at is None else Given(self, at)

    def _loop(self, node: Node) -> None:
        (body,) = node.bodies
        carried = int(node["carried"])
        b = self.b
        limit = self._trip_limit(node)
        counter = b.alloca("i64", align=8, hint="counter")
        b.store(i64(0), counter)
        flag = b.alloca("i8", align=1, hint="going")
        start = node.inputs[1] if len(node.inputs) > 1 else None
        going = i1(True) if start is None else self.truth(start)
        b.store(b.convert("zext", going, "i8"), flag)
        step, alive = body.params[0], body.params[1]
        ends = [Carried(self, value) for value in node.outputs[:carried]]
        for end, value in zip(ends, node.inputs[2 : 2 + carried], strict=True):
            assert value is not None
            end.set(value)
        rows = [Rows(self, value) for value in node.outputs[carried:]]
        step_memory = b.alloca("i64", align=8, hint="step")

        def go_on() -> Value:
            more = b.compare("icmp slt", b.load("i64", counter), limit)
            on = b.compare("icmp ne", b.load("i8", flag), Value("i8", "0"))
            return b.op("and", more, on)

        with b.repeat(go_on), self.body():
            self.pointers[step], self.pointers[alive] = step_memory, flag
            b.store(b.load("i64", counter), step_memory)
            b.store(Value("i8", "1"), flag)
            self._iterate(body, body.params[2 : 2 + carried], ends, rows, counter, 1 + carried)
            on = self.truth(body.results[0])
            self._leave(body)
            b.store(b.convert("zext", on, "i8"), flag)
            b.store(b.op("add", b.load("i64", counter), i64(1)), counter)
        for end in ends:
            end.publish()
        for row in rows:
            row.publish()

    def _trip_limit(self, node: Node) -> Value:
        known, trip = trip_of(node), node.inputs[0]
        if known is not None:
            return self.size(known)
        return i64((1 << 63) - 1) if trip is None else self.element(trip)

    def _scan(self, node: Node) -> None:
        (body,) = node.bodies
        states, inputs = int(node["states"]), int(node["inputs"])
        b = self.b
        ends = [Carried(self, value) for value in node.outputs[:states]]
        for end, value in zip(ends, node.inputs[:states], strict=True):
            assert value is not None
            end.set(value)
        rows = [Rows(self, value) for value in node.outputs[states:]]
        scanned = node.inputs[states : states + inputs]
        first = scanned[0]
        assert first is not None
        limit = self.size((first.tensor.shape or ())[0])
        counter = b.alloca("i64", align=8, hint="counter")
        b.store(i64(0), counter)
        with (
            b.repeat(lambda: b.compare("icmp slt", b.load("i64", counter), limit)),
            self.body(),
        ):
            for param, source in zip(body.params[states : states + inputs], scanned, strict=True):
                assert source is not None
                self.bind_dims(param, [self.size(d) for d in (source.tensor.shape or ())[1:]])
                offset = b.op("mul", b.load("i64", counter), self.bytes_of(param))
                self.pointers[param] = b.offset("i8", self.pointer(source), offset)
            self._iterate(body, body.params[:states], ends, rows, counter, states)
            self._leave(body)
            b.store(b.op("add", b.load("i64", counter), i64(1)), counter)
        for end in ends:
            end.publish()
        for row in rows:
            row.publish()

    def _iterate(
        self,
        body: Graph,
        params: Sequence[Place],
        ends: Sequence[Carried],
        rows: Sequence[Rows],
        counter: Value,
        first_row: int,
    ) -> None:
        """One iteration: carried values in, the body, carried values and rows out."""
        for param, end in zip(params, ends, strict=True):
            end.lend(param)
        self.graph(body)
        results = body.results[first_row - len(ends) : first_row]
        for row, result in zip(rows, body.results[first_row:], strict=True):
            row.add(result, self.b.load("i64", counter))
        given = {self.plan.root(param) for param in params}
        # A result that aliases another carried value is saved before that one changes.
        saved = {
            at: self.saved(result)
            for at, result in enumerate(results)
            if self.plan.root(result) in given and self.plan.root(result) is not params[at]
        }
        for at, (end, result) in enumerate(zip(ends, results, strict=True)):
            if at in saved:
                end.set_from(saved[at], result)
                self.drop(saved[at])
            elif self.plan.root(result) is not params[at]:
                end.set(result)

    def _leave(self, body: Graph) -> None:
        """Free late memory of a body's results."""
        own = {value for node in body.nodes for value in node.outputs}
        for root in dict.fromkeys(self.plan.root(result) for result in body.results):
            if root in own and root in self.plan.late and root in self.pointers:
                self.drop(self.pointers.pop(root))

    # ------------------------------------------------------------------ results

    def copy_results(self, graph: Graph) -> None:
        """Results that were not computed in the caller's memory; those that replace states last."""
        direct = {index: root for root, index in self.plan.outputs.items()}
        count = len(self.model.made)
        states = set(graph.params[len(self.model.given) :])
        left = [(at, each) for at, each in enumerate(graph.results) if at not in direct]
        saved = {  # aliases of other states are read before those are replaced
            at: self.saved(each)
            for at, each in left
            if at >= count and self.plan.root(each) in states - {self.state(at)}
        }
        for at, result in left:
            source = saved[at] if at in saved else self.pointer(result)
            self.copy(self.output(at), source, self.bytes_of(result))
        for memory in saved.values():
            self.drop(memory)


def _at_a_time(nodes: Sequence[Node]) -> list[list[Node]]:
    """Nodes in order, grouped with those concurrent to them."""
    found: list[list[Node]] = []
    for node in nodes:
        if node.get("concurrent", False):
            found[-1].append(node)
        else:
            found.append([node])
    return found


_NODES = {
    "constant": _Host._constant,
    "kernel": _Host._kernel,
    "sizes": _Host._sizes,
    "foreign": _Host._foreign,
    "fetch": _Host._fetch,
    "reshape": _Host._view,
    "require": _Host._view,
    "if": _Host._if,
    "switch": _Host._switch,
    "loop": _Host._loop,
    "scan": _Host._scan,
}
