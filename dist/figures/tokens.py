"""Rust's tokens, as far as counting needs them: what is code, a comment, a string; and which brackets
belong together. Strings, raw strings, characters beside lifetimes and nested comments are told apart;
whether the program makes sense is not asked."""

import re
from bisect import bisect_right
from typing import NamedTuple

IDENT, LITERAL, PUNCT, DOC, INNER_DOC, COMMENT = "ident literal punct doc inner comment".split()

PIECE = re.compile(
    r"""
      (?P<space>\s+)
    | (?P<line>//[^\n]*)
    | (?P<block>/\*)
    | (?P<raw>(?:br|cr|r)(?P<hashes>\#*)")
    | (?P<string>(?:b|c)?"(?:[^"\\]|\\.)*")
    | (?P<char>b?'(?:[^'\\\n]|\\(?:x[0-9a-fA-F]{2}|u\{[^}]*\}|.))')
    | (?P<lifetime>'(?:r\#)?[^\W\d]\w*)
    | (?P<ident>(?:r\#)?[^\W\d]\w*)
    | (?P<number>\d(?:[eE][+-]\d|\w|\.(?=\d))*)
    | (?P<punct>::|->|=>|\.\.=?|.)
    """,
    re.VERBOSE | re.DOTALL,
)
COMMENT_EDGE = re.compile(r"/\*|\*/")
OPENING = {"(": ")", "[": "]", "{": "}"}


class Token(NamedTuple):
    kind: str
    text: str
    first: int  # line, from 1
    last: int


def tokens(text: str) -> list[Token]:
    """All tokens of a file, comments included. Raises ValueError where one does not end."""
    starts = [0] + [m.end() for m in re.finditer("\n", text)]
    result, at = [], 0
    while at < len(text):
        match = PIECE.match(text, at)
        kind, end = kind_and_end(match, text)
        if kind:
            result.append(Token(kind, text[at:end], bisect_right(starts, at), bisect_right(starts, end - 1)))
        at = end
    return result


def kind_and_end(match: re.Match, text: str) -> tuple[str | None, int]:
    name, end = match.lastgroup, match.end()
    if match["raw"]:
        closing = text.find('"' + match["hashes"], end)
        if closing < 0:
            raise ValueError(f"a raw string does not end: {text[match.start():][:40]!r}")
        return LITERAL, closing + 1 + len(match["hashes"])
    if name == "block":
        end = end_of_block(text, end)
        return comment_kind(text[match.start() : end], "/**", "/*!"), end
    if name == "line":
        return comment_kind(match.group(), "///", "//!"), end
    kinds = {"space": None, "ident": IDENT, "punct": PUNCT}
    return kinds.get(name, LITERAL), end


def end_of_block(text: str, at: int) -> int:
    depth = 1
    while depth:
        edge = COMMENT_EDGE.search(text, at)
        if not edge:
            raise ValueError("a block comment does not end")
        depth += 1 if edge.group() == "/*" else -1
        at = edge.end()
    return at


def comment_kind(text: str, outer: str, inner: str) -> str:
    """`////` and `/***` are plain comments, as rustdoc has it."""
    if text.startswith(inner):
        return INNER_DOC
    if text.startswith(outer) and text[3:4] not in ("/", "*"):
        return DOC
    return COMMENT


def partners(code: list[Token]) -> dict[int, int]:
    """For each opening bracket's index that of its closing one."""
    result, open_at = {}, []
    for index, token in enumerate(code):
        if token.kind != PUNCT:
            continue
        if token.text in OPENING:
            open_at.append(index)
        elif token.text in OPENING.values():
            if not open_at or OPENING[code[open_at[-1]].text] != token.text:
                raise ValueError(f"line {token.first}: {token.text} closes nothing")
            result[open_at.pop()] = index
    if open_at:
        raise ValueError(f"line {code[open_at[-1]].first}: {code[open_at[-1]].text} is not closed")
    return result
