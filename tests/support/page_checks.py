"""What an eye would find wrong with a page: barriers for people with disabilities, and what does not fit the screen."""

from __future__ import annotations

from typing import Any

PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 844},
    "is_mobile": True,
    "has_touch": True,
    "device_scale_factor": 2,
}
OVERFLOWING = """(screen) => {
  const scrolls = (e) => e && (getComputedStyle(e).overflowX !== 'visible' || scrolls(e.parentElement));
  const wide = [...document.body.querySelectorAll('*')].filter((e) => {
    const box = e.getBoundingClientRect();
    return box.width > 0 && (box.right > screen + 1 || box.left < -1) && !scrolls(e.parentElement);
  });
  const name = (e) => `${e.localName}.${e.getAttribute('class') || ''} ${(e.textContent || '').trim().slice(0, 60)}`;
  return [`page ${document.documentElement.scrollWidth}`, ...wide.slice(0, 10).map(name)];
}"""


def barriers(tab: Any, only: str | None = None) -> str:
    """Return the serious findings of axe, one a line; "" if there are none. The tab must bypass its CSP."""
    from axe_playwright_python.sync_playwright import Axe

    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if only:
        options["runOnly"] = {"type": "rule", "values": [only]}
    return "\n".join(
        f"{found['id']} ({found['impact']}): {node['html'][:300]} {' '.join(node['failureSummary'].split())[:400]}"
        for found in Axe().run(tab, options=options).response["violations"]
        if found["impact"] in ("serious", "critical")
        for node in found["nodes"][:3]
    )


def too_wide(tab: Any) -> list[str]:
    """Return what makes a reader of a phone scroll sideways. Boxes that scroll by themselves may be wide."""
    width = PHONE["viewport"]["width"]
    found: list[str] = tab.evaluate(OVERFLOWING, width)
    return found[1:] if found[0] == f"page {width}" else found
