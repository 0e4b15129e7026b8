"""The text of a function whose sizes first appear inside a sum should read back (issue 2)."""

import pytest

from tilewright import te, tensor


@pytest.mark.xfail(reason="issue 2: the parser wants a size alone first", strict=True)
def test_a_size_may_stand_alone_in_a_later_argument():
    n = te.var("n")
    A, S = te.placeholder((n + 1,), name="A"), te.placeholder((n,), name="S")
    B = te.compute((n,), lambda i: A[i] + S[i], name="B")
    fn = te.function([A, S, B])
    assert tensor.parse(str(fn)) == fn
