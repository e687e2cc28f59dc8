r"""Data statistics of block-list tasks, measured from real text.

`measure` returns the numbers that place a text on a phase diagram: how much of it is rare, how
variable the successors of its common tokens are, how often a context already holds the current
token. The same numbers for a random permutation of the same tokens are the baseline.

**Notation.** The text is $x_1 \dots x_T$, tokens of $V$ types. Type $x$ occurs $n_x$ times and is
followed by type $y$ in $c_{xy}$ places. $W$ is the context, in tokens.

**What a block-list task cannot express.** Its prompts are short blocks in random order; a text has
more to it, and none of this is an axis of a phase diagram:

- dependencies longer than a block: agreement, coreference, a plot;
- overlapping n-grams: a token of a text ends one bigram and begins the next, blocks share nothing;
- syntax: a successor depends on structure, not on the one token before it alone;
- topics that drift: every average here runs over the whole text, as if it were stationary;
- several senses: a type is one token, whatever it means in its place;
- rare tokens which do have relations (a part of speech, a spelling): the rare class has none;
- relevance: every earlier occurrence counts as a copy here, whether it bears on the answer or not.

**Memory and time.** Measured on 100 MB with two cores: words 1.0 GB and 52 s (28 million tokens,
a million types), bytes 0.6 GB and 52 s, characters 1.1 GB and 54 s (626 types). At its peak, a word
takes up to 55 bytes, a byte 7 and a character 11 (18 beyond 65,536 types); while the text is read,
each type takes about 200 more. A context longer than four million tokens adds 80 bytes per token.
"""

from __future__ import annotations

import codecs
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

import numpy as np
from tqdm import tqdm

Tokenization = Literal["words", "characters", "bytes"]

_CHUNK = 1 << 22  # bytes that are read, and tokens that are looked at, in one go
_ZIPF_COUNT = 10  # a type below this count has too noisy a frequency to be fitted
_ZIPF_RANKS = 10  # a line through fewer ranks is no law

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_WHOLE_WORDS = re.compile(r"(?s).*(?:[^\w']|_)")  # up to the last character that ends a word


@dataclass(frozen=True)
class CorpusStatistics:
    r"""Data statistics of one sequence of tokens. `None` stands for what is undefined.

    **Attributes:**

    - `name`: the file's name without its ending.
    - `tokenization`: `"words"`, `"characters"` or `"bytes"`.
    - `context`: $W$, in tokens.
    - `tokens`: $T$, the length of the text.
    - `rare_fraction`: share of the running text whose type is too seldom to be memorised in
      weights, $f_r = \frac1T \sum_{x:\, n_x < r} n_x$ with $r$ = `rare_count`.
    - `variability`: mean over the running common (not rare) tokens that have a successor,
      $f_v = \langle 1 - \sum_y p(y|x)^2 \rangle$. The sum is estimated without bias by
      $\sum_y c_{xy}(c_{xy}-1) / (m_x(m_x-1))$, $m_x = \sum_y c_{xy}$: the share of pairs of
      occurrences that agree on the successor. Types with $m_x < 2$ have no pair and are left out.
      Plugging in $p = c_{xy}/m_x$ would take the share $1/m_x$ off $f_v$, a tenth at ten
      occurrences, and make it depend on the length of the text.
    - `context_fraction`: $P(k_t > 0)$ over all $t > W$. Here and below,
      $k_t = \#\{1 \le s \le W : x_{t-s} = x_t\}$ counts the current token in its context.
    - `burstiness`: $\langle k_t \mid k_t > 0 \rangle$ over the same $t$.
    - `zipf_exponent`: $s$ in $n \propto \text{rank}^{-s}$, from least squares of the logarithms on
      up to 100 log-spaced ranks.
    - `zipf_range`: first and last rank of the fit, 1 and the last type that occurs at least ten
      times. `None`, as is the exponent, if fewer than ten types do.
    - `frequency_bins`: types by count: 1 to 9, 10 to 99 and so on, without the empty bins. `tokens`
      is the number of types, `fraction` their share of the running text, `lowest_count` and
      `highest_count` are the bin's bounds, both included. Each bin is a token class.
    - `successor_agreement`: $P(x_{u+1} = x_{t+1} \mid k_t > 0)$ over $W < t < T$, where $u < t$ is
      the latest earlier occurrence of $x_t$: how often it is right to copy what followed last time.
    - `vocabulary`: $V$, the number of distinct types.
    """

    name: str
    tokenization: Tokenization
    context: int
    tokens: int
    rare_fraction: float
    variability: float | None
    context_fraction: float
    burstiness: float | None
    zipf_exponent: float | None
    zipf_range: tuple[int, int] | None
    frequency_bins: tuple[dict[str, float], ...]
    successor_agreement: float | None
    vocabulary: int

    def as_dict(self) -> dict[str, Any]:
        """The statistics as plain JSON values."""
        return json.loads(json.dumps(asdict(self), allow_nan=False))


