"""The template language: a task in one line.

    relevant blocks | query -> answer            a b; b c | a -> c
    relevant | decoys | query -> answer          a b c | a * *; * b * | a b -> c

Blocks are separated by `;`, tokens by spaces. Letters (any names) are tokens bound once per
prompt, `*` is a fresh token, braces around a block mean that its tokens stand in random order.
"""

import itertools
import re
from dataclasses import dataclass
from functools import cached_property

FRESH = "*"
_TOKEN = re.compile(r"[A-Za-z][A-Za-z0-9_]*|\*")


@dataclass(frozen=True)
class Block:
    tokens: tuple[str, ...]
    shuffled: bool = False

    def __str__(self) -> str:
        text = " ".join(self.tokens)
        return f"{{{text}}}" if self.shuffled else text


@dataclass(frozen=True)
class Template:
    """Relevant blocks, decoys, query and answer of a block-list task (arXiv 2607.11875)."""

    relevant: tuple[Block, ...]
    decoys: tuple[Block, ...]
    query: tuple[str, ...]
    answer: str

    def __post_init__(self) -> None:
        for letter in (*self.query, self.answer, *(t for b in self.decoys for t in b.tokens)):
            if letter not in (*self.letters, FRESH):
                raise ValueError(
                    _must(
                        f"bind every letter in a relevant block, but {letter!r} "
                        f"is bound nowhere in {str(self)!r}"
                    )
                )
        if FRESH in (*self.query, self.answer):
            raise ValueError(
                _must(
                    f"ask with letters and for a letter, but has {FRESH!r} in the "
                    f"query or the answer of {str(self)!r}"
                )
            )
        if len(self.query) >= self.block_size:
            raise ValueError(
                _must(
                    f"have a query shorter than its longest block of "
                    f"{self.block_size}, but {' '.join(self.query)!r} has "
                    f"{len(self.query)} tokens"
                )
            )

    @cached_property
    def letters(self) -> tuple[str, ...]:
        """The letters in order of first appearance: each is associated with the one before it."""
        seen = dict.fromkeys(t for block in self.relevant for t in block.tokens)
        return tuple(letter for letter in seen if letter != FRESH)

    @property
    def block_size(self) -> int:
        return max(len(block.tokens) for block in (*self.relevant, *self.decoys))

    @property
    def hops(self) -> int:
        """Associations between the answer and the query letter nearest to it."""
        place = self.letters.index
        return min(abs(place(self.answer) - place(letter)) for letter in self.query)

    def __str__(self) -> str:
        sections = [
            "; ".join(map(str, blocks)) for blocks in (self.relevant, self.decoys) if blocks
        ]
        return " | ".join([*sections, f"{' '.join(self.query)} -> {self.answer}"])


def _must(what: str) -> str:
    return f"Argument `task` must {what}."


def parse(text: str) -> Template:
    """Read a template; a `ValueError` points at the place that does not parse."""
    sections = _split(text, "|")
    if len(sections) not in (2, 3):
        raise _unreadable(text, len(text), "the end: a template needs `blocks | query -> answer`")
    arrow = text.find("->", sections[-1].start)
    if arrow < 0:
        _tokens(text, sections[-1])
        raise _unreadable(text, len(text), "the end, without an arrow `->` before the answer")
    query = _tokens(text, _Span(sections[-1].start, arrow))
    answer = _tokens(text, _Span(arrow + 2, len(text)))
    if len(answer) != 1:
        raise _unreadable(text, arrow + 2, f"an answer of {len(answer)} tokens instead of one")
    blocks = [
        tuple(_block(text, span) for span in _split(text, ";", part)) for part in sections[:-1]
    ]
    return Template(blocks[0], blocks[1] if len(blocks) > 1 else (), query, answer[0])


@dataclass(frozen=True)
class _Span:
    start: int
    end: int


def _split(text: str, separator: str, span: _Span | None = None) -> list[_Span]:
    span = span or _Span(0, len(text))
    cuts = [i for i in range(span.start, span.end) if text[i] == separator]
    ends = [span.start - 1, *cuts, span.end]
    return [_Span(a + 1, b) for a, b in itertools.pairwise(ends)]


def _block(text: str, span: _Span) -> Block:
    inner = text[span.start : span.end]
    left, right = span.start + len(inner) - len(inner.lstrip()), span.start + len(inner.rstrip())
    if inner.strip().startswith("{"):
        if not inner.strip().endswith("}"):
            raise _unreadable(text, left, "a brace that is not closed at the block's end")
        return Block(_tokens(text, _Span(left + 1, right - 1)), shuffled=True)
    return Block(_tokens(text, span))


def _tokens(text: str, span: _Span) -> tuple[str, ...]:
    tokens, place = [], span.start
    while place < span.end:
        match = _TOKEN.match(text, place, span.end)
        if not match and not text[place].isspace():
            raise _unreadable(text, place, repr(text[place]))
        tokens += [match.group()] if match else []
        place = match.end() if match else place + 1
    if not tokens:
        raise _unreadable(text, span.end, "no token")
    return tuple(tokens)


def _unreadable(text: str, place: int, found: str) -> ValueError:
    return ValueError(
        f"Argument `task` must be a name or a template such as 'a b; b c | a -> c', "
        f"but {text!r} has {found} at character {place + 1}."
    )


NAMED = {
    "recall": "a b | a -> b",
    "inversion": "a b | b -> a",
    "retrieval": "a b c | a * *; * b * | a b -> c",
    "ioi": "{a b} | a -> b",
}


def named(name: str) -> Template:
    """A task by its name (`recall`, `2hop`, `3gram`, `inversion`, `retrieval`, `ioi`) or template.

    `khop` chains k blocks of two tokens, `kgram` asks for the last token of a block of k.
    """
    text = name.strip()
    if text in NAMED:
        return parse(NAMED[text])
    if match := re.fullmatch(r"([1-9]\d?)hop", text):
        return _hops(int(match[1]))
    if match := re.fullmatch(r"([2-9]|[1-9]\d)gram", text):
        letters = _letters(int(match[1]))
        return Template((Block(letters),), (), letters[:-1], letters[-1])
    if re.fullmatch(r"\w*", text):
        names = ", ".join([*NAMED, "2hop (any khop)", "3gram (any kgram)"])
        raise ValueError(_must(f"be a template or one of {names}, but is {name!r}"))
    return parse(name)


def _hops(k: int) -> Template:
    letters = _letters(k + 1)
    blocks = tuple(Block(pair) for pair in itertools.pairwise(letters))
    return Template(blocks, (), letters[:1], letters[-1])


def _letters(count: int) -> tuple[str, ...]:
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    return tuple(alphabet[i] if i < 26 else f"x{i}" for i in range(count))
