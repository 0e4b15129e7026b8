"""Tuning of whole models: builds, checks and times candidate kernels for the tuner.

server.py     a process that builds and checks kernels, or runs a model with them
table.py      a model that calls its kernels through a table, so that they can be exchanged
running.py    such a model with timings of every kernel; device.py is the same for GPUs
lab.py        the tuner's interface to these processes
tuning.py     from a model to tuning records
"""
