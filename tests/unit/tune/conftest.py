import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # tune_fakes: a space and a lab without a compiler
