"""Tuning models: what the tuner is handed to build, check and time kernels with.

server.py     a process that builds and checks kernels, or runs a model with them
table.py      a model whose kernels are called through a table
lab.py        both, as the tuner sees them
tuning.py     from a model to records
"""
