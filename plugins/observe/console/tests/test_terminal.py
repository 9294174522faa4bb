"""Texts of a job on a terminal: their escapes are shown and not obeyed."""

from __future__ import annotations

import io

from rich.table import Table
from rich.text import Text

from rolemesh.cli.output import print_error, print_text
from rolemesh.errors import RolemeshError
from rolemesh_console.terminal import Terminal, coloured

ESCAPE = "\x1b]0;OWNED\x07\x1b[2J\x1b]52;c;ZXZpbA==\x07\x9b2J\u202e"


def test_no_escape_of_a_job_reaches_the_terminal(capsys):
    console = Terminal(file=io.StringIO(), force_terminal=True, width=200)
    table = Table("name")
    table.add_row(Text(ESCAPE, style="red"))
    console.print(Text(ESCAPE), table)
    print_text(ESCAPE)
    print_error(RolemeshError(f"the answer {ESCAPE}", where=ESCAPE, remedy=ESCAPE))
    captured = capsys.readouterr()
    for shown in (console.file.getvalue(), captured.out, captured.err):
        assert not [each for each in ("\x1b]", "\x1b[2J", "\x07", "\x9b", "\u202e") if each in shown]
        assert "OWNED" in shown


def test_a_log_keeps_its_colours_and_progress_bars():
    assert coloured("\x1b[31mred\x1b[0m 50%\r\x1b[2J\x1b[1A") == "\x1b[31mred\x1b[0m 50%\r\\x1b[2J\\x1b[1A"
