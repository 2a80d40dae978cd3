"""The pages, in the order of the navigation. Each module has a ``PAGE`` and the view model that its
template shows.
"""

from yamlsched.extras.web.pages import (
    actions,
    calendar,
    dead,
    durations,
    files,
    graph,
    home,
    job,
    namespaces,
    nights,
    report,
    run,
    runs,
    why,
    workers,
)
from yamlsched.extras.web.visit import Page

HELP = Page("/help", "help.html", lambda visit: None)
PAGES = (
    home.PAGE,
    report.PAGE,
    nights.PAGE,
    job.PAGE,
    runs.PAGE,
    run.PAGE,
    dead.PAGE,
    why.PAGE,
    durations.PAGE,
    graph.PAGE,
    calendar.PAGE,
    files.PAGE,
    workers.PAGE,
    actions.PAGE,
    namespaces.PAGE,
    HELP,
)
