"""Models with states that tests on several targets share."""

# A running sum, a count, what was given last, and the one before that.
MEAN = """
module stage imported outputs ("mean") states (
    f32[4](0.0, 0.0, 0.0, 0.0), f32[](0.0), f32[4](7.0, 7.0, 7.0, 7.0), f32[4](9.0, 9.0, 9.0, 9.0)
) {
  graph @main(%x: f32[4], %sum: f32[4], %count: f32[], %last: f32[4], %before: f32[4]) {
    %one: f32[] = constant() {data = f32[](1.0)}
    %new_sum = add(%sum, %x)
    %new_count = add(%count, %one)
    %mean = div(%new_sum, %new_count)
    return %mean, %new_sum, %new_count, %x, %last
  }
}
"""
