"""The command line: `tilewright compile | run | bench | inspect | bisect | targets | demo | opt |
ort | accel`.

Output is tables on standard output, or one JSON document with `--json`; progress and errors go to
standard error. Exit codes: 0 success, 1 failure, 2 usage error.
"""

from tilewright.cli.app import app, main
