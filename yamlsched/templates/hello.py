"""A handler is any function. The payload's keys are its arguments. A parameter named ``run`` gets
the run.
"""

from yamlsched import Run


def run(run: Run, name: str) -> dict[str, str]:
    run.log.info("hello, %s: attempt %d of run %d", name, run.attempt, run.id)
    return {"greeted": name}  # stored as the run's result
