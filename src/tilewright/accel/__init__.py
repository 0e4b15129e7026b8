"""Accelerators of the VTA class: instruction set, verifier, simulators, stream builders.

isa        the table of instructions, and what is made from it: encoding, text, C header
order      which instruction happens before which, by queues and tokens
accesses   what an instruction reads and writes
verify     races, deadlocks, overflows, unwritten memory, addresses
memory     host and device memory, apart until flushed
simulate   runs a stream; the reference
cycle      when every instruction begins and ends
build      streams of tiled GEMMs and convolutions
"""
