"""The compiler for the accelerator stays small."""

import ast
import io
import tokenize
from pathlib import Path

SOURCE = Path(__file__).parents[3] / "src/tilewright"
COMPILER = (
    *("accel/compiler/*.py", "accel/rules/*.py", "accel/intrin.py", "accel/operators.py"),
    *("accel/layers.py", "accel/part.py", "accel/rounds.py", "driver/accelerate.py"),
)
MAX_LINES = 2500
BESIDES = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


def lines_of_code(text):
    """Lines that hold code: no blank ones, no comments, no docstrings."""
    found = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (*BESIDES, tokenize.ENDMARKER):
            found |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
        if isinstance(node, kinds) and ast.get_docstring(node) is not None:
            told = node.body[0]
            found -= set(range(told.lineno, told.end_lineno + 1))
    return len(found)


def test_code_is_counted():
    text = '"""Doc."""\n\n# why\nx = (\n    1,\n)\n\n'
    text += 'def f():\n    """Doc,\n    more."""\n    return x\n'
    assert lines_of_code(text) == 5


def test_the_compiler_has_at_most_so_many_lines():
    files = [path for pattern in COMPILER for path in sorted(SOURCE.glob(pattern))]
    assert len(files) > 12
    assert sum(lines_of_code(path.read_text()) for path in files) <= MAX_LINES
