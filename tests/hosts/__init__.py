"""Stories on several hosts: network namespaces with processes of their own, and a network that tests cut and slow down.

They need root and are no part of ``make test``: `-m hosts`.
"""
