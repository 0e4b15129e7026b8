"""Operators from te through schedule, tensorize and tokens to streams: equal to the interpreter."""

from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tilewright.accel.compiler import LOWER_ACCEL, compile_function, finish, lower
from tilewright.accel.compiler.fold import Address, Folder
from tilewright.accel.compiler.tokens import insert_tokens
from tilewright.accel.cycle import cycles
from tilewright.accel.device import run_on
from tilewright.accel.intrin import FACTOR_MAX, blend_passes
from tilewright.accel.isa.stream import Buffer, Instruction
from tilewright.accel.isa.table import FIELD_INDEX, QUEUES
from tilewright.accel.isa.text import parse
from tilewright.accel.operators import (
    Axis,
    Blend,
    Conv,
    Copy,
    Residual,
    Windows,
    blend,
    conv,
    copy,
    windows,
)
from tilewright.accel.rules import schedule
from tilewright.accel.simulate import simulate
from tilewright.accel.verify import verify
from tilewright.base.errors import ExecutionError, ScheduleError, UserError
from tilewright.base.geometry import Geometry
from tilewright.base.passes import PassContext, run_passes
from tilewright.base.target import Target
from tilewright.rules.rule import Choice
from tilewright.tensor import Schedule

TARGETS = {
    "1x16x16": "vta-sim",
    "1x4x4": "vta-sim -geometry=1x4x4 -inp=2K -wgt=8K -acc=4K -uop=4K",
    "1x8x16": "vta-sim -geometry=1x8x16 -inp=8K -wgt=64K -acc=32K",
    "2x16x16": "vta-sim -geometry=2x16x16",
}
VTA = Target.parse("vta-sim")
SMALL = Conv(1, 1, 2, 2, Axis(9, 3, 1, 1, 1), Axis(9, 3, 1, 1, 1), 3)


def shape_of(fn_buffer):
    return [int(dim.value) for dim in fn_buffer.shape]


def inputs_of(fn, random):
    """Arrays for all parameters but the last; parameters of requantization are per channel."""
    found = []
    for buffer in fn.buffers[:-1]:
        shape = shape_of(buffer)
        if buffer.name != "q":
            found.append(random.integers(-128, 128, shape).astype(np.int8))
            continue
        blocks, _, batch, out = shape
        rows = [
            np.broadcast_to(random.integers(low, high, (blocks, 1, out)), (blocks, batch, out))
            for low, high in ((-100, 100), (1 << 20, 1 << 22), (26, 36))
        ]
        found.append(np.ascontiguousarray(np.stack(rows, 1).astype(np.int32)))
    return found


def check(fn, target, seed=0, choice=None):
    """Schedule, compile, verify and simulate an operator; equal to the interpreter's answer."""
    chosen = Target.parse(target)
    sch, log = schedule(fn, chosen, choice)
    stream = compile_function(sch.function, chosen)
    verify(stream)
    args = inputs_of(fn, np.random.default_rng(seed))
    want = np.zeros(shape_of(fn.buffers[-1]), np.int8)
    tw.build(fn)(*args, want)
    names = [buffer.name for buffer in fn.buffers]
    made = simulate(stream, dict(zip(names, args, strict=False)))["y"]
    np.testing.assert_array_equal(np.asarray(made).view(np.int8).reshape(want.shape), want)
    return stream, log


def random_axis(random, size):
    while True:
        axis = Axis(
            size,
            int(random.choice([1, 1, 2, 3, 3, 5])),
            int(random.choice([1, 1, 2, 3])),
            int(random.integers(0, 4)),
            int(random.integers(0, 4)),
            int(random.choice([1, 1, 2])),
            bool(random.integers(0, 2)),
        )
        if size + axis.front + axis.behind >= axis.reach:
            return axis


def random_operator(random, geometry):
    """Odd sizes, strides, dilations, pads, zero points that are not 0."""
    rows, columns = (random_axis(random, int(random.integers(1, 12))) for _ in range(2))
    low, high = int(random.choice([-128, 0])), int(random.choice([127, 100]))
    limits = (int(random.integers(-10, 11)), low, high)
    few = [int(random.integers(1, 4)) for _ in range(4)]
    zero = int(random.integers(-128, 128))
    kind = random.choice(["conv", "conv", "mac", "max", "blend"])
    if kind == "conv":
        images, groups = min(few[0], 2), min(few[1], 2)
        return conv(Conv(images, groups, few[2], few[3], rows, columns, zero, limits), geometry)
    if kind == "blend":
        a, b = (int(one) for one in random.integers(-9999, 9999, 2) >> random.choice([0, 7]))
        return blend(Blend(int(random.integers(1, 200)), a, b, limits), geometry)
    pad = -128 if kind == "max" else zero
    return windows(Windows(min(few[0], 2), few[1], rows, columns, kind, pad, limits), geometry)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("seed", range(2))  # `make test-accel` has many more
