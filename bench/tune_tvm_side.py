"""TVM's side of `tune_tvm.py`, in a separate process, which may hang, crash or be killed.

    python bench/tune_tvm_side.py tune FOLDER SHAPE THREADS CPU CLOCK   search until ended
    python bench/tune_tvm_side.py serve FOLDER SHAPE THREADS CPU CLOCK  run the best when asked to

What was searched is in the folder, candidate by candidate, so that ending a search loses nothing.
While serving, every line that comes in is answered by the seconds of one run.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tune_shapes import CLOCKS, convolution_by
from tvm import te
from tvm.s_tir import meta_schedule

TRIALS, BATCH = 100_000, 16  # more than there is time for; candidates measured at a time


def tune(program: Any, target: Any, folder: Path, threads: int) -> None:
    builder = meta_schedule.builder.LocalBuilder(max_workers=threads)
    runner = meta_schedule.runner.LocalRunner()
    (folder / "loaded").touch()  # its processes have started: the minutes begin
    meta_schedule.tune_tir(
        program,
        target,
        str(folder),
        builder=builder,
        runner=runner,
        max_trials_global=TRIALS,
        num_trials_per_iter=BATCH,
        num_tuning_cores=threads,
        seed=16,
    )


def serve(program: Any, target: Any, folder: Path, clock: str) -> None:
    known = meta_schedule.database.JSONDatabase(work_dir=str(folder))
    best = meta_schedule.tir_integration.compile_tir(known, program, target)
    if best is None:
        raise SystemExit("TVM found no schedule")
    run = tvm.compile(best.mod, target)["main"]
    with np.load(folder / "inputs.npz") as stored:
        given = [tvm.runtime.tensor(stored[name]) for name in ("x", "k", "y")]
    run(*given)
    np.save(folder / "result.npy", given[-1].numpy())
    print(len(known), flush=True)
    now = CLOCKS[clock]
    for _ in sys.stdin:
        run(*given)  # caches and threads are as the kernel itself leaves them
        begin = now()
        run(*given)
        print(now() - begin, flush=True)


def main() -> None:
    what, folder, shape, threads, processor, clock = sys.argv[1:]
    program = te.create_prim_func(convolution_by(te, *map(int, shape.split("x"))))
    cores = {"num-cores": int(threads)}
    target = tvm.target.Target({"kind": "llvm", "mcpu": processor, **cores})
    if what == "tune":
        tune(program, target, Path(folder), int(threads))
    else:
        serve(program, target, Path(folder), clock)


if __name__ == "__main__":
    main()
