"""What the interpreter of graphs tells while it runs."""

import numpy as np

from tilewright.graph import interpret, parse


def test_progress_hears_of_every_node_of_the_graph_itself():
    module = parse("""
    graph @main(%c: bool[], %x: f32[2]) {
      %y = neg(%x)
      %z = if(%c, %y) do {
        graph(%a: f32[2]) {
          %b = exp(%a)
          return %b
        }
        graph(%a: f32[2]) { return %a }
      }
      %w = relu(%z)
      return %w
    }
    """)
    heard = []
    interpret(
        module, np.array(True), np.ones(2, np.float32), progress=lambda *told: heard.append(told)
    )
    assert heard == [("neg", 0, 3), ("if", 1, 3), ("relu", 2, 3)]
