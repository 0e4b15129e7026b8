"""Decompose einsum into transposes, reshapes and matmuls, two operands at a time.

bhqd,bhkd->bhqk      batch bh, m = q, n = k, summed over d:  q @ transpose(k)
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.graph.ir import Node, Value
from tilewright.graph.match import Steps, shape_of
from tilewright.graph.ops.linalg import einsum_terms
from tilewright.graph.types import items_of
from tilewright.sym import ONE, Expr


@dataclass
class _Term:
    """A tensor with a letter for each axis."""

    value: Value
    letters: str


def decomposed_einsum(node: Node, steps: Steps) -> list[Node] | None:
    """The nodes that compute an einsum; None for diagonals and broadcasting."""
    names, result = einsum_terms(node["equation"])
    terms: list[_Term] = []
    extents: dict[str, Expr] = {}
    for value, letters in zip(node.inputs, names, strict=True):
        if value is None or len(set(letters)) != len(letters):
            return None
        for letter, dim in zip(letters, shape_of(value) or (), strict=True):
            if (extents.setdefault(letter, dim) is ONE) != (dim is ONE):
                return None
        terms.append(_Term(value, letters))
    if not node.output.tensor.dtype.is_float or len(set(result)) != len(result):
        return None
    pairing = _Pairing(steps, extents)
    made = terms[0]
    for at, term in enumerate(terms[1:], 2):
        later = set(result).union(*names[at:])
        made = pairing.product(made, term, later)
    made = pairing.summed(made, set(result))
    pairing.ordered(made, result)
    if not steps.nodes:  # a single operand, unchanged
        steps.add("reshape", made.value, shape=pairing.items(result))
    return steps.done()


@dataclass
class _Pairing:
    steps: Steps
    extents: dict[str, Expr]

    def items(self, letters: str) -> tuple[int | Expr, ...]:
        dims = [self.extents[letter] for letter in letters]
        return items_of(dims)

    def summed(self, term: _Term, needed: set[str]) -> _Term:
        """Sum over the axes that are not needed."""
        axes = tuple(at for at, letter in enumerate(term.letters) if letter not in needed)
        if not axes:
            return term
        value = self.steps.add("reduce_sum", term.value, axes=axes, keepdims=False)
        return _Term(value, "".join(letter for letter in term.letters if letter in needed))

    def ordered(self, term: _Term, letters: str) -> Value:
        """Transpose to the given order of axes."""
        if term.letters == letters:
            return term.value
        perm = tuple(term.letters.index(letter) for letter in letters)
        return self.steps.add("transpose", term.value, perm=perm)

    def product(self, a: _Term, b: _Term, later: set[str]) -> _Term:
        """The product of two tensors, summed over axes that are not needed later."""
        a = self.summed(a, later | set(b.letters))
        b = self.summed(b, later | set(a.letters))
        both = [letter for letter in a.letters if letter in b.letters]
        batch = "".join(letter for letter in both if letter in later)
        inner = "".join(letter for letter in both if letter not in later)
        rows = "".join(letter for letter in a.letters if letter not in both)
        columns = "".join(letter for letter in b.letters if letter not in both)
        left = self._matrix(a, batch, rows, inner)
        right = self._matrix(b, batch, inner, columns)
        value = self.steps.add("matmul" if inner else "mul", left, right)
        letters = batch + rows + columns
        if len(rows) != 1 or len(columns) != 1:
            value = self.steps.add("reshape", value, shape=self.items(letters))
        return _Term(value, letters)

    def _matrix(self, term: _Term, batch: str, rows: str, columns: str) -> Value:
        """A batch of matrices, with several letters collapsed into rows and columns."""
        value = self.ordered(term, batch + rows + columns)
        if len(rows) == 1 and len(columns) == 1:
            return value
        shape = (*self.items(batch), self._count(rows), self._count(columns))
        return self.steps.add("reshape", value, shape=shape)

    def _count(self, letters: str) -> int | Expr:
        out: int | Expr = 1
        for item in self.items(letters):
            out = out * item
        return out
