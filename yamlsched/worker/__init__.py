"""The worker: claims due runs, submits them to an executor, renews leases, writes outcomes. Start
with worker.py.
"""
