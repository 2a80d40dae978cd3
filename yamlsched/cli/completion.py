"""``yamlsched completion``: print the script that completes verbs, options, jobs and tags in a
shell.
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from yamlsched.cli._settings import Verb

HELP = """Print the completion script of a shell.

\b
bash   eval "$(yamlsched completion bash)"             in ~/.bashrc
zsh    eval "$(yamlsched completion zsh)"              in ~/.zshrc, after compinit
fish   yamlsched completion fish | source              in ~/.config/fish/config.fish

It completes commands, options and their values, and the jobs and tags of the file.
"""


@click.command(cls=Verb, uses="", formats=("text",), help=HELP)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, /, shell: str) -> int:
    script = get_completion_class(shell)
    assert script is not None
    click.echo(script(ctx.find_root().command, {}, "yamlsched", "_YAMLSCHED_COMPLETE").source())
    return 0
