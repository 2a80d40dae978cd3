"""``yamlsched mcp``: the reading verbs, and the actions that are named, as tools for an assistant.
See docs/mcp.md.

    cli       the verb
    server    the server, which speaks the Model Context Protocol on stdin and stdout
    tools     the tools: which parameters of which verbs they have, as schemas and command lines
    answers   what a verb printed as a bounded answer, in which strings that others wrote are marked

A tool executes its verb in another process, so a verb that hangs or fails stops no other tool.
Needs the extra `mcp`.
"""
