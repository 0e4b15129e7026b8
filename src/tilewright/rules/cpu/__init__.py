"""Schedules for CPUs: plans, costs and the steps that apply them, one kind of kernel per file."""