def test_random_operators(name, seed):
    random = np.random.default_rng([seed, *name.encode()])
    geometry = Target.parse(TARGETS[name]).geometry
    check(random_operator(random, geometry), TARGETS[name], seed)


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("hold", ["none", "weights", "image"])
def test_every_way_to_hold_operands(hold, slots):
    plan = f"rows=5 columns=5 outs=1 ins=1 hold={hold} slots={slots}"
    check(conv(SMALL, Geometry()), "vta-sim", choice=Choice("vta_conv", plan))


def test_banks_of_a_residual_sum_divide_accumulators_whatever_the_slots():
    few, enough = (Target.parse(f"vta-sim -acc={size}") for size in ("2K", "4K"))
    fn = conv(replace(SMALL, residual=Residual(3, 4)), few.geometry)
    with pytest.raises(ScheduleError, match="no plan of this rule serves it"):
        schedule(fn, few)
    verify(compile_function(schedule(fn, enough)[0].function, enough))


def test_a_sum_of_two_tensors():
    check(blend(Blend(70, 3, -4), Geometry()), "vta-sim")


@pytest.mark.parametrize(
    ("a", "b", "count"),
    [(3, -4, 2), (127, -127, 2), (128, 3, 3), (256, -384, 3), (5376, 7493, 4), (4111, 9013, 5),
     (FACTOR_MAX, -FACTOR_MAX, 5), (-64, 191, 4)],
)  # fmt: skip
def test_factors_of_a_sum_are_multiplied_by_bytes(a, b, count):
    """Passes, run one after the other, give the sum exactly; their number is what plans count."""
    x, y = (one.ravel() for one in np.meshgrid(*[np.arange(-128, 128)] * 2))
    operands = [x, y, np.full_like(x, 99)]  # what was in the accumulators before
    passes = blend_passes(a, b)
    for fn, at, value in passes:
        if fn == "shift":
            operands[2] = operands[at] << -value
            continue
        assert value in range(256)
        product = operands[at] * np.uint8(value).view(np.int8).astype(np.int64)
        operands[2] = product + (operands[2] if fn == "mac" else 0)
    np.testing.assert_array_equal(operands[2], x * a + y * b)
    stream, _ = check(blend(Blend(70, a, b), Geometry()), "vta-sim")
    tiles = sum(task.op == "store" for task in stream.instructions)
    assert sum(task.op == "alu" for task in stream.instructions) == tiles * (count + 1)
    assert len(passes) == count


@pytest.mark.parametrize(("rows", "width", "at"), [(1, 70, 0), (5, 70, 0), (5, 100, 13)])
def test_copies_into_another_tensor_and_scale(rows, width, at):
    shape = Copy(rows, 70, width, at, (3, -100, 90))
    fn, target, random = copy(shape, Geometry()), Target.parse("vta-sim"), np.random.default_rng(1)
    want = np.full(shape_of(fn.buffers[-1]), 77, np.int8)
    x, q = inputs_of(fn, random)
    tw.interpret(fn, x, q, want)
    assert (np.delete(want, np.s_[at : at + 70], 3) == 77).all()  # what is not written stays
    stream = compile_function(schedule(fn, target)[0].function, target)
    verify(stream)
    made = run_on("cycle", stream, {"x": x, "q": q}).outputs["y"].reshape(want.shape)
    part = np.s_[:, :, :, at : at + 70]
    np.testing.assert_array_equal(made[part], want[part])


def test_every_pass_keeps_the_answer():
    fn = conv(replace(SMALL, in_blocks=1, out_blocks=1), Target.parse(TARGETS["1x4x4"]).geometry)
    target = Target.parse(TARGETS["1x4x4"])
    args = inputs_of(fn, np.random.default_rng(0))
    want = np.zeros(shape_of(fn.buffers[-1]), np.int8)
    tw.interpret(fn, *args, want)
    program = schedule(fn, target)[0].function
    for step in (None, *LOWER_ACCEL):
        if step is not None:
            program = run_passes(program, (step,), PassContext(target=target))
        made = np.zeros_like(want)
        tw.interpret(program, *args, made)
        np.testing.assert_array_equal(made, want, err_msg=str(step))


