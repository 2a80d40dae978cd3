"""From the bytes of schedules.yaml to valid jobs, or to every error with its position.

    load           all of it: bytes -> decode -> parse -> schema.check -> build -> jobs; start here
    checks         load's errors, those of the handlers, and the warnings of lint
    handlers       whether handlers exist and accept their payloads, by lookup
    findings       collects the diagnostics; a Spot (node) is what each is about
    formats        prints them; catalog has a page for each code

Nothing is imported here, so that ``definitions.job`` needs neither YAML nor the schema.
"""