@dataclass(frozen=True)
class Corpus:
    """Statistics of a text beside those of a random permutation of its tokens, the baseline.

    Types and counts are the same in both; the difference is what the order of the tokens adds.
    """

    text: CorpusStatistics
    shuffled: CorpusStatistics

    def as_dict(self) -> dict[str, Any]:
        """The text's statistics as one JSON object, which holds the baseline's as `shuffled`."""
        return self.text.as_dict() | {"shuffled": self.shuffled.as_dict()}


def measure(
    path: str | os.PathLike[str],
    *,
    tokenization: Tokenization = "words",
    context: int = 64,
    rare_count: int = 10,
    seed: int = 0,
    progress: bool = False,
) -> Corpus:
    """Measure the data statistics of a text file and of a random permutation of its tokens.

    **Arguments:**

    - `path`: the text, in UTF-8 unless it is read as bytes.
    - `tokenization`: `"words"` are maximal runs of letters and digits of any script, joined by
      single apostrophes (`know't`), in lower case. Everything else separates words: quotation
      marks, underscores and combining marks too. `"characters"` are Unicode code points, `"bytes"`
      raw bytes, line ends and all.
    - `context`: number of tokens before the current one in which it is looked for.
    - `rare_count`: a type is rare if it occurs fewer times than this in the whole text.
    - `seed`: of the permutation.
    - `progress`: whether to show progress bars on the standard error stream.

    **Raises:** `ValueError` if the file cannot be read, holds a NUL or no valid UTF-8 (unless it is
    read as bytes) or fewer than `context + 2` tokens; if `context` or `rare_count` is below 1 or
    `seed` below 0; if `tokenization` is none of the three.
    """
    _check(tokenization, context=(context, 1), rare_count=(rare_count, 1), seed=(seed, 0))
    source = Path(path)
    tokens = _read(source, tokenization, progress)
    _check_length(tokens, source, tokenization, context)
    describe = partial(_describe, source.stem, tokenization, context, rare_count, progress)
    text = describe(tokens)
    return Corpus(text=text, shuffled=describe(np.random.default_rng(seed).permutation(tokens)))


def _describe(
    name: str,
    tokenization: Tokenization,
    context: int,
    rare_count: int,
    progress: bool,
    tokens: np.ndarray,
) -> CorpusStatistics:
    counts = _counts(tokens)
    seen, copies, asked, agreed = _context_sums(tokens, context, progress)
    zipf_exponent, zipf_range = _zipf(counts)
    return CorpusStatistics(
        name=name,
        tokenization=tokenization,
        context=int(context),
        tokens=len(tokens),
        rare_fraction=float(counts[counts < rare_count].sum() / len(tokens)),
        variability=_variability(tokens, counts, rare_count),
        context_fraction=float(seen / (len(tokens) - context)),
        burstiness=_ratio(copies, seen),
        zipf_exponent=zipf_exponent,
        zipf_range=zipf_range,
        frequency_bins=_frequency_bins(counts),
        successor_agreement=_ratio(agreed, asked),
        vocabulary=int(np.count_nonzero(counts)),
    )


