"""Jobs that answer to others: which jobs are hooks, and the rules that no schema can express."""

from __future__ import annotations

from collections.abc import Iterator

from yamlsched.schedule.findings import Findings
from yamlsched.schedule.following import in_order
from yamlsched.schedule.node import Spot
from yamlsched.schedule.reader import Reader
from yamlsched.schedule.schema import HOOKS
from yamlsched.text import quoted

OWN_SLOTS = ("cron", "crons", "after")
"""The keys that a hook does not have: it runs when another job's run ends."""


def hook_names(reader: Reader) -> set[str]:
    """Return the jobs that a list of hooks names. Report those that have slots of their own, and
    hooks in a circle.

    A circle needs jobs' own lists only: what ``defaults`` lists is not inherited by a hook.
    """
    root, findings = reader.root, reader.findings
    entries = {str(entry.path[-1]): entry for entry in root.entries("jobs")}
    own = {
        name: {item.value: item for item in _items(entry, reader) if item.value in entries}
        for name, entry in entries.items()
    }
    inherited = [item for defaults in root.layers() for item in _items(defaults, reader)]
    items = [*inherited, *(item for listed in own.values() for item in listed.values())]
    for item in items:
        if item.value in entries:
            _check_slots(item, entries[item.value], findings)
    in_order(own, findings, "YS162", "the jobs are hooks of each other in a circle", "the list")
    return {item.value for item in items}


def _check_slots(item: Spot, entry: Spot, findings: Findings) -> None:
    """Report a hook that runs at slots."""
    for key in OWN_SLOTS:
        if entry.get(key):
            message = (
                f"{item}: {quoted(item.value)} has {key}, and a hook runs only when the run of"
                " another job ends"
            )
            remedy = f"Remove {key} from {item.value}, or name a job without slots."
            findings.error(item, "YS161", message, remedy)
            return


def _items(place: Spot, reader: Reader) -> Iterator[Spot]:
    """Yield the names in the lists of hooks of a job or of ``defaults``."""
    for key in HOOKS:
        hooks = place.get(key)
        if hooks is not None and reader.findings.is_valid(hooks):
            yield from hooks.children()
