"""Check a processor's name and features with LLVM, in a process of its own.

LLVM aborts on a processor it cannot generate code for, and only prints a line to stderr for an
unknown feature. So a child process compiles a few lines for the machine first, and its output
becomes an error. Names in our own tables are known to be fine.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache

from tilewright.base.errors import UserError
from tilewright.base.processors import is_known, suggestion
from tilewright.base.target import Target
from tilewright.codegen.machine import Machine

# Floating point through registers and memory: what any program needs.
_PROGRAM = """
define internal double @square(double %x) noinline {
  %y = fmul double %x, %x
  ret double %y
}
define i32 @probe(ptr %p, ptr %q) {
  %a = load float, ptr %p
  %b = fpext float %a to double
  %c = call double @square(double %b)
  store double %c, ptr %q
  ret i32 0
}
"""
_CHILD = """
import sys
import llvmlite.binding as llvm
triple, cpu, features, relocation, abi, program = sys.argv[1:]
llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
machine = llvm.Target.from_triple(triple).create_target_machine(
    cpu=cpu, features=features, opt=3, reloc=relocation, codemodel="default", abiname=abi
)
module = llvm.parse_assembly(program)
module.triple = triple
machine.emit_object(module)
print("done")
"""
_UNKNOWN = re.compile(r"'([^']*)' is not a recognized (?:processor|feature)")
_LISTS = "Available CPUs for this target"  # what LLVM prints for the processor or feature `help`


def check_machine(target: Target, machine: Machine) -> None:
    """Raise unless LLVM generates code for the processor and the features asked for."""
    if not target.attrs and is_known(target.arch, target.mcpu):
        return
    asked = (machine.triple, machine.cpu, machine.features, machine.relocation, machine.abi)
    done, said = _probe(asked)
    unknown = set(_UNKNOWN.findall(said))
    if target.mcpu in unknown or (target.mcpu and _LISTS in said):
        raise _refused(target, f"unknown processor {target.mcpu!r}")
    for attr in target.attrs:
        if attr in unknown or attr[1:] in ("help", "cpuhelp"):
            raise _refused(target, f"unknown feature {attr[1:]!r}")
    if not done:
        lines = [line for line in said.splitlines() if line and not _UNKNOWN.search(line)]
        reason = lines[-1].removeprefix("LLVM ERROR: ") if lines else "it gives no reason"
        raise _refused(target, f"LLVM generates no code for it: {reason}")


@cache
def _probe(asked: tuple[str, ...]) -> tuple[bool, str]:
    """Whether the child compiled the program, and what it wrote to stderr."""
    child = subprocess.run(
        [sys.executable, "-c", _CHILD, *asked, _PROGRAM],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    return child.returncode == 0 and child.stdout.endswith("done\n"), child.stderr


def _refused(target: Target, message: str) -> UserError:
    return UserError(
        "TW0305",
        f"target {str(target)!r}: {message}",
        help="features and processors have LLVM's names; for -mcpu try "
        f"{suggestion(target.arch, target.mcpu)}; without -mcpu, cpu is this very machine",
    )
