"""Predicts how long a start takes: critical path, slack, blame, what-ifs (docs/analyze.md).

The formula is the paper's (section 4.1, "Time Reduction").  With the stages of process i
split into an independent and a parent-dependent part, T_i = T_i^I + T_i^D, the sequential
start takes T_vLLM = sum_i T_i and the refined one, "the maximum time over all
root-to-leaf paths",

    T_CFA = max_i { T_i^I + sum_{j=i..3} T_j^D }.

Both are computed here for any spec: T_CFA as the longest path through the expanded graph
(`paths`), the sequential time as the sum of the chain's classes (`chain`).  With a number
of cores the graph is list-scheduled (`cores`).  Costs come from the spec, from recorded
runs, or from the command line (`costs`, `recorded`).

All times are whole nanoseconds, so that equal paths are equal and results are the same
on every machine.
"""

from cfac.compiler.analyze.analysis import Analysis, Query, analyze
from cfac.compiler.analyze.recorded import Recorded, record, total
from cfac.compiler.analyze.select import SelectionError

__all__ = ["Analysis", "Query", "Recorded", "SelectionError", "analyze", "record", "total"]
