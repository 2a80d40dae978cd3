"""The four flows: sync, tick, work and loop. The command line calls them, and so can a web page.

They neither parse nor print: their results are values, with ``messages`` and ``has_findings``. Each
has a module; ``steps`` has what they share. ``idle`` is the tick that finds nothing, a program of
its own, so nothing is imported here.
"""
