"""Charts: functions from a view model to what a template draws. Their looks are in static/page.css,
by class.
"""
