"""Padding in the transpose before a convolution, where that takes less time."""

import pytest

from tilewright.base.passes import PassContext, run_passes
from tilewright.base.target import Target
from tilewright.driver.costs import KernelCosts
from tilewright.driver.kernels import KernelSetting
from tilewright.graph.parser import parse
from tilewright.graph.passes.hoist_padding import hoist_padding


@pytest.mark.parametrize(("channels", "nodes"), [(3, ["transpose", "pad"]), (64, ["transpose"])])
def test_images_of_many_channels_are_padded_by_the_convolution(channels, nodes):
    text = f"""graph @main(%x: f32[1, {channels}, 224, 224], %w: f32[64, {channels}, 7, 7]) {{
      %t = transpose(%x) {{perm = (0, 2, 3, 1)}}
      %y = conv(%t, %w) {{strides = (2, 2), pads = (3, 3, 3, 3), dilations = (1, 1),
                         layout = "channels_last"}}
      return %y
    }}"""
    target = Target.parse("x86_64-linux-gnu -mcpu=cascadelake")
    ctx = PassContext(target=target, costs=KernelCosts(KernelSetting(target, 1)))
    made = run_passes(parse(text), (hoist_padding,), ctx)
    assert [node.op for node in made.main.nodes] == [*nodes, "conv"]
