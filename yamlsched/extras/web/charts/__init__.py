"""Charts: functions from a view model to inline SVG. Their looks are in static/page.css, by class: no inline styles."""
