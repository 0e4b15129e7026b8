"""Interned nodes: one for equal fields, whoever makes and drops them."""

import sys
import threading

from tilewright import sym


def test_threads_that_make_and_drop_one_node_do_not_disturb_each_other(monkeypatch):
    failed, x = [], sym.var("x")
    monkeypatch.setattr(sys, "unraisablehook", lambda each: failed.append(each.exc_value))
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def work():
        for _ in range(100000):
            one = sym.Add(x, x)
            if sym.Add(x, x) is not one:
                failed.append(one)
            del one

    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    finally:
        sys.setswitchinterval(usual)
    assert not failed
