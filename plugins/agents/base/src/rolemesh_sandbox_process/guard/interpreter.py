"""The Python interpreter of a sandbox, which keeps its variables from cell to cell.

Its source is given to the interpreter as a text, so it imports nothing of ours.
"""

from __future__ import annotations

import ast
import linecache
import os
import sys
import traceback
import types

__all__ = ["serve"]


def serve(code: int, asked: int, done: int) -> None:
    """Run each cell. A process that a cell has forked ends where its cell ends.

    - `code`: a file with the cell's text.
    - `asked`: a pipe with the length of the text in 8 bytes.
    - `done`: a pipe that gets one byte at the end of a cell: 0, or 1 if it raised an exception.
    """
    for each in (code, asked, done):
        os.set_inheritable(each, False)
    ours, sys.modules["__main__"] = sys.modules["__main__"], types.ModuleType("__main__")
    variables, number, own = sys.modules["__main__"].__dict__, 0, os.getpid()
    variables["__builtins__"] = ours.__dict__["__builtins__"]
    while len(told := os.read(asked, 8)) == 8:
        number += 1
        text = os.pread(code, int.from_bytes(told, "little"), 0).decode()
        failed = run(text, f"<cell {number}>", variables)
        sys.stdout.flush()
        sys.stderr.flush()
        if os.getpid() != own:
            os._exit(failed)
        os.write(done, bytes([failed]))


def run(text: str, name: str, variables: dict[str, object]) -> bool:
    """Run one cell, and print the value of its last expression. Return whether it raised an exception."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    try:
        tree = ast.parse(text, name)
        shown = [tree.body.pop()] if tree.body and isinstance(tree.body[-1], ast.Expr) else []
        exec(compile(tree, name, "exec", dont_inherit=True), variables)
        if shown:
            exec(compile(ast.Interactive(shown), name, "single", dont_inherit=True), variables)
    except SystemExit:
        raise
    except BaseException as error:
        told = error.__traceback__
        while told is not None and told.tb_frame.f_code.co_filename != name:
            told = told.tb_next
        traceback.print_exception(type(error), error, told)
        return True
    return False
