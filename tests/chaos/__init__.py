"""Random faults against real workers, and a check of every guarantee on what was recorded meanwhile.

    python -m tests.chaos --seed 7 --seconds 60

    scenario   one seeded run: start everything, cause faults, let it drain, check    <- start reading here
    cluster    the processes under test and their PostgreSQL server
    faults     what happens to processes, server and network
    operators  what people do meanwhile: edits, retries, cancels, pauses, backfills
    schedule   writes schedules.yaml and edits it
    scripted   the handlers, and their log
    proxy      a network that delays, cuts and loses answers
    recorder   a trigger that keeps every version of every run
    evidence   what was recorded, as values
    checks, slots_check    the guarantees, checked on the evidence alone

The checks use nothing of the implementation: they read the flight recorder, the log of the handlers and the journal of
the faults.
"""
