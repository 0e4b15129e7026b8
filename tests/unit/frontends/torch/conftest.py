"""Where PyTorch is not installed there is nothing to import from."""

import sys
from importlib.util import find_spec
from pathlib import Path

collect_ignore_glob = [] if find_spec("torch") else ["test_*.py"]
sys.path.insert(0, str(Path(__file__).parent))  # the cases that tests of native code share
