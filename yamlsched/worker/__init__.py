"""The worker: claims due runs, hands them to child processes, renews leases, writes outcomes. Start
with worker.py.
"""
