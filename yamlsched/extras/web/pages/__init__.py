"""The pages, in the order of the navigation. Each module has a ``PAGE`` and the view model that its template shows."""

from yamlsched.extras.web.pages import actions, calendar, dead, files, graph, home, job, namespaces, run, runs, why

PAGES = (
    home.PAGE,
    job.PAGE,
    runs.PAGE,
    run.PAGE,
    dead.PAGE,
    why.PAGE,
    graph.PAGE,
    calendar.PAGE,
    files.PAGE,
    actions.PAGE,
    namespaces.PAGE,
)
