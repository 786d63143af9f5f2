"""One file of Rust without its tests: what is behind `cfg(test)`, `#[test]` or a feature that only
tests turn on is taken out, and the rest can be counted."""

from pathlib import Path

from tokens import COMMENT, DOC, IDENT, INNER_DOC, PUNCT, Token, partners, tokens

# Features that nothing in the product turns on.
TEST_FEATURES = {"test-support", "test-run", "rehearsal"}
# What ends at its semicolon even when braces come first.
STATEMENTS = {"use", "static", "type", "let"}
FUNCTION_WORDS = {"const", "unsafe", "async", "extern", "default"}
ITEMS = {"fn", "struct", "enum", "trait", "type", "const", "static", "union", "mod", "macro"}


class Source:
    """`code` has neither comments nor tests; `pairs` its brackets. What is a test whole has no code."""

    def __init__(self, path: Path):
        self.path = path
        self.text = path.read_text()
        everything = tokens(self.text)
        code = [token for token in everything if token.kind not in (COMMENT, DOC, INNER_DOC)]
        tests = test_spans(code, partners(code))
        self.test_lines = lines_of_spans(code, tests, everything)
        inside = set(index for span in tests for index in range(*span))
        self.code = [token for index, token in enumerate(code) if index not in inside]
        self.pairs = partners(self.code)
        self.documented = {token.last for token in everything if token.kind == DOC}

    @property
    def code_lines(self) -> int:
        blank = {number for number, line in enumerate(self.text.split("\n"), 1) if not line.strip()}
        lines = set(line for token in self.code for line in range(token.first, token.last + 1))
        return len(lines - blank)

    @property
    def lines(self) -> int:
        return len(self.text.splitlines()) - len(self.test_lines)

    def functions(self):
        """Name, first line and length of each function with a body, from signature to closing brace."""
        for index, token in enumerate(self.code[:-1]):
            if token.text != "fn" or self.code[index + 1].kind != IDENT:
                continue
            body = index + 2
            while body < len(self.code) and self.code[body].text not in ("{", ";"):
                body = self.pairs.get(body, body) + 1
            if body in self.pairs:
                start = self.code[start_of_item(self.code, index)].first
                yield self.code[index + 1].text, start, self.code[self.pairs[body]].last - start + 1

    def undocumented(self):
        """Name and line of each `pub` item, methods among them, without a doc comment. Not fields,
        variants, re-exports, and modules whose own file has a head."""
        for index, token in enumerate(self.code):
            if token.text != "pub" or self.code[index + 1].text == "(":
                continue
            word = index + 1
            while self.code[word].text in FUNCTION_WORDS and self.code[word + 1].text in FUNCTION_WORDS | {"fn", "trait"}:
                word += 1
            if self.code[word].kind != IDENT or self.code[word].text not in ITEMS:
                continue
            if self.code[word].text == "mod" and self.code[word + 2].text == ";":
                continue
            if not self.is_documented(index):
                yield self.code[word + 1].text, token.first

    def is_documented(self, index: int) -> bool:
        """Whether a doc comment stands above the item, before or between its attributes."""
        while self.code[index].first - 1 not in self.documented:
            if index == 0 or self.code[index - 1].text != "]":
                return False
            closing = index - 1
            index = next(opening for opening, end in self.pairs.items() if end == closing) - 1
        return True


def start_of_item(code: list[Token], index: int) -> int:
    """From `fn` back over `pub`, `const`, `async`, `unsafe`, `extern "C"`."""
    while index and (code[index - 1].text in FUNCTION_WORDS | {"pub"} or code[index - 1].text.startswith('"')):
        index -= 1
    return index


def test_spans(code: list[Token], pairs: dict[int, int]) -> list[tuple[int, int]]:
    """Half-open ranges of tokens that are tests, outermost first."""
    spans, index = [], 0
    while index < len(code):
        if code[index].text != "#":
            index += 1
            continue
        start, is_test = index, False
        while index < len(code) and code[index].text == "#":
            is_inner = code[index + 1].text == "!"
            opening = index + 1 + is_inner
            if opening not in pairs:
                index += 1
                break
            if marks_test(code[opening + 1 : pairs[opening]]):
                if is_inner:
                    return [(0, len(code))]
                is_test = True
            index = pairs[opening] + 1
        if is_test:
            index = end_of_item(code, pairs, index)
            spans.append((start, index))
    return spans


def marks_test(attribute: list[Token]) -> bool:
    texts = [token.text for token in attribute]
    if texts == ["test"] or texts[-2:] == ["::", "test"]:
        return True
    return texts[:2] == ["cfg", "("] and True not in outcomes(texts[2:-1])


def outcomes(texts: list[str]) -> set[bool]:
    """What a `cfg` predicate can be in the product: tests are not compiled, all else is open."""
    if texts == ["test"]:
        return {False}
    if texts[:2] == ["feature", "="] and texts[2].strip('"') in TEST_FEATURES:
        return {False}
    if texts[:1] == ["not"]:
        return {not value for value in outcomes(texts[2:-1])}
    if texts[:1] in (["any"], ["all"]):
        parts = [outcomes(part) for part in split(texts[2:-1])]
        decides = texts[0] == "any"
        if any(part == {decides} for part in parts):
            return {decides}
        return {not decides} if all(part == {not decides} for part in parts) else {True, False}
    return {True, False}


def split(texts: list[str]) -> list[list[str]]:
    """At the commas that stand in no bracket."""
    parts, depth = [[]], 0
    for text in texts:
        depth += (text == "(") - (text == ")")
        if text == "," and depth == 0:
            parts.append([])
        else:
            parts[-1].append(text)
    return [part for part in parts if part]


def end_of_item(code: list[Token], pairs: dict[int, int], index: int) -> int:
    """Behind the item, field, arm or statement that begins here."""
    if code[index].text == "pub":
        index += 1
        index = pairs.get(index, index - 1) + 1
    words = code[index].text, code[index + 1].text
    is_statement = words[0] in STATEMENTS or words[0] == "const" and words[1] not in FUNCTION_WORDS | {"fn"}
    is_field = code[index].kind == IDENT and words[1] == ":"
    angles = 0
    while index < len(code):
        text = code[index].text
        if text in (")", "]", "}"):
            return index
        angles += is_field and (text == "<") - (text == ">")
        if text == ";" or text == "," and angles == 0 and not is_signature(words):
            return index + 1
        if text == "{" and not is_statement:
            end = pairs[index] + 1
            if end == len(code) or code[end].text not in (".", "?", "else"):
                return end + (end < len(code) and code[end].text == ",")
        index = pairs.get(index, index) + 1
    return index


def is_signature(words: tuple[str, str]) -> bool:
    """Whether commas may stand in angle brackets or a where clause before the item's end."""
    return bool({"fn", "impl", "struct", "enum", "trait", "type", "const", "use", "unsafe", "async"} & set(words))


def lines_of_spans(code, spans, everything) -> set[int]:
    """The lines that tests take, with the comments directly above each."""
    result = set()
    comments = {line for token in everything if token.kind in (COMMENT, DOC) for line in range(token.first, token.last + 1)}
    for start, end in spans:
        first = code[start].first
        while first - 1 in comments and first - 1 not in {token.last for token in code[max(0, start - 1) : start]}:
            first -= 1
        result |= set(range(first, code[end - 1].last + 1))
    return result
