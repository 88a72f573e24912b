"""``maxslices completion bash|zsh|fish``."""

from __future__ import annotations

import os
import warnings

import click
from click.shell_completion import get_completion_class, shell_complete

_VARIABLE = "_MAXSLICES_COMPLETE"
"""Set by the shell's function: what is asked, such as ``bash_complete``."""


@click.command(short_help="print what makes a shell complete commands")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), help="the shell")
@click.pass_context
def completion(context: click.Context, shell: str) -> str:
    """Print what makes a shell complete commands, options, files and names of methods.

    \b
    bash: echo 'eval "$(maxslices completion bash)"' >> ~/.bashrc
    zsh:  echo 'eval "$(maxslices completion zsh)"' >> ~/.zshrc
    fish: maxslices completion fish > ~/.config/fish/completions/maxslices.fish
    """  # noqa: D301 - click leaves the lines after the mark as they are
    kind = get_completion_class(shell)
    assert kind is not None
    return kind(context.find_root().command, {}, "maxslices", _VARIABLE).source()


def answer_shell(app: click.Command) -> bool:
    """Print what completes the command line, if a shell asks; False if none does."""
    asked = os.environ.get(_VARIABLE)
    if asked:
        warnings.simplefilter("ignore")  # they would be printed into the line that is typed
        shell_complete(app, {}, "maxslices", _VARIABLE, asked)
    return bool(asked)


def method_names(_: click.Context, __: click.Parameter, begin: str) -> list[str]:
    """Names of methods that begin so."""
    from ..core.method_registry import registry

    return sorted({meta.name for meta in registry if meta.name.startswith(begin)})
