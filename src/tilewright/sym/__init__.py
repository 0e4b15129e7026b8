"""Scalar expressions, and proofs about integer ones."""

from tilewright.sym import extend as _extend  # installs Context.bind and assume
from tilewright.sym.affine import is_bijective, linear, split_terms
from tilewright.sym.bounds import bounds, upper_bound
from tilewright.sym.context import EMPTY, Context, Interval
from tilewright.sym.evaluate import evaluate, share_where
from tilewright.sym.expr import (
    FALSE,
    ONE,
    TRUE,
    ZERO,
    Add,
    And,
    Binary,
    Cast,
    Compare,
    Const,
    Div,
    Eq,
    Expr,
    FloorDiv,
    FloorMod,
    Le,
    Lt,
    Max,
    Min,
    Mul,
    Ne,
    Not,
    Or,
    Select,
    Size,
    Sub,
    Var,
    const,
    size,
    var,
)
from tilewright.sym.ops import (
    ExprLike,
    add,
    all_of,
    any_of,
    as_expr,
    cast,
    ceildiv,
    div,
    eq,
    floordiv,
    floormod,
    le,
    logical_and,
    logical_not,
    logical_or,
    lt,
    maximum,
    minimum,
    mul,
    ne,
    rebuild,
    rebuilt,
    select,
    sub,
)
from tilewright.sym.prove import equal, prove
from tilewright.sym.region import symbolic_bounds
from tilewright.sym.simplify import simplify
from tilewright.sym.text import format_expr
from tilewright.sym.visit import (
    above,
    conjuncts,
    fold,
    folded,
    free_vars,
    holds,
    replaced,
    rewrite,
    substitute,
    uses_var,
    walk,
)
