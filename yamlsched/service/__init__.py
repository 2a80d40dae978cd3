"""The four flows: sync, tick, work and loop. The command line calls them, and so can a web page.

They neither parse nor print. What they have to say is a value: the messages and ``has_findings`` of their result.
"""