def test_3x3_layers_reach_nine_tenths_of_the_peak():
    layer = Conv(1, 1, 4, 4, Axis(28, 3, 1, 1, 1), Axis(28, 3, 1, 1, 1))
    sch, log = schedule(conv(layer, VTA.geometry), VTA)
    timing = cycles(compile_function(sch.function, VTA))
    assert timing.share_of_peak > 0.9
    predicted = sum(log.decisions[0].terms.values())
    assert abs(predicted - timing.total) < 0.05 * timing.total


def test_slots_hide_latency():
    fn = conv(Conv(1, 1, 2, 2, Axis(14, 3, 1, 1, 1), Axis(14, 3, 1, 1, 1)), VTA.geometry)
    decided = schedule(fn, VTA)[1].decisions[0]
    plans = [decided.plan, decided.plan.replace("slots=2", "slots=1")]
    made = [schedule(fn, VTA, Choice(decided.rule, plan))[0].function for plan in plans]
    with_slots, alone = (cycles(compile_function(one, VTA)).total for one in made)
    assert with_slots < 0.9 * alone


def test_virtual_threads_hide_latency():
    """Two tiles at a time, interleaved: what one waits for, the other one does not."""
    fn = conv(Conv(1, 1, 2, 2, Axis(14), Axis(14)), VTA.geometry)
    plan = Choice("vta_conv", "rows=7 columns=7 outs=1 ins=1 hold=none slots=1")
    alone = schedule(fn, VTA, plan)[0].function
    threaded = Schedule(alone)
    threaded.bind(threaded.get_loops(threaded.get_block("y"))[4], "vthread")
    streams = [compile_function(one, VTA) for one in (alone, threaded.function)]
    names = [buffer.name for buffer in fn.buffers]
    args = dict(zip(names, inputs_of(fn, np.random.default_rng(0)), strict=False))
    results = []
    for stream in streams:
        verify(stream)
        results.append(simulate(stream, args)["y"])
    np.testing.assert_array_equal(*results)
    without, together = (cycles(stream).total for stream in streams)
    assert together < 0.85 * without


def test_gemm_waits_for_all_that_the_alu_does_in_its_bank():
    """Between the two tasks of the ALU it would take the bank that the second one needs."""
    stream = parse(f"""target "{TARGETS["1x4x4"]}"
        buffer x: in 4 buffer w: in 16 buffer y: out 16 buffer code: uop 8 uop
        aux fmt=uop base=code load fmt=inp base=x load fmt=wgt base=w
        gemm uend=1 init=1
        alu uend=1 dst0=1 imm=1 value=3
        alu uend=1 dst0=2 src0=1 imm=1 value=4
        gemm uend=1 init=1
        store fmt=acc base=y sram=2
        finish""")
    made = insert_tokens(stream)
    verify(made)
    first, second = (task for task in made.instructions if task.op == "alu")
    assert (QUEUES.index("gemm") in first.pushes(), QUEUES.index("gemm") in second.pushes()) == (
        False,
        True,
    )


def loads_before_steps(count):
    """All loads before all steps that need them: tokens of as many tasks ahead."""
    loads = "".join(f"aux fmt=acc base=x offset={64 * at} sram={at}\n" for at in range(count))
    steps = "".join(f"alu uend=1 imm=1 src0={at} dst0={at}\n" for at in range(count))
    return parse(f"""target "vta-sim"
        buffer x: in {64 * count} buffer y: out 64 buffer code: uop 8 uop
        aux fmt=uop base=code
        {loads} {steps}
        store fmt=acc base=y
        finish""")


def test_tokens_that_no_counter_holds_are_refused_while_compiling():
    verify(insert_tokens(loads_before_steps(255)))
    with pytest.raises(ExecutionError, match="256 tokens ahead") as caught:
        insert_tokens(loads_before_steps(256))
    assert caught.value.code == "TW7012"


def test_tokens_are_counted_as_the_verifier_counts_them():
    """A queue that waits for another now and then is never that far ahead."""
    stream = loads_before_steps(255)
    verify(insert_tokens(stream, rounds=5))
    tasks = list(stream.instructions)
    doubled = replace(stream, instructions=(*tasks[:-2], *tasks[1:]))
    verify(insert_tokens(doubled))