# Counts


def _counts(tokens: np.ndarray) -> np.ndarray:
    """Occurrences of each id. In chunks, since `bincount` makes a wide copy of what it counts."""
    types = int(tokens.max()) + 1
    total = np.zeros(types, np.int64)
    for start in range(0, len(tokens), _CHUNK):
        total += np.bincount(tokens[start : start + _CHUNK], minlength=types)
    return total


def _zipf(counts: np.ndarray) -> tuple[float, tuple[int, int]] | tuple[None, None]:
    """Exponent and ranks of a fitted Zipf law. Log-spaced ranks weigh all decades alike."""
    ordered = np.sort(counts)[::-1]
    last = int(np.count_nonzero(ordered >= _ZIPF_COUNT))
    if last < _ZIPF_RANKS:
        return None, None
    ranks = np.unique(np.geomspace(1, last, 100).round().astype(int))
    slope = np.polyfit(np.log(ranks), np.log(ordered[ranks - 1]), 1)[0]
    return float(-slope), (1, last)


def _frequency_bins(counts: np.ndarray) -> tuple[dict[str, float], ...]:
    present = counts[counts > 0]
    decades = np.searchsorted(10 ** np.arange(1, 18), present, side="right")
    bins = ((int(decade), present[decades == decade]) for decade in np.unique(decades))
    return tuple(
        {
            "tokens": len(members),
            "fraction": float(members.sum() / present.sum()),
            "lowest_count": 10**decade,
            "highest_count": 10 ** (decade + 1) - 1,
        }
        for decade, members in bins
    )


def _variability(tokens: np.ndarray, counts: np.ndarray, rare_count: int) -> float | None:
    followed = counts.copy()
    followed[tokens[-1]] -= 1  # the last token has no successor
    common = (counts >= rare_count) & (followed > 1)
    if not common.any():
        return None
    times = followed[common]
    agreement = _agreeing_pairs(tokens, len(counts))[common] / (times * (times - 1))
    return float(1 - np.average(agreement, weights=times))


def _agreeing_pairs(tokens: np.ndarray, types: int) -> np.ndarray:
    r"""$\sum_y c_{xy}(c_{xy}-1)$ for each id $x$, from a sorted list of all bigrams."""
    bigrams = tokens[:-1].astype(np.min_scalar_type(types**2 - 1))  # two bytes each, for bytes
    bigrams *= types
    bigrams += tokens[1:]
    bigrams.sort()
    starts = np.flatnonzero(np.append(True, bigrams[1:] != bigrams[:-1]))
    counts = np.diff(starts, append=len(bigrams))
    repeated = counts > 1
    first, counts = bigrams[starts[repeated]] // types, counts[repeated]
    return np.bincount(first.astype(np.int64), weights=counts * (counts - 1), minlength=types)


# Contexts


def _context_sums(tokens: np.ndarray, context: int, progress: bool) -> np.ndarray:
    """Sums over the positions with a full context: see `_piece_sums`."""
    step = max(_CHUNK, context)
    starts = range(context, len(tokens), step)
    sums = np.zeros(4, np.int64)
    for start in tqdm(starts, desc="contexts", leave=False, disable=not progress):
        # a context before, a successor after
        sums += _piece_sums(tokens[start - context : start + step + 1], context, step)
    return sums


def _piece_sums(piece: np.ndarray, context: int, step: int) -> np.ndarray:
    """Of `step` positions: how many are seen before, copies, seen with a successor, agreeing."""
    copies, latest = _earlier(piece, context)
    here = copies[context : context + step]
    asked = context + np.flatnonzero(copies[context:-1])
    agreed = piece[latest[asked] + 1] == piece[asked + 1]
    return np.array([np.count_nonzero(here), here.sum(), len(asked), np.count_nonzero(agreed)])


