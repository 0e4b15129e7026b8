"""Where PyTorch is not installed there is nothing to compare with."""

import sys
from importlib.util import find_spec
from pathlib import Path

collect_ignore_glob = [] if find_spec("torch") else ["test_*.py"]
sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "frontends" / "torch"))
