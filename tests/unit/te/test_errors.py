"""Every refusal of the language, with its exact message and its help."""

import numpy as np
import pytest

from tilewright import te
from tilewright.base.errors import TilewrightError, UserError, UserTypeError
from tilewright.base.loc import File

n, m = te.var("n"), te.var("m")
A = te.placeholder((n, m), name="A")
V = te.placeholder((8,), name="V")
M = te.placeholder((4, 8), name="M")
k = te.reduce_axis((0, 8), name="k")
r = te.reduce_axis((0, m), name="r")
state = te.placeholder((n, 4), name="state")
first = te.compute((1, 4), lambda t, i: 0.0, name="first")
step = te.compute((n, 4), lambda t, i: state[t - 1, i] + 1.0, name="step")
total = te.compute((4,), lambda i: te.sum(M[i, k], axis=k), name="total")


def foreign():
    leaked = []
    te.compute((4,), lambda i: leaked.append(i) or 0.0)
    return te.compute((4,), lambda j: V[leaked[0]], name="B")


def scan_of(**changes):
    return te.scan(**{"init": first, "update": step, "state_placeholder": state, **changes})


def update_reading(read):
    return te.compute((n, 4), lambda t, i: read(t, i) + 1.0, name="step")


def inside(shape, element, reader):
    """A stage between the state and the update."""
    between = te.compute(shape, element, name="between")
    return te.compute((n, 4), lambda t, i: reader(between, t, i), name="step")


def extern(**changes):
    given = {"shape": (8,), "inputs": [V], "fcompute": "kernel", "name": "E", **changes}
    return te.extern(**given)


def lowering(result):
    return te.decl_tensor_intrin(total.op, lambda inputs, outputs: result)


