"""What the runner is to reach, measured: each figure beside the limit it is held against.

``python -m tests.benchmarks.goals`` prints one table. ``--part NAME`` (as often as wanted) runs
some parts, ``--quick`` runs all of them at tiny sizes, without a GPU if there is none (its figures
say nothing; it shows that the script works), ``--json FILE`` keeps the figures. Budgets are
measured in the same run: the link both ways with pinned memory, computing alone by CUDA events,
plain reading and plain writing. Times are medians of five unless a row says otherwise.
"""
