"""Debug information: every instruction points at its line of the tensor program.

The file that the lines count in is the printed function, `NAME.tw`; `str(fn)` writes it.
"""

from __future__ import annotations

from tilewright.codegen.builder import ModuleText
from tilewright.tensor.ir import Function
from tilewright.tensor.printer import format_with_spans

FUNCTION, START = "function", "start"


class DebugInfo:
    """Line tables of one tensor function, for the LLVM functions made from it."""

    def __init__(self, module: ModuleText, fn: Function) -> None:
        self.module = module
        _, self.spans = format_with_spans(fn)
        self.file = module.metadata(f'!DIFile(filename: "{fn.name}.tw", directory: "")')
        self.unit = module.distinct(
            f'!DICompileUnit(language: DW_LANG_C11, file: {self.file}, producer: "tilewright", '
            "isOptimized: true, runtimeVersion: 0, emissionKind: LineTablesOnly)"
        )
        version = module.metadata('!{i32 2, !"Debug Info Version", i32 3}')
        dwarf = module.metadata('!{i32 7, !"Dwarf Version", i32 5}')
        module.named_metadata.append(f"!llvm.dbg.cu = !{{{self.unit}}}")
        module.named_metadata.append(f"!llvm.module.flags = !{{{version}, {dwarf}}}")

    def lines(self, name: str) -> dict[object, str]:
        """For an LLVM function: what to append to the instructions of each statement and loop.

        FUNCTION is appended to its header, START to instructions before any statement.
        """
        kind = self.module.metadata("!DISubroutineType(types: !{})")
        program = self.module.distinct(
            f'!DISubprogram(name: "{name}", file: {self.file}, line: 1, type: {kind}, '
            f"scopeLine: 1, spFlags: DISPFlagDefinition | DISPFlagOptimized, unit: {self.unit})"
        )

        def location(line: int, column: int) -> str:
            text = f"!DILocation(line: {line}, column: {column}, scope: {program})"
            return f", !dbg {self.module.metadata(text)}"

        found: dict[object, str] = {
            mark: location(line, column + 1) for mark, (line, column, _) in self.spans.items()
        }
        found[FUNCTION] = f" !dbg {program}"
        found[START] = location(1, 1)
        return found
