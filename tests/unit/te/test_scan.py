"""Scans: recurrences over the first dimension."""

import textwrap

from tilewright import te, tensor
from tilewright.tensor.verify import verify


def text_of(args, name="f"):
    fn = te.function(args, name=name)
    verify(fn)
    assert tensor.parse(str(fn)) == fn
    return str(fn)


def same(given, wanted):
    assert given.strip() == textwrap.dedent(wanted).strip()


def running_sum(m, n):
    X = te.placeholder((m, n), name="X")
    state = te.placeholder((m, n), name="state")
    init = te.compute((1, n), lambda _, i: X[0, i], name="first")
    update = te.compute((m, n), lambda t, i: state[t - 1, i] + X[t, i], name="step")
    return X, te.scan(init, update, state, inputs=[X], name="total")


def test_a_running_sum():
    m, n = te.var("m"), te.var("n")
    X, total = running_sum(m, n)
    assert total.shape == (m, n)
    same(
        text_of([X, total]),
        """
        func @f(%X: f32[m, n], %total: f32[m, n]) stage scheduled {
          require 1 <= m
          for %_ in 0..1 {
            for %i in 0..n {
              block @first(%v_: spatial 1 = %_, %vi: spatial n = %i) {
                reads %X[0, %vi]
                writes %total[%v_, %vi]
                %total[%v_, %vi] = %X[0, %vi]
              }
            }
          }
          for %t in 0..m - 1 {
            for %i_1 in 0..n {
              block @step(%vt: scan m - 1 = %t, %vi_1: spatial n = %i_1) {
                reads %total[%vt, %vi_1], %X[%vt + 1, %vi_1]
                writes %total[%vt + 1, %vi_1]
                %total[%vt + 1, %vi_1] = %total[%vt, %vi_1] + %X[%vt + 1, %vi_1]
              }
            }
          }
        }
        """,
    )


def test_stages_between_the_state_and_the_update_run_in_the_same_loop():
    m, n = te.var("m"), te.var("n")
    X = te.placeholder((m, n), name="X")
    state = te.placeholder((m, n), name="state")
    init = te.compute((1, n), lambda _, i: 0.0, name="first")
    twice = te.compute((m, n), lambda t, i: state[t - 1, i] * 2.0, name="twice")
    update = te.compute((m, n), lambda t, i: twice[t, i] + X[t, i], name="step")
    result = te.scan(init, update, state)
    fn = te.function([X, result])
    assert [b.name for b in fn.allocs] == ["twice"]
    text = text_of([X, result])
    assert text.count("for %t in 0..m - 1 {") == 1
    assert text.index("block @twice(%vt: scan m - 1 = %t") < text.index("block @step(")


def test_a_reduction_inside_the_update_becomes_such_a_stage():
    m, n = te.var("m"), te.var("n")
    W = te.placeholder((n, n), name="W")
    state = te.placeholder((m, n), name="state")
    init = te.compute((1, n), lambda _, i: 1.0, name="first")
    k = te.reduce_axis((0, n), name="k")
    update = te.compute(
        (m, n), lambda t, i: te.tanh(te.sum(W[i, k] * state[t - 1, k], axis=k)), name="step"
    )
    text = text_of([W, te.scan(init, update, state, name="h")])
    assert (
        "block @step_sum(%vt: scan m - 1 = %t, %vi_1: spatial n = %i_1, %vk: reduce n = %k)" in text
    )
    assert "%h[%vt_1 + 1, %vi_2] = tanh(%step_sum[%vt_1 + 1, %vi_2])" in text


def test_a_reduction_as_the_update():
    m, n = te.var("m"), te.var("n")
    W = te.placeholder((n, n), name="W")
    state = te.placeholder((m, n), name="state")
    init = te.compute((1, n), lambda _, i: 1.0, name="first")
    k = te.reduce_axis((0, n), name="k")
    update = te.compute((m, n), lambda t, i: te.sum(W[i, k] * state[t - 1, k], axis=k), name="step")
    text = text_of([W, te.scan(init, update, state, name="h")])
    assert "%h[%vt + 1, %vi_1] sum= %W[%vi_1, %vk] * %h[%vt, %vk]" in text
    assert "reads %W[%vi_1, %vk], %h[%vt, %vk]" in text


