"""A handler is any function. The payload's keys are its arguments; ``run``, if it asks for it, is the attempt."""

from yamlsched import Run


def run(run: Run, name: str) -> dict[str, str]:
    run.log.info("hello, %s: attempt %d of run %d", name, run.attempt, run.id)
    return {"greeted": name}  # kept as the run's result
