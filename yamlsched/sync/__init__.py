"""Sync: due slots in, rows of job_runs out. The first of the two main flows starts in flow.py; see
docs/catchup.md.
"""