def test_several_states_and_steps():
    m, n = te.var("m"), te.var("n")
    a, b = te.placeholder((m, n), name="a"), te.placeholder((m, n), name="b")
    X = te.placeholder((m, n), name="X")
    first = te.compute((2, n), lambda t, i: X[t, i], name="first")
    other = te.compute((2, n), lambda t, i: 0.0, name="other")
    next_a = te.compute((m, n), lambda t, i: a[t - 1, i] + a[t - 2, i] + b[t - 1, i], name="next_a")
    next_b = te.compute((m, n), lambda t, i: a[t - 1, i], name="next_b")
    A, B = te.scan([first, other], [next_a, next_b], [a, b], name="s")
    assert (A.name, B.name) == ("s.v0", "s.v1")
    text = text_of([X, A, B])
    assert "require 2 <= m" in text
    assert text.count("in 0..m - 2 {") == 1
    assert (
        "%s.v0[%vt_2 + 2, %vi_2] = %s.v0[%vt_2 + 1, %vi_2] + %s.v0[%vt_2, %vi_2]"
        " + %s.v1[%vt_2 + 1, %vi_2]\n"
    ) in text
    assert "%s.v1[%vt_3 + 2, %vi_3] = %s.v0[%vt_3 + 1, %vi_3]\n" in text


def test_a_pair_of_updates_from_one_computation():
    m, n = te.var("m"), te.var("n")
    a, b = te.placeholder((m, n), name="a"), te.placeholder((m, n), name="b")
    X = te.placeholder((m, n), name="X")
    zero, one = te.compute((1, n), lambda t, i: (0.0, 1.0), name="start")
    up = te.compute((m, n), lambda t, i: (a[t - 1, i] + X[t, i], b[t - 1, i] * X[t, i]), name="up")
    A, B = te.scan([zero, one], list(up), [a, b], name="s")
    text = text_of([X, A, B])
    assert text.count("block @up(") == 1
    assert "alloc" not in text


def test_an_init_used_elsewhere_is_copied():
    m, n = te.var("m"), te.var("n")
    first = te.placeholder((1, n), name="first")
    state = te.placeholder((m, n), name="state")
    X = te.placeholder((m, n), name="X")
    update = te.compute((m, n), lambda t, i: state[t - 1, i] + X[t, i], name="step")
    result = te.scan(first, update, state, name="s")
    text = text_of([first, X, result])
    assert "block @s_init(%vi0: spatial 1 = %i0, %vi1: spatial n = %i1)" in text
    assert "%s[%vi0, %vi1] = %first[%vi0, %vi1]" in text


def test_one_init_for_two_states_is_copied():
    m, n = te.var("m"), te.var("n")
    a, b = te.placeholder((m, n), name="a"), te.placeholder((m, n), name="b")
    zero = te.compute((1, n), lambda t, i: 0.0, name="zero")
    next_a = te.compute((m, n), lambda t, i: b[t - 1, i] + 1.0, name="next_a")
    next_b = te.compute((m, n), lambda t, i: a[t - 1, i], name="next_b")
    A, B = te.scan([zero, zero], [next_a, next_b], [a, b], name="s")
    text = text_of([A, B])
    assert "alloc %zero: f32[1, n]" in text
    assert "block @s_init(" in text
    assert "block @s_init_1(" in text


def test_a_scan_may_feed_other_stages():
    m, n = te.var("m"), te.var("n")
    X, total = running_sum(m, n)
    mean = te.compute((m, n), lambda t, i: total[t, i] / te.cast(t + 1, "f32"), name="mean")
    fn = te.function([X, mean])
    assert [b.name for b in fn.allocs] == ["total"]


def test_what_does_not_depend_on_the_state_stays_outside():
    m, n = te.var("m"), te.var("n")
    X = te.placeholder((m, n), name="X")
    state = te.placeholder((m, n), name="state")
    scaled = te.compute((m, n), lambda t, i: X[t, i] * 2.0, name="scaled")
    init = te.compute((1, n), lambda _, i: 0.0, name="first")
    update = te.compute((m, n), lambda t, i: state[t - 1, i] + scaled[t, i], name="step")
    text = text_of([X, te.scan(init, update, state)])
    assert "block @scaled(%vt: spatial m = %t" in text


def test_the_axis_of_a_scan():
    m, n = te.var("m"), te.var("n")
    _, total = running_sum(m, n)
    assert str(total.op.scan_axis.extent) == "m - 1"
    assert total.op.input_tensors[0].name == "first"
