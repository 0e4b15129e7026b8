"""`torch.compile(model, backend="tilewright")`."""

from tilewright.plugins.torch.backend import tilewright
