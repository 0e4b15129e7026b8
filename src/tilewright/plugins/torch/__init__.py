"""`torch.compile(model, backend="tilewright")`, and text generation by language models."""

from tilewright.frontends.torch.sampling import Sampling
from tilewright.plugins.torch.backend import tilewright
from tilewright.plugins.torch.generate import Generator
from tilewright.plugins.torch.report import report
