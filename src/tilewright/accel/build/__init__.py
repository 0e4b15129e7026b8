"""Stream builders: tiled GEMM and convolution, with units overlapped by tokens."""

from tilewright.accel.build.builder import Builder
from tilewright.accel.build.conv import Conv, build_conv
from tilewright.accel.build.gemm import build_gemm
