"""Groups of commands, whose help says what each command is for, however long that is."""

import click

LONGEST = 500
"""Characters; click's own limit is what fits beside a name, and it cuts sentences off."""


class CommandGroup(click.Group):
    """The list of commands has the whole first sentence of each, over as many lines as it takes."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        lines = [(name, each.get_short_help_str(LONGEST)) for name, each in commands if each]
        with formatter.section("Commands"):
            formatter.write_dl(lines)
