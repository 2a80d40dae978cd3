"""The worker: claims due runs, submits them to pools, renews leases, writes outcomes. Start
with worker.py.
"""
