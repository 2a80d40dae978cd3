"""The pages and the navigation. Each module has a ``PAGE`` and the view model that its template
shows.
"""

from yamlsched.extras.web.pages import (
    actions,
    calendar,
    dead,
    durations,
    files,
    find,
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
    find.PAGE,
    HELP,
)

NAVIGATION = {
    "Jobs": {"/": "Jobs"},
    "Runs": {"/runs": "All runs", "/runs?status=running": "Running", "/dead": "Dead"},
    "History": {
        "/report": "Last night",
        "/nights": "Nights",
        "/durations": "Durations",
        "/why": "Why",
    },
    "Schedule": {"/graph": "Chains", "/calendar": "Calendar"},
    "Audit": {"/files": "Files", "/actions": "Actions", "/workers": "Workers"},
}
"""Groups of pages, by their paths."""
