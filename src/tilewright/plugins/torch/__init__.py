"""`torch.compile(model, backend="tilewright")`, and text from language models."""

from tilewright.plugins.torch.backend import tilewright
from tilewright.plugins.torch.generate import Generator
from tilewright.plugins.torch.sampling import Sampling
