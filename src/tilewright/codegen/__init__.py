"""Tensor IR to machine code: emission of LLVM IR, optimization, loading, artifacts."""