def _earlier(piece: np.ndarray, context: int) -> tuple[np.ndarray, np.ndarray]:
    """For each position: copies of its token in the context before it, and the latest, if any."""
    order = np.argsort(piece, kind="stable")  # by type, then by position
    spacing = len(piece) + context  # no context reaches the places of another type
    places = piece[order].astype(np.int64) * spacing + order
    copies, latest = np.empty_like(order), np.empty_like(order)
    copies[order] = np.arange(len(order)) - np.searchsorted(places, places - context)
    latest[order] = np.roll(order, 1)
    return copies, latest


def _ratio(part: int, whole: int) -> float | None:
    return float(part / whole) if whole else None


# Reading


def _read(path: Path, tokenization: Tokenization, progress: bool) -> np.ndarray:
    """The text as ids of the smallest integer type that holds them."""
    chunks = _chunks(path, progress)
    if tokenization == "bytes":
        parts = (np.frombuffer(chunk, np.uint8) for chunk in chunks)
    else:
        pieces = _decoded(chunks, path)
        parts = _numbered(pieces if tokenization == "characters" else _words(pieces))
    return np.concatenate([np.empty(0, np.uint8), *parts])


def _chunks(path: Path, progress: bool) -> Iterator[bytes]:
    try:
        file = path.open("rb")
    except OSError as error:
        _refuse("path", "be a readable file", f"{path} is not ({error.strerror})")
    size = os.fstat(file.fileno()).st_size
    bar = tqdm(
        total=size, desc="reading", unit="B", unit_scale=True, leave=False, disable=not progress
    )
    with file, bar:
        while chunk := file.read(_CHUNK):
            bar.update(len(chunk))
            yield chunk


def _decoded(chunks: Iterable[bytes], path: Path) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    end = 0
    for chunk in chain(chunks, [b""]):
        if b"\0" in chunk:
            _refuse_byte(path, end + chunk.index(b"\0"), "a NUL")
        end += len(chunk)
        try:
            yield decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:  # of the chunk and what was left of the one before
            _refuse_byte(path, end - len(error.object) + error.start, "not valid")


def _words(pieces: Iterable[str]) -> Iterator[Iterable[str]]:
    rest = ""
    for piece in chain(pieces, [" "]):  # a space ends the last word
        text = rest + piece.replace("\u2019", "'")  # typographic apostrophes
        whole = _WHOLE_WORDS.match(text)
        end = whole.end() if whole else 0
        # words are lower-cased one by one: the lower case of a text depends on where it is cut
        yield map(str.lower, _WORD.findall(text, 0, end))
        rest = text[end:]


def _numbered(chunks: Iterable[Iterable[str]]) -> Iterator[np.ndarray]:
    numbers: defaultdict[str, int] = defaultdict()
    numbers.default_factory = numbers.__len__  # a new type gets the next number
    for chunk in chunks:
        ids = np.fromiter(map(numbers.__getitem__, chunk), np.uint32)
        yield ids.astype(np.min_scalar_type(len(numbers)))


# Checks


def _check(tokenization: str, **integers: tuple[int, int]) -> None:
    known = get_args(Tokenization)
    if tokenization not in known:
        _refuse("tokenization", f"be one of {', '.join(known)}", f"is {tokenization!r}")
    for name, (value, least) in integers.items():
        if not isinstance(value, (int, np.integer)) or value < least:
            _refuse(name, f"be an integer of at least {least}", f"is {value!r}")


def _check_length(tokens: np.ndarray, path: Path, tokenization: Tokenization, context: int) -> None:
    if len(tokens) < context + 2:
        least = f"hold at least context + 2 = {context + 2} {tokenization}"
        _refuse("path", least, f"{path} holds {len(tokens)}")


def _refuse_byte(path: Path, position: int, what: str) -> NoReturn:
    _refuse("path", "be a text in UTF-8", f"byte {position} of {path} (counted from 0) is {what}")


def _refuse(argument: str, must: str, but: str) -> NoReturn:
    raise ValueError(f"Argument `{argument}` must {must}, but {but}.")
