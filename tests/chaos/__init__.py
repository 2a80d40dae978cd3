"""Random faults against real workers, and a check of every guarantee on the recorded evidence.

    python -m tests.chaos --seed 7 --seconds 60

    scenario   one seeded run: start everything, cause faults, let it drain, check    <- start reading here
    cluster    the processes under test and their PostgreSQL server
    faults     faults of processes, server and network
    operators  actions of operators: edits, retries, cancels, pauses, backfills
    schedule   writes schedules.yaml and edits it
    scripted   the handlers and their log
    proxy      a network that delays, cuts and loses answers
    recorder   a trigger that keeps every version of every run
    evidence   the recorded evidence as dataclasses
    checks, slots_check    the guarantees, checked only on the evidence

The checks do not use the implementation. They read the flight recorder, the handlers' log and the journal of faults.
"""
