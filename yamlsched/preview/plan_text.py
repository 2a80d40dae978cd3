"""A plan for a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from yamlsched.preview import outline, text
from yamlsched.preview.planning import Planned
from yamlsched.store.slots import Gap
from yamlsched.sync.in_force import Verdict

LISTED = 20
INDENT = " " * 4

TICK = {
    Verdict.CURRENT: "this file is in force",
    Verdict.RENEW: "this file is in force; the next sync recomputes its slots, with newer rules or time zone data",
    Verdict.APPLY: "the next tick applies it",
    Verdict.HELD_BACK: "a tick holds it back; this is what yamlsched sync would do",
    Verdict.OTHER_ENVIRONMENT: "a tick refuses it; this is what yamlsched sync would do",
}


def render(plan: Planned) -> str:
    """Return what a sync would do: about the file, about the jobs, and about what is due."""
    blocks = [list(head(plan)), *text.changes(plan.preview)]
    listed = (_block(title, lines) for title, lines in sections(plan))
    return text.join([*blocks, *listed])


def sections(plan: Planned) -> list[tuple[str, list[str]]]:
    """Return what a sync would do besides changing jobs, as titles with lines."""
    return [
        ("runs to create", [_run(plan, nth) for nth in range(len(plan.runs))]),
        ("slots to skip", [_gap(gap) for gap in plan.gaps]),
        (
            "slots that wait",
            [f"{one.job_type}  {_utc(one.slot)}, for the run of {_utc(one.open_slot)}" for one in plan.waiting],
        ),
        (
            "unfinished runs of jobs that are not in the file",
            [
                f"{one.job_type}  {one.runs}, {one.running} of them running; the rest is cancelled from "
                f"{_utc(one.cancelled_at)} on"
                for one in plan.leaving
            ],
        ),
        (
            "paused by an operator; sync does not change this",
            [_paused(plan, nth) for nth in range(len(plan.paused))],
        ),
        ("jobs whose slots cannot be computed here", list(plan.unreadable)),
    ]


def head(plan: Planned) -> Iterable[str]:
    state, version = plan.state, plan.version
    where = f" for {version.environment}" if version.environment else ""
    yield f"namespace {plan.preview.head.namespace} at {_utc(plan.now)}"
    yield f"file      {plan.path}{where}, hash {version.hash[:8]}: {TICK[plan.verdict]}"
    if state.in_force_id is None:
        yield "in force  no file has been applied yet"
    elif plan.verdict not in (Verdict.CURRENT, Verdict.RENEW):
        of = f" for {state.in_force_environment}" if state.in_force_environment else ""
        yield (
            f"in force  {state.in_force_path}{of}, hash {(state.in_force_hash or '')[:8]}, "
            f"of host {state.in_force_host}, since {_utc(state.in_force_since)}"
        )
    if plan.explanation:
        yield f"! {plan.explanation}"
    yield f"jobs      {outline.headline(plan.preview)}"
    if not (plan.runs or plan.gaps or plan.waiting):
        yield "due       nothing"


def _block(title: str, lines: list[str]) -> list[str]:
    if not lines:
        return []
    more = [f"{INDENT}and {len(lines) - LISTED} more"] * (len(lines) > LISTED)
    return [f"{title}: {len(lines)}", *(INDENT + line for line in lines[:LISTED]), *more]


def _run(plan: Planned, nth: int) -> str:
    run = plan.runs[nth]
    starts = f", starts at {_utc(run.run_at)}" if run.run_at > plan.now else ""
    owed = ", owed by what is in force" if run.settles else ""
    return f"{run.key}{'' if run.key.endswith('Z') else f'  {_utc(run.slot)}'}{starts}{owed}"


def _gap(gap: Gap) -> str:
    span = _utc(gap.first) if gap.slots == 1 else f"{_utc(gap.first)} to {_utc(gap.last)}"
    return f"{gap.job_type}  {outline.count(gap.slots, 'slot')}, {span}: {gap.reason}"


def _paused(plan: Planned, nth: int) -> str:
    one = plan.paused[nth]
    until = f"until {_utc(one.until)}" if one.until else "until it is resumed"
    reason = f": {outline.written(one.reason)}" if one.reason else ""
    by = f" by {outline.written(one.by)}" if one.by else ""
    return f"{one.job_type}  since {_utc(one.since)}{by}, {until}{reason}"


def _utc(instant: datetime | None) -> str:
    return f"{instant:%Y-%m-%dT%H:%M:%SZ}" if instant else "-"
