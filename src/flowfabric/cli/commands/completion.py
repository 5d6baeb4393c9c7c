"""`ff completion`: shell completion."""

import click
from click.shell_completion import get_completion_class

from flowfabric.cli.options import json_option
from flowfabric.cli.output import print_result


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@json_option
def completion(shell: str, as_json: bool) -> None:
    """Print the script that makes a shell complete commands and options.

    \b
    Example:
      echo 'eval "$(ff completion bash)"' >> ~/.bashrc
      echo 'eval "$(ff completion zsh)"' >> ~/.zshrc
      ff completion fish > ~/.config/fish/completions/ff.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    completes = kind(click.get_current_context().find_root().command, {}, "ff", "_FF_COMPLETE")
    script = completes.source_template % completes.source_vars()  # `source()` would require the shell to be installed
    print_result(script, {"shell": shell, "script": script}, as_json=as_json)
