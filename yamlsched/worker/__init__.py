"""Claims due runs and has their handlers called in child processes: see worker.py for the parent, child.py for them."""
