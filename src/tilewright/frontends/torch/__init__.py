"""PyTorch models: modules, exported programs and .pt2 files."""

from tilewright.frontends.torch.program import Imported, import_program
