"""What no other rule takes: lanes and threads where they are legal."""

import numpy as np

from tilewright.rules.cpu.fallback import FALLBACK
from tilewright.tensor.parser import parse

SERVER = "x86_64-linux-gnu -mcpu=emeraldrapids"


def test_every_plan_keeps_the_answer(check_plans):
    fn = parse(
        """
        func @clipped(%x: f32[40, 33], %y: f32[40, 33]) stage scheduled {
          for %i in 0..40 { for %j in 0..33 {
            block @y(%v0: spatial 40 = %i, %v1: spatial 33 = %j) {
              reads %x[%v0, %v1]
              writes %y[%v0, %v1]
              if %x[%v0, %v1] < 0.0 { %y[%v0, %v1] = 0.0 } else { %y[%v0, %v1] = %x[%v0, %v1] }
            }
          } }
        }
        """
    )
    x = np.random.default_rng(0).standard_normal((40, 33)).astype(np.float32)
    check_plans(fn, FALLBACK, SERVER, [x], [((40, 33), np.float32)])