def test_no_token_is_superfluous():
    """Every pair of a push and the pop that meets it is needed: without it there is a race."""
    stream = compile_function(schedule(conv(SMALL, VTA.geometry), VTA)[0].function, VTA)
    verify(stream)
    pairs = 0
    for source in range(len(QUEUES)):
        for target in range(len(QUEUES)):
            pushes = _holding(stream, "push", source, target)
            pops = _holding(stream, "pop", target, source)
            assert len(pushes) == len(pops)
            for push, pop in zip(pushes, pops, strict=True):
                tasks = list(stream.instructions)
                tasks[push] = _without(tasks[push], "push", target)
                tasks[pop] = _without(tasks[pop], "pop", source)
                with pytest.raises(ExecutionError):
                    verify(replace(stream, instructions=tuple(tasks)))
                pairs += 1
    assert pairs > 10


def _holding(stream, field, own, other):
    return [
        number
        for number, task in enumerate(stream.instructions)
        if task.queue == own and task[field] >> other & 1
    ]


def _without(task, field, queue):
    values = list(task.values)
    values[FIELD_INDEX[task.op][field]] &= ~(1 << queue)
    return Instruction(task.op, tuple(values))


def test_microcode_that_does_not_fit_is_loaded_again():
    target = Target.parse("vta-sim -uop=128")
    folder = Folder(target.geometry)
    assert target.geometry.depths()["uop"] == 16
    sizes = [0] * 4
    for taps in ((2, 2), (2, 3), (3, 2), (2, 4)):
        rows, columns = (Axis(9, kernel) for kernel in taps)
        fn = conv(Conv(1, 1, 2, 2, rows, columns), target.geometry)
        plan = f"rows={rows.out} columns={columns.out} outs=2 ins=2 hold=none slots=2"
        made = lower(schedule(fn, target, Choice("vta_conv", plan))[0].function, target)
        folder.add(made, {buffer: Address(at) for at, buffer in enumerate(made.buffers)})
        for at, buffer in enumerate(made.buffers):
            size = int(np.prod(shape_of(buffer))) * buffer.dtype.size_bytes
            sizes[at] = max(sizes[at], size)
    roles = ("in", "in", "in", "out")
    buffers = [Buffer(f"b{at}", role, sizes[at]) for at, role in enumerate(roles)]
    stream = finish(folder, buffers)
    verify(stream)
    loads = [one for one in stream.instructions if one.op == "aux" and one.format.name == "uop"]
    assert len(loads) > 1


def test_what_does_not_fit_is_told_by_how_much():
    fn = conv(SMALL, VTA.geometry)
    program = schedule(fn, VTA)[0].function
    small = Target.parse("vta-sim -wgt=4K")
    with pytest.raises(ScheduleError, match=r"entries of vta.wgt at a time, \d+ more") as caught:
        compile_function(program, small)
    assert caught.value.code == "TW7040"


def test_entries_of_another_shape_are_refused():
    program = schedule(conv(SMALL, VTA.geometry), VTA)[0].function
    with pytest.raises(ScheduleError) as caught:
        compile_function(program, Target.parse("vta-sim -geometry=1x8x16"))
    assert caught.value.code == "TW7041"


def test_what_is_no_instruction_is_refused():
    with pytest.raises(ScheduleError) as caught:
        compile_function(conv(SMALL, VTA.geometry), VTA)
    assert caught.value.code == "TW7042"


def test_an_operator_that_no_plan_fits_is_refused():
    tall = Axis(400, 400, 1)
    with pytest.raises(ScheduleError) as caught:
        schedule(windows(Windows(1, 1, tall, Axis(64, 64), "mac"), VTA.geometry), VTA)
    assert caught.value.code == "TW7043"


def test_a_plan_of_no_such_fields_is_refused():
    with pytest.raises(UserError):
        check(conv(SMALL, VTA.geometry), "vta-sim", choice=Choice("vta_conv", "rows=1"))


@pytest.mark.fuzz
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("seed", range(500))
def test_many_random_operators(name, seed):
    random = np.random.default_rng([1, seed, *name.encode()])
    check(random_operator(random, Target.parse(TARGETS[name]).geometry), TARGETS[name], seed)
