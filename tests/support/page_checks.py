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

UNREADABLE = """() => {
  const name = (e) => `${e.localName}.${e.getAttribute('class') || ''} ${(e.textContent || '').trim().slice(0, 60)}`;
  const em = (e) => parseFloat(getComputedStyle(e).fontSize);
  const shown = [...document.querySelectorAll('main :is(th, td, dd, dt, li > span, li > div, p, h1, h2, h3)')]
    .filter((e) => e.checkVisibility() && e.clientWidth && !e.closest('.sr, .marks, thead'));
  // a column in which a text of some length has less than about 10 letters a line
  const narrow = shown.filter((e) => e.textContent.trim().length > 24 && e.clientWidth < 5 * em(e));
  const least = (e) => Math.min(9 * em(e), innerWidth / 2);
  const names = shown.filter((e) => e.matches('.list th[scope=row]') && e.clientWidth < least(e));
  const controls = [...document.querySelectorAll('main .card :is(.button, button, input, select, .state)')];
  const outside = controls.filter((e) => {
    const card = e.closest('.card').getBoundingClientRect(), box = e.getBoundingClientRect();
    const is_inside = box.right <= card.right + 1 && box.left >= card.left - 1;
    return box.width > 0 && e.checkVisibility() && !e.closest('.scroll') && !is_inside;
  });
  return [...narrow, ...names, ...outside].slice(0, 10).map((e) => `${Math.round(e.clientWidth)} px: ${name(e)}`);
}"""

# of links, what stands in a sentence may be as low as its line; cells of hours and slots of a chart have a list beside
SMALL_TARGETS = """() => {
  const name = (e) => `${e.localName}.${e.getAttribute('class') || ''} ${(e.textContent || e.id).trim().slice(0, 60)}`;
  const isInline = (e) => getComputedStyle(e).display === 'inline';
  const isInSentence = (e) => {
    if (!isInline(e)) return false;
    let box = e.parentElement;
    while (isInline(box)) box = box.parentElement;
    return box.textContent.trim() !== e.textContent.trim();
  };
  const targets = document.querySelectorAll('a[href], button, input:not([type=hidden]), select, textarea, summary');
  return [...targets]
    .filter((e) => e.checkVisibility({visibilityProperty: true}) && !e.closest('svg, .hours, .skip') && !isInSentence(e))
    .map((e) => [e, ((e.matches('[type=checkbox], [type=radio]') && e.closest('label')) || e).getBoundingClientRect()])
    .filter(([, box]) => box.height > 0 && box.height < 39.5)
    .map(([e, box]) => `${Math.round(box.height)} px: ${name(e)}`);
}"""


def small_targets(tab: Any) -> list[str]:
    """Return what a finger has less than 40 px of height for."""
    return list(tab.evaluate(SMALL_TARGETS))


def cannot_be_read(tab: Any) -> list[str]:
    """Return columns that are too narrow for their text, and controls outside of their card."""
    return list(tab.evaluate(UNREADABLE))


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


def too_wide(tab: Any, width: int = PHONE["viewport"]["width"]) -> list[str]:
    """Return what makes a reader scroll sideways. Boxes that scroll by themselves may be wide."""
    found: list[str] = tab.evaluate(OVERFLOWING, width)
    return found[1:] if found[0] == f"page {width}" else found
