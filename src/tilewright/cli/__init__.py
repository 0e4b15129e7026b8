"""The command line: `tilewright compile | run | bench | inspect | bisect | targets | demo | opt |
ort | accel`.

Tables for people on the standard output, or with `--json` one JSON document; progress and errors on
the standard error. Exit codes: 0 done, 1 failed, 2 wrong usage.
"""

from tilewright.cli.app import app, main
