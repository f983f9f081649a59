"""What all help texts have in common: examples, and under a group of commands what holds for each of them."""

import inspect

GENERAL = """
\b
A file that exists is replaced by a new one when that is complete, and each
file that was written is named on stderr. {rule}

\b
Names are completed by the shell after
  eval "$(_{variable}_COMPLETE=bash_source {program})"
with zsh or fish in place of bash for those; put it into the shell's start-up
file, such as ~/.bashrc.
"""


def examples(*commands: str) -> str:
    """Returns the end of a help text (`epilog` of a click command) with commands that a reader can try."""
    lines = "\n".join(f"  {command}" for command in commands)
    return f"\b\nExample{'s' * (len(commands) > 1)}:\n{lines}"


def general_help(program: str, rule: str) -> str:
    """Returns what is said once for all commands of `program`: what becomes of files, and completion by the shell.

    rule: one more about files; its first line goes on where the general ones end.
    """
    return inspect.cleandoc(GENERAL.format(program=program, variable=program.upper().replace("-", "_"), rule=rule))
