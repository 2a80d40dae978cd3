"""The next steps that messages name as commands, as links to the pages that do the same.

Messages are those of the verbs. Where the page has no such step, the command stays.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

from jinja2 import pass_context
from jinja2.runtime import Context
from markupsafe import Markup, escape

from yamlsched.extras.web.markup import element, visible

COMMAND = re.compile(
    r"yamlsched (?:(?P<action>retry|cancel) (?P<run>\d{1,18})(?!\w)|show (?P<shown>\d{1,18})(?!\w)"
    r"|resume (?P<job>[a-z][a-z0-9_]*)"
    r"|settle --done(?: --namespace \S+)? (?:-- )?(?P<key>'(?:[^']|'\"'\"')*'|[^\s']+) \(or --not-done\)"
    r"|doctor|validate|sync|plan)"
)


@pass_context
def steps(context: Context, text: str) -> Markup:
    """Return ``text`` with links in place of commands that the page has as well."""
    parts, end = [], 0
    for found in COMMAND.finditer(text):
        link = _link(found, context["url"], context["has_actions"]) or element("code", found[0])
        parts += [escape(visible(text[end : found.start()])), link]
        end = found.end()
    return Markup("").join([*parts, escape(visible(text[end:]))])


def _link(found: re.Match[str], url: Callable[..., str], has_actions: bool) -> Markup | None:
    def link(label: str, href: str) -> Markup:
        return element("a", label, href=href, class_="command")

    if found["shown"]:
        return link(f"show run {found['shown']}", url("runs", found["shown"]))
    if has_actions and found["job"]:
        return link(f"resume {found['job']}", url("actions", "resume", job=found["job"]))
    if has_actions and found["key"]:
        [key] = shlex.split(found["key"])
        return link(f"settle {key}", url("actions", "settle", key=key))
    if has_actions and found["run"]:
        return link(f"{found['action']} run {found['run']}", url("actions", found["action"], run=found["run"]))
    return None
