"""The results as a Markdown table and as JSON, and the drain as a plot."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from html import escape
from pathlib import Path

import yamlsched
from benchmarks.harness import ROOT, Bench, Row

YAMLSCHED = "yamlsched"


def table(rows: Iterable[Row]) -> str:
    """Return ``rows`` as a Markdown table, each with yamlsched's ratio to it. Above 1, yamlsched is better."""
    rows = list(rows)
    ours = {
        (row.part, row.case, row.unit): row.median for row in rows if row.contender == YAMLSCHED
    }
    lines = [["part", "case", "contender", "median", "spread", "yamlsched is", "note"]]
    for row in rows:
        lines.append(
            [
                row.part,
                row.case,
                row.contender,
                number(row),
                spread(row),
                ratio(row, ours),
                row.note.replace("|", "/"),
            ]
        )
    lines = [line[: len(lines[0])] for line in lines]
    widths = [max(len(line[n]) for line in lines) for n in range(len(lines[0]))]
    shown = [
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    ]
    shown.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(shown)


def number(row: Row) -> str:
    return "not measured" if row.median is None else f"{figure(row.median)} {row.unit}"


def figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def spread(row: Row) -> str:
    if not row.values or len(row.values) < 2:
        return ""
    return f"{figure(min(row.values))} to {figure(max(row.values))}"


def ratio(row: Row, ours: dict[tuple[str, str, str], float | None]) -> str:
    own = ours.get((row.part, row.case, row.unit))
    if row.contender == YAMLSCHED or not own or not row.median:
        return ""
    times = own / row.median if row.more_is_better else row.median / own
    return f"{times:.2f} x as good"


def machine() -> dict[str, object]:
    model = ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.partition(":")[2].strip()
            for line in cpuinfo.read_text().splitlines()
            if "model name" in line
        ]
        model = names[0] if names else ""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": model or platform.processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }


def revision() -> str:
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
        )
    except OSError:
        return ""
    return done.stdout.strip()


def write(bench: Bench, folder: Path) -> None:
    """Write the results of each measured part into ``folder``, then the table of all parts in it.

    The files of other parts do not change: each states when and how it was measured.
    """
    folder.mkdir(parents=True, exist_ok=True)
    head = {
        "format_version": 2,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "yamlsched": yamlsched.__version__,
        "revision": revision(),
        "repeat": bench.repeat,
        "machine": machine(),
        "server": bench.server,
    }
    for part in dict.fromkeys(row.part for row in bench.rows):
        rows = [{**asdict(row), "median": row.median} for row in bench.rows if row.part == part]
        (folder / f"{part}.json").write_text(json.dumps({**head, "rows": rows}, indent=1) + "\n")
    (folder / "results.md").write_text("\n".join(map(section, sorted(folder.glob("*.json")))))
    drained = [
        row for row in bench.rows if row.part == "drain" and row.unit == "jobs/s" and row.median
    ]
    if drained:
        (folder / "drain.svg").write_text(plot(drained))


def section(file: Path) -> str:
    """Return the results in ``file`` as a Markdown section; an empty string for files such as soak-samples.json."""
    content = json.loads(file.read_text())
    if not isinstance(content, dict):
        return ""
    rows = [
        Row(
            **{
                **{key: value for key, value in row.items() if key != "median"},
                "values": row["values"] and tuple(row["values"]),
            }
        )
        for row in content["rows"]
    ]
    # sums and the soak have one value
    counts = sorted({len(row.values) for row in rows if row.values} - {1})
    times = f"{' or '.join(map(str, counts))} repetitions" if counts else "one repetition"
    where = f"{content['machine']['cores']} cores, PostgreSQL {content['server']['server_version']}"
    head = f"{content['measured_at'][:10]}, {times}, {where}, at {content['revision']}"
    return f"## {file.stem}\n\n{head}\n\n{table(rows)}\n"


def plot(rows: list[Row]) -> str:
    """Return an SVG with a horizontal bar for each row."""
    largest = max(row.median or 0 for row in rows)
    left, width, line = 290, 420, 22
    bars, case, y = [], None, 34
    for row in sorted(rows, key=lambda r: (r.case, -(r.median or 0))):
        if row.case != case:
            case, y = row.case, y + 12
            bars.append(f'<text x="8" y="{y + 10}" class="case">{escape(row.case)}</text>')
            y += line
        length = width * (row.median or 0) / largest
        kind = "ours" if row.contender == YAMLSCHED else "other"
        bars.append(
            f'<text x="{left - 8}" y="{y + 11}" text-anchor="end">{escape(row.contender)}</text>'
            f'<rect x="{left}" y="{y}" width="{max(length, 1):.0f}" height="14" class="{kind}"/>'
            f'<text x="{left + max(length, 1) + 6:.0f}" y="{y + 11}">{figure(row.median or 0)}</text>'
        )
        y += line
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 90}" height="{y + 10}" '
        'font-family="sans-serif" font-size="12">'
        "<style>text{fill:#222}.case{font-weight:bold}.ours{fill:#2166ac}.other{fill:#bbb}</style>"
        '<rect width="100%" height="100%" fill="white"/>'
        '<text x="8" y="22" font-size="14">jobs/s, more is better (median)</text>'
        + "".join(bars)
        + "</svg>\n"
    )
