"""Decides whether the code of a text can change anything in its worker, by what the interpreter is about to run."""

from __future__ import annotations

import dis
import re
from types import CodeType
from typing import Final

__all__ = ["NO_NAMES", "first_other_name", "only_computes"]

NO_NAMES: Final = re.compile(r"(?!)")
"""No name is safe."""
_COMPUTES: Final = frozenset(
    dis.opmap[name]
    for name in (
        # the frame, and arguments of others
        *("RESUME", "CACHE", "NOP", "EXTENDED_ARG", "PRECALL", "PUSH_NULL", "POP_TOP", "RETURN_VALUE", "RETURN_CONST"),
        *("LOAD_CONST", "LOAD_SMALL_INT", "LOAD_NAME", "CALL"),
        *("UNARY_POSITIVE", "UNARY_NEGATIVE", "UNARY_INVERT", "UNARY_NOT"),
        *("COMPARE_OP", "IS_OP", "CONTAINS_OP"),
        *("BUILD_TUPLE", "BUILD_LIST", "BUILD_SET", "BUILD_MAP", "BUILD_CONST_KEY_MAP"),
        *("LIST_EXTEND", "LIST_APPEND", "SET_UPDATE", "SET_ADD", "MAP_ADD", "DICT_UPDATE"),
    )
    if name in dis.opmap
)
"""Instructions that make values out of others. None reads an attribute or an item, binds a name, jumps, imports, or
makes a function."""
_NAME, _BINARY, _PURE = dis.opmap["LOAD_NAME"], dis.opmap["BINARY_OP"], 13
"""The instructions that read a name and apply a binary operator; how many operators change no operand and read no
item."""


def only_computes(code: CodeType, names: re.Pattern[str]) -> bool:
    """Return whether `code` only makes values out of constants, of operators, and of what matches `names`.

    What `names` means must be safe to call with such values. Texts among them may be evaluated in turn: that is other
    code, on which this function decides again.
    """
    operations, arguments = code.co_code[::2], code.co_code[1::2]
    return all(map(names.fullmatch, code.co_names)) and all(
        number in _COMPUTES or (number == _BINARY and which < _PURE)
        for number, which in zip(operations, arguments, strict=True)
    )


def first_other_name(code: CodeType, names: re.Pattern[str]) -> str | None:
    """Return the first name in `code` that `names` does not match, if the code only computes until it reads that name;
    else None. If nothing has this name, the code ends there: it catches no exception."""
    if code.co_exceptiontable:
        return None
    for each in dis.get_instructions(code):
        if each.opcode == _NAME and not names.fullmatch(each.argval):
            return str(each.argval)
        if each.opcode not in _COMPUTES and not (each.opcode == _BINARY and (each.arg or 0) < _PURE):
            return None
    return None