CASES = {
    # names and shapes
    "name": (
        lambda: te.placeholder((4,), name=""),
        "TW2401",
        "a name must be a non-empty string, got ''",
        "",
    ),
    "float dimension": (
        lambda: te.placeholder((4.0,), name="A"),
        "TW2402",
        "a dimension of A takes integers and sizes, got 4.0",
        "",
    ),
    "negative dimension": (
        lambda: te.placeholder((4, -1), name="A"),
        "TW2402",
        "a dimension of A is -1, below zero",
        "",
    ),
    "scalar dimension": (
        lambda: te.placeholder((te.var("n", "int32"),), name="A"),
        "TW2402",
        "a dimension of A takes integers and sizes, got %n of type i32",
        'declare the size as te.var("n")',
    ),
    "axis as dimension": (
        lambda: te.compute((4,), lambda i: te.sum(M[i, k], axis=te.reduce_axis((0, i))), name="B"),
        "TW2402",
        "reduce_axis depends on the variable %i",
        "it may depend on sizes and constants only",
    ),
    "data as dimension": (
        lambda: te.placeholder((te.cast(V[0], "index"),), name="B"),
        "TW2402",
        "a dimension of B depends on V[0], which is computed at run time",
        "it may depend on sizes and constants only",
    ),
    # reading
    "rank": (
        lambda: A[n],
        "TW2404",
        "A has 2 dimensions, indexed with 1",
        "its shape is (n, m)",
    ),
    "rank of a vector": (
        lambda: V[1, 2],
        "TW2404",
        "V has 1 dimension, indexed with 2",
        "its shape is (8)",
    ),
    "float index": (
        lambda: V[1.5],
        "TW2405",
        "index 0 of V is 1.5",
        "an index is an integer, an axis or an integer expression",
    ),
    "slice": (
        lambda: V[1:3],
        "TW2405",
        "index 0 of V is slice(1, 3, None)",
        "an index is an integer, an axis or an integer expression",
    ),
    "float expression as index": (
        lambda: V[V[0]],
        "TW2405",
        "index 0 of V is V[0] of type f32",
        "an index is an integer, an axis or an integer expression",
    ),
    "tensor as value": (
        lambda: te.exp(M),
        "TW2405",
        "M is a tensor of 2 dimensions, not a value",
        "read an element: M[i, j]",
    ),
    "negative index": (
        lambda: A[0, -1],
        "TW2406",
        "index 1 of A is -1: negative indices do not count from the end",
        "write A.shape[1] - 1",
    ),
    # axes
    "domain": (
        lambda: te.reduce_axis(8),
        "TW2407",
        "reduce_axis takes a pair (start, stop), got 8",
        "write (0, n)",
    ),
    "backwards": (
        lambda: te.reduce_axis((4, 2), name="k"),
        "TW2407",
        "reduce axis k runs from 4 to 2, backwards",
        "",
    ),
    "thread without tag": (
        lambda: te.thread_axis((0, 4)),
        "TW2407",
        "a thread axis needs a tag such as threadIdx.x",
        "",
    ),
    # values and conditions
    "not a value": (
        lambda: te.exp("x"),
        "TW2408",
        "cannot use str as a value",
        "",
    ),
    "no infinity": (lambda: te.infinity("int8"), "TW2408", "i8 has no infinity", ""),
    "python condition": (
        lambda: te.if_then_else(n == 0, 1.0, 0.0),
        "TW2409",
        "the condition of te.if_then_else is the Python value False, not an expression",
        "`==` and `!=` compare objects: write te.eq(a, b) or te.ne(a, b)",
    ),
    "integer condition": (
        lambda: te.all(n, n > 0),
        "TW2409",
        "a condition of te.all has type index, not bool",
        "compare it: te.ne(x, 0), x > 0",
    ),
    "no condition": (te.any, "TW2409", "te.any needs at least one condition", ""),
    # reductions
    "not an axis": (
        lambda: te.sum(V[0], axis=[n]),
        "TW2410",
        "te.sum reduces over n, which is not a reduce axis",
        "make one: k = te.reduce_axis((0, n), name='k')",
    ),
    "no axis": (
        lambda: te.sum(V[0], axis=[]),
        "TW2410",
        "te.sum needs at least one axis",
        "",
    ),
    "axis twice": (
        lambda: te.sum(V[k], axis=[k, k]),
        "TW2410",
        "te.sum reduces over %k twice",
        "",
    ),
    "axis reduced inside": (
        lambda: te.max(te.sum(V[k], axis=k), axis=k),
        "TW2410",
        "te.max reduces over %k, which a reduction inside it has used",
        "give each reduction an axis of its own",
    ),
    "argmax without an axis": (
        lambda: te.argmax(V[0], axis=3),
        "TW2410",
        "te.argmax reduces over 3, which is not a reduce axis",
        "make one: k = te.reduce_axis((0, n), name='k')",
    ),
    "number of inits": (
        lambda: te.sum(V[k], axis=k, init=(0.0, 1.0)),
        "TW2410",
        "te.sum reduces 1 values but init gives 2",
        "",
    ),
    "type of init": (
        lambda: te.sum(V[k], axis=k, init=te.const(0, "int32")),
        "TW2410",
        "init of te.sum has type i32, its values f32",
        "",
    ),
    "number of values": (
        lambda: te.sum((V[k], V[k]), axis=k),
        "TW2410",
        "te.sum reduces 1 values, got 2",
        "",
    ),
    "booleans": (
        lambda: te.max(V[k] > 0.0, axis=k),
        "TW2410",
        "te.max does not take bool",
        "cast to an integer type first",
    ),
    "types to combine": (
        lambda: te.max(V[0], te.const(0, "int32")),
        "TW2410",
        "te.max combines values of types f32, i32",
        "insert a cast: te.cast(x, dtype)",
    ),
    "tuples to combine": (
        lambda: te.max((V[0], V[1]), 3),
        "TW2410",
        "te.max of tuples needs an axis",
        "",
    ),
    "values of fcombine": (
        lambda: te.comm_reducer(lambda x, y: (x, y), lambda t: te.const(0, t), "own")(V[k], axis=k),
        "TW2411",
        "fcombine of reduction own gives 2 values for 1",
        "",
    ),
    "type of fidentity": (
        lambda: te.comm_reducer(lambda x, y: x + y, lambda t: te.const(0, "i8"), "own")(
            V[k], axis=k
        ),
        "TW2411",
        "fidentity of reduction own gives 0 of type i8, expected f32",
        "",
    ),
    "closed": (
        lambda: te.comm_reducer(lambda x, y: x + V[0], lambda t: te.const(0, t), "own")(
            V[k], axis=k
        ),
        "TW2411",
        "reduction own uses V[0]",
        "a combination may use its operands and constants only",
    ),
    # computations
    "nothing": (
        lambda: te.compute((4,), lambda i: None, name="B"),
        "TW2412",
        "B computes None",
        "does the function end in a return?",
    ),
    "empty tuple": (
        lambda: te.compute((4,), lambda i: (), name="B"),
        "TW2412",
        "B computes no value",
        "return an expression",
    ),
    "arguments": (
        lambda: te.compute((4, 4), lambda i: 0.0, name="B"),
        "TW2413",
        "B has 2 dimensions, its function takes 1 arguments",
        "one argument per dimension, or *i for any number",
    ),
    "at least": (
        lambda: te.compute((4,), lambda i, j, *rest: 0.0, name="B"),
        "TW2413",
        "B has 1 dimensions, its function takes at least 2 arguments",
        "one argument per dimension, or *i for any number",
    ),
    "unbound axis": (
        lambda: te.compute((4,), lambda i: M[i, k], name="B"),
        "TW2414",
        "B uses reduce axis %k outside of a reduction over it",
        "write te.sum(..., axis=k), or another reduction",
    ),
    "foreign axis": (
        foreign,
        "TW2414",
        "B uses %i, an axis of another computation",
        "use the arguments of this computation's function",
    ),
    # scans
    "scan of a number": (
        lambda: scan_of(init=0.0),
        "TW2415",
        "init of a scan holds float, not a tensor",
        "",
    ),
    "scan of unequal lists": (
        lambda: scan_of(init=[first, first]),
        "TW2415",
        "a scan takes one init, update and placeholder per state, got 2, 1 and 1",
        "",
    ),
    "scan of a computed state": (
        lambda: scan_of(state_placeholder=step),
        "TW2415",
        "the state step is not a placeholder",
        "",
    ),
    "scan of a placeholder update": (
        lambda: scan_of(update=state),
        "TW2415",
        "the update state is not a te.compute",
        "",
    ),
    "scan of another type": (
        lambda: scan_of(init=te.compute((1, 4), lambda t, i: 0, name="first")),
        "TW2415",
        "first has type i32, the state state f32",
        "",
    ),
    "scan of another rank": (
        lambda: scan_of(init=te.compute((4,), lambda i: 0.0, name="first")),
        "TW2415",
        "first has 1 dimensions, the state state 2",
        "all have the time as first dimension",
    ),
    "scan of another shape": (
        lambda: scan_of(init=te.compute((1, 5), lambda t, i: 0.0, name="first")),
        "TW2415",
        "dimension 1 of first is 5, expected 4",
        "",
    ),
    "scan without a first step": (
        lambda: scan_of(init=te.compute((0, 4), lambda t, i: 0.0, name="first")),
        "TW2415",
        "first gives no step",
        "a scan starts from at least one",
    ),
    "scan shorter than its init": (
        lambda: te.function(
            [
                te.scan(
                    te.compute((3,), lambda t: 0.0),
                    te.compute((2,), lambda t: short[t - 1]),
                    short,
                )
            ]
        ),
        "TW2415",
        "scan has 2 steps, its init gives 3",
        "",
    ),
    "state among the inputs": (
        lambda: scan_of(inputs=[state]),
        "TW2415",
        "state is a state, not an input of the scan",
        "",
    ),
    "one update for two states": (
        lambda: te.scan([first, first], [step, step], [state, other]),
        "TW2415",
        "step is the update of two states",
        "",
    ),
    "reading the present": (
        lambda: scan_of(update=update_reading(lambda t, i: state[t, i])),
        "TW2416",
        "step reads state[%t, %i]: not certainly a step before %t",
        "read the state at t - 1, or at a step further back",
    ),
    "reading a stage inside at another time": (
        lambda: scan_of(
            update=inside((n, 4), lambda t, i: state[t - 1, i] * 2.0, lambda s, t, i: s[t - 1, i])
        ),
        "TW2416",
        "step reads between[%t - 1, %i]: a stage inside a scan can be read only at %t",
        "",
    ),
    "a stage inside without time": (
        lambda: scan_of(update=inside((4,), lambda i: state[0, i] * 2.0, lambda s, t, i: s[i])),
        "TW2416",
        "between depends on the state of scan but its first dimension is not the time, of extent n",
        "",
    ),
    "an external kernel inside": (
        lambda: scan_of(
            update=te.compute(
                (n, 4), lambda t, i: te.extern((n, 4), [state], "f", name="E")[t, i], name="step"
            )
        ),
        "TW2416",
        "E depends on the state of scan and is not a te.compute",
        "",
    ),
    # external kernels
    "input of an extern": (
        lambda: extern(inputs=[3]),
        "TW2418",
        "E has the input 3, not a tensor",
        "",
    ),
    "symbol": (
        lambda: extern(fcompute="no kernel"),
        "TW2418",
        "'no kernel' is not the name of a kernel",
        "",
    ),
    "type of an extern": (
        lambda: extern(inputs=[V, te.placeholder((1,), "int8")]),
        "TW2418",
        "the type of E does not follow from its inputs",
        'pass dtype="f32" or another',
    ),
    "types of an extern": (
        lambda: extern(dtype=["f32", "f32"]),
        "TW2418",
        "E has 1 outputs and 2 types",
        "",
    ),
    "statement of an extern": (
        lambda: extern(fcompute=lambda ins, outs: None),
        "TW2418",
        "the function of E returns NoneType, not a statement",
        "return te.call_packed(symbol, *ins, *outs)",
    ),
    "output not written": (
        lambda: extern(fcompute=lambda ins, outs: te.call_packed("f", ins[0], ins[0])),
        "TW2418",
        "the statement of E does not write E",
        "",
    ),
    "input written": (
        lambda: extern(fcompute=lambda ins, outs: te.call_packed("f", ins[0], outs[0], outputs=2)),
        "TW2418",
        "the statement of E writes its input V",
        "",
    ),
    "argument of call_packed": (
        lambda: te.call_packed("f", V),
        "TW2418",
        "f is called with Tensor, not a buffer",
        "pass the ins and outs that the function was given",
    ),
    "behavior without a symbol": (
        lambda: extern(fcompute=lambda ins, outs: None, behavior=np.copyto),
        "TW2418",
        "E has a behavior but names no symbol",
        "",
    ),
    "access mask": (
        lambda: te.decl_tensor_intrin(total.op, lambda ins, outs: ins[0].access_ptr("x")),
        "TW2418",
        "access_ptr takes r, w or rw, got 'x'",
        "",
    ),
    # intrinsics
    "intrinsic by placeholder": (
        lambda: te.decl_tensor_intrin(V.op, lambda ins, outs: None),
        "TW2419",
        "a tensor intrinsic is declared by a te.compute, not by PlaceholderOp",
        "pass the operation of a computed tensor: y.op",
    ),
    "intrinsic of a computed input": (
        lambda: te.decl_tensor_intrin(
            te.compute((4,), lambda i: total[i] * 2.0).op, lambda ins, outs: None
        ),
        "TW2419",
        "the intrinsic reads total, which is computed",
        "its inputs must be placeholders",
    ),
    "intrinsic of a symbolic shape": (
        lambda: te.decl_tensor_intrin(
            te.compute((n, m), lambda i, j: A[i, j]).op, lambda ins, outs: None
        ),
        "TW2419",
        "A of the intrinsic has a symbolic shape",
        "a tile has constant dimensions",
    ),
    "two phases": (
        lambda: lowering((te.const(1), te.const(1))),
        "TW2419",
        "the lowering of total returns 2 statements",
        "return one, or (compute, reset, update)",
    ),
    "phases without a reduction": (
        lambda: te.decl_tensor_intrin(
            te.compute((8,), lambda i: V[i], name="copy").op, lambda ins, outs: (None, None, None)
        ),
        "TW2419",
        "the lowering of copy returns reset and update, but copy reduces nothing",
        "return one statement",
    ),
    "not a statement": (
        lambda: lowering("gemm"),
        "TW2419",
        "the lowering of total returns str, not a statement",
        "return te.hardware_intrin(name, *pointers)",
    ),
    # functions
    "no list": (
        lambda: te.function(V),
        "TW2422",
        "te.function takes a list of arguments, got <Tensor V: f32[8]>",
        "",
    ),
    "not a tensor": (
        lambda: te.function([V, 3]),
        "TW2422",
        "argument 1 is 3, neither a tensor nor a te.var",
        "",
    ),
    "twice": (
        lambda: te.function([M, M, total]),
        "TW2422",
        "argument 1 is M, which is given twice",
        "",
    ),
    "nothing computed": (
        lambda: te.function([M, V]),
        "TW2422",
        "no argument is a computed tensor",
        "pass the results, too",
    ),
    "missing placeholder": (
        lambda: te.function([total]),
        "TW2423",
        "total reads the placeholder M, which is not an argument",
        "pass it: te.function([M, ...])",
    ),
    "state outside": (
        lambda: te.function([scan_of(), step]),
        "TW2423",
        "step reads state, the state of scan, from outside of the scan",
        "read the scan's result instead",
    ),
    "missing size": (
        lambda: te.function([te.compute((4,), lambda i: te.cast(n, "f32"), name="B")]),
        "TW2424",
        "size n is not a dimension of any argument",
        "pass it as an argument: te.function([n, ...])",
    ),
    "size hidden in a sum": (
        lambda: te.function([te.compute((n + 1,), lambda i: 0.0, name="B")]),
        "TW2424",
        "size n is not a dimension of any argument",
        "pass it as an argument: te.function([n, ...])",
    ),
    "missing scalar": (
        lambda: te.function([te.compute((4,), lambda i: te.var("alpha", "f32"), name="B")]),
        "TW2424",
        "the scalar %alpha is used but is not an argument",
        "pass it: te.function([alpha, ...])",
    ),
}
short = te.placeholder((2,), name="short")
other = te.placeholder((n, 4), name="other")


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_refusal(case):
    request, code, message, help = case
    with pytest.raises(TilewrightError) as caught:
        request()
    error = caught.value
    assert isinstance(error, (UserError, UserTypeError))
    assert (error.code, error.message, error.help) == (code, message, help)
    assert isinstance(error.loc, File)
    assert error.loc.path.endswith("test_errors.py")


def test_a_refusal_in_full():
    B = te.placeholder((8,), name="B")
    C = te.compute((8,), lambda i: B[i + 1], name="C")
    with pytest.raises(UserError) as caught:
        te.function([B, C])
    path, line = C.op.loc.path, C.op.loc.line
    assert str(caught.value) == (
        "error[TW2420]: C reads outside B: index 0 of B[i + 1] runs from 1 to 8, the "
        "dimension has extent 8\n"
        f"  --> {path}:{line}\n"
        "help: guard the read: te.if_then_else(te.all(i + 1 >= 0, i + 1 < 8), ..., 0)"
    )
