"""A library's kernel competes where it is allowed, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tilewright.base.errors import UserError
from tilewright.base.target import Target
from tilewright.codegen.blas import find_blas, use_blas
from tilewright.driver.kernel_code import function_of
from tilewright.driver.kernels import BLAS, KernelSetting
from tilewright.driver.libraries import LIBRARY
from tilewright.driver.lowering import jobs_of
from tilewright.driver.optimize import load_graph, optimize
from tilewright.driver.options import Options
from tilewright.driver.tuning.check import Checker
from tilewright.driver.tuning.records import choices_of, task_key
from tilewright.driver.tuning.table import built
from tilewright.driver.tuning.tuning import spaces_of
from tilewright.graph.parser import parse
from tilewright.rules.library import SGEMM, with_library
from tilewright.tune import Database, Winner

pytestmark = pytest.mark.skipif(find_blas() is None, reason="NumPy was built without OpenBLAS")

NET = """<ir_version: 8, opset_import: ["" : 17]>
net (float[33, 64] x) => (float[33, 48] y) {
  h = MatMul (x, w)
  y = Relu (h)
}"""
CHOICE = {LIBRARY: f"{LIBRARY} gemm={BLAS}"}
ALLOWED = KernelSetting(Target.parse("cpu"), 2, libraries=(BLAS,))


@pytest.fixture(scope="module")
def net(weighted):
    return weighted(NET, 64, 48)


@pytest.fixture(scope="module")
def job(net):
    graph = optimize(load_graph(net), ALLOWED.target, Options(threads=2))
    return next(each for each in jobs_of(graph, ALLOWED).values() if "matmul" in each.label)


def test_a_plain_gemm_becomes_a_call_and_the_rest_stays(job):
    fn = function_of(job)
    found = with_library(fn)
    assert f"extern {SGEMM}" in str(found.function)
    assert found.block in str(fn)
    random = np.random.default_rng(0)
    x, w = (random.standard_normal(shape).astype(np.float32) for shape in ((33, 64), (64, 48)))
    y = np.zeros((33, 48), np.float32)
    use_blas(1)
    tw.interpret(found.function, x, w, y)
    np.testing.assert_allclose(y, np.maximum(x @ w, 0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "text",
    [
        "graph @main(%x: f64[8, 8], %w: f64[8, 8]) { %y = matmul(%x, %w) return %y }",
        "graph @main(%x: f32[2, 8, 8], %w: f32[2, 8, 8]) { %y = matmul(%x, %w) return %y }",
        "graph @main(%x: f32[8, 8]) { %y = relu(%x) return %y }",
    ],
)
def test_what_is_no_plain_f32_gemm_stays(text):
    graph = optimize(parse(text), ALLOWED.target, Options(threads=2))
    assert all(with_library(function_of(each)) is None for each in jobs_of(graph, ALLOWED).values())


def test_the_library_is_one_more_space_where_it_is_allowed(job):
    assert [each.name for each in spaces_of(job)][-1] == LIBRARY
    alone = replace(job, setting=replace(job.setting, libraries=()))
    assert LIBRARY not in [each.name for each in spaces_of(alone)]
    assert task_key(job) != task_key(alone)


def test_a_candidate_of_the_library_gives_the_right_answer(job):
    candidate = built(replace(job, choices=choices_of(CHOICE)))
    assert candidate.kernel.externs == (SGEMM,)
    assert Checker(job, built(job), {}).fault(candidate) == ""


def test_records_of_the_library_are_used_where_it_is_allowed(net, job, tmp_path):
    database = Database()
    database.keep(task_key(job), Winner(CHOICE, 1.5, job.label))
    x = np.random.default_rng(1).standard_normal((33, 64)).astype(np.float32)
    calling = tw.compile(net, threads=2, database=database, allow_blas=True)
    alone = tw.compile(net, threads=2, database=database)
    kernels = calling.inside.program.kernels.values()
    assert [each.externs for each in kernels if each.tuned] == [(SGEMM,)]
    assert not any(each.externs for each in alone.inside.program.kernels.values())
    np.testing.assert_allclose(calling(x)[0], alone(x)[0], rtol=1e-5, atol=1e-5)
    with pytest.raises(UserError) as caught:
        calling.save(tmp_path / "net.so")
    assert caught.value.code == "TW6048"
    assert list(tmp_path.iterdir()) == []
    alone.save(tmp_path / "net.so")


def test_a_library_is_called_on_this_machine_alone(net):
    with pytest.raises(UserError) as caught:
        tw.compile(net, "riscv64-linux-gnu", allow_blas=True)
    assert caught.value.code == "TW6049"
