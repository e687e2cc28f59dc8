"""Data statistics of text, against hand-computed values, plain Python and known distributions."""

import json
import math
import random
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from imir import corpus
from imir.corpus import measure

SHAKESPEARE = Path(__file__).parents[2] / "shared" / "data" / "shakespeare.txt"
TOKENIZATIONS = ("words", "characters", "bytes")


@pytest.fixture
def write(tmp_path):
    def write(content):
        path = tmp_path / "sample.txt"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


# A plain reference: one token at a time, with dictionaries


def tokenize(text, tokenization):
    if tokenization == "bytes":
        return list(text.encode())
    if tokenization == "characters":
        return list(text)
    text = f" {text} ".replace("\u2019", "'")
    inside = [
        char.isalnum() or (char == "'" and before.isalnum() and after.isalnum())
        for before, char, after in zip(text, text[1:], text[2:], strict=False)
    ]
    spaced = "".join(char if keep else " " for char, keep in zip(text[1:], inside, strict=False))
    return [word.lower() for word in spaced.split()]


def mean(values):
    return sum(values) / len(values) if values else None


def reference(tokens, context, rare_count):
    counts = Counter(tokens)
    copies, agreements = [], []
    for here in range(context, len(tokens)):
        earlier = [u for u in range(here - context, here) if tokens[u] == tokens[here]]
        copies.append(len(earlier))
        if earlier and here + 1 < len(tokens):
            agreements.append(tokens[earlier[-1] + 1] == tokens[here + 1])
    return {
        "tokens": len(tokens),
        "vocabulary": len(counts),
        "rare_fraction": mean([counts[token] < rare_count for token in tokens]),
        "variability": reference_variability(tokens, counts, rare_count),
        "context_fraction": mean([k > 0 for k in copies]),
        "burstiness": mean([k for k in copies if k]),
        "successor_agreement": mean(agreements),
    }


def reference_variability(tokens, counts, rare_count):
    followers = {}
    for token, successor in pairwise(tokens):
        followers.setdefault(token, Counter())[successor] += 1
    values = []
    for token in tokens[:-1]:
        times = followers[token].total()
        if counts[token] >= rare_count and times > 1:
            pairs = sum(c * (c - 1) for c in followers[token].values())
            values.append(1 - pairs / (times * (times - 1)))
    return mean(values)


def reference_zipf(tokens):
    counts = sorted((c for c in Counter(tokens).values() if c >= 10), reverse=True)
    if len(counts) < 10:
        return None, None
    x = [math.log(rank) for rank in range(1, len(counts) + 1)]
    y = [math.log(count) for count in counts]
    x0, y0 = sum(x) / len(x), sum(y) / len(y)
    covariance = sum((a - x0) * (b - y0) for a, b in zip(x, y, strict=True))
    return -covariance / sum((a - x0) ** 2 for a in x), [1, len(counts)]


def assert_close(measured, expected):
    assert measured == (expected if expected is None else pytest.approx(expected, abs=1e-12))


def random_text(seed, length=400):
    rng = random.Random(seed)
    alphabet = "aaaabbcABéßΣ\u03c3İ日🙂01'\u2019'_-. . \n\r  "
    return "".join(rng.choice(alphabet) for _ in range(length))


@pytest.mark.parametrize("tokenization", TOKENIZATIONS)
@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64, 1 << 22])
@pytest.mark.parametrize(("context", "rare_count"), [(1, 1), (3, 3), (10, 10)])
def test_matches_plain_python(write, monkeypatch, tokenization, chunk, context, rare_count):
    monkeypatch.setattr(corpus, "_CHUNK", chunk)
    for seed in range(3):
        text = random_text(seed)
        path = write(text)
        measured = measure(
            path, tokenization=tokenization, context=context, rare_count=rare_count, seed=seed
        )
        tokens = tokenize(text, tokenization)
        for statistic, value in reference(tokens, context, rare_count).items():
            assert_close(getattr(measured.text, statistic), value)


@pytest.mark.parametrize("tokenization", TOKENIZATIONS)
def test_does_not_depend_on_the_chunk_length(write, monkeypatch, tokenization):
    path = write(random_text(5, length=3000))
    whole = measure(path, tokenization=tokenization, context=20)
    for chunk in (1, 5, 100, 1001):
        monkeypatch.setattr(corpus, "_CHUNK", chunk)
        assert measure(path, tokenization=tokenization, context=20) == whole


def test_zipf_matches_plain_python(write):
    rng = np.random.default_rng(0)
    tokens = [f"w{i}" for i in rng.geometric(0.15, size=3000)]
    statistics = measure(write(" ".join(tokens))).text.as_dict()
    exponent, fitted = reference_zipf(tokens)
    assert statistics["zipf_exponent"] == pytest.approx(exponent, rel=1e-10)
    assert statistics["zipf_range"] == fitted


# By hand


def test_rare_fraction_and_variability_by_hand(write):
    text = measure(write("a b a c a b"), context=2, rare_count=2).text
    assert (text.tokens, text.vocabulary) == (6, 3)
    assert text.rare_fraction == pytest.approx(1 / 6)  # c
    assert text.variability == pytest.approx(2 / 3)  # a: b, c, b; the last b has no successor


def test_context_statistics_by_hand(write):
    text = measure(write("a b a b a a"), context=2).text
    assert text.context_fraction == 1
    assert text.burstiness == 1
    assert text.successor_agreement == pytest.approx(2 / 3)  # of "a b", "b a", "a a"
    text = measure(write("a a b a c a"), context=3).text
    assert text.context_fraction == pytest.approx(2 / 3)  # of "a", "c", "a"
    assert text.burstiness == pytest.approx(3 / 2)  # two copies, then one
    assert text.successor_agreement == 0  # "a c" after "a b"; the last token has no successor


def test_the_latest_occurrence_counts_and_may_stand_just_before(write):
    assert measure(write("a a a"), context=1).text.successor_agreement == 1
    assert measure(write("a b a a c"), context=3).text.successor_agreement == 0


def test_frequency_bins_by_hand(write):
    words = ["a"] * 100 + ["b"] * 99 + ["c"] * 10 + ["d"] * 9 + ["e"]
    bins = measure(write(" ".join(words))).text.frequency_bins
    assert [(b["lowest_count"], b["highest_count"]) for b in bins] == [(1, 9), (10, 99), (100, 999)]
    assert [b["tokens"] for b in bins] == [2, 2, 1]
    assert [b["fraction"] for b in bins] == pytest.approx([10 / 219, 109 / 219, 100 / 219])


def test_zipf_exponent_by_hand(write):
    words = [f"w{rank}" for rank in range(1, 11) for _ in range(2520 // rank)]
    text = measure(write(" ".join(words))).text
    assert text.zipf_exponent == pytest.approx(1)
    assert text.zipf_range == (1, 10)


def test_words(write):
    text = "'Tis KNOW'T, know\u2019t: “Know't” rock'n'roll_rock''n 42 été ÉTÉ 日本 ΟΔΟΣ."
    expected = ["tis", "know't", "know't", "know't", "rock'n'roll", "rock", "n", "42"]
    assert tokenize(text, "words") == [*expected, "été", "été", "日本", "οδος"]
    measured = measure(write(text), context=1).text
    assert (measured.tokens, measured.vocabulary) == (12, 9)


def test_characters_and_bytes(write):
    path = write("é\r\né\r\n")
    characters = measure(path, tokenization="characters", context=1).text
    raw = measure(path, tokenization="bytes", context=1).text
    assert (characters.tokens, characters.vocabulary) == (6, 3)
    assert (raw.tokens, raw.vocabulary) == (8, 4)


def test_bytes_may_be_anything(write):
    text = measure(write(bytes(range(256)) * 2), tokenization="bytes", context=256).text
    assert (text.tokens, text.vocabulary) == (512, 256)
    assert (text.context_fraction, text.burstiness, text.successor_agreement) == (1, 1, 1)


def test_undefined_statistics_are_null(write):
    statistics = measure(write("a b c"), context=1).as_dict()
    for key in ("variability", "burstiness", "successor_agreement", "zipf_exponent", "zipf_range"):
        assert statistics[key] is None
    assert (statistics["rare_fraction"], statistics["context_fraction"]) == (1, 0)


# Known distributions


def steps(probabilities, types, length, seed=0):
    """A Markov chain on a circle, whose rows are all the same probabilities, shifted."""
    rng = np.random.default_rng(seed)
    moves = rng.choice(len(probabilities), p=probabilities, size=length)
    return " ".join(f"w{state}" for state in np.cumsum(moves) % types)


def test_recovers_the_variability_of_a_markov_chain(write):
    probabilities = [0.1, 0.7, 0.1, 0.1]
    text = measure(write(steps(probabilities, types=31, length=100_000))).text
    assert text.variability == pytest.approx(1 - 0.52, abs=0.01)


def test_variability_is_unbiased_when_each_type_is_seen_few_times(write):
    path = write(steps([0.25] * 4, types=1000, length=15_000))
    assert measure(path, rare_count=2).text.variability == pytest.approx(0.75, abs=0.01)


@pytest.mark.parametrize("exponent", [0.8, 1.0, 1.3])
def test_recovers_the_exponent_of_a_zipf_sample(write, exponent):
    weights = np.arange(1.0, 2001) ** -exponent
    ids = np.random.default_rng(1).choice(2000, p=weights / weights.sum(), size=200_000)
    text = measure(write(" ".join(f"w{i}" for i in ids))).text
    assert text.zipf_exponent == pytest.approx(exponent, abs=0.05)


def test_context_statistics_of_independent_tokens(write):
    types, context = 50, 20
    ids = np.random.default_rng(2).integers(types, size=100_000)
    text = measure(write(" ".join(f"w{i}" for i in ids)), context=context).text
    seen = 1 - (1 - 1 / types) ** context
    assert text.context_fraction == pytest.approx(seen, abs=0.01)
    assert text.burstiness == pytest.approx(context / types / seen, abs=0.01)
    assert text.successor_agreement == pytest.approx(1 / types, abs=0.005)


def test_shuffling_keeps_the_counts_and_loses_the_order(write):
    measured = measure(write(steps([0.05, 0.9, 0.05], types=20, length=20_000)))
    text, shuffled = measured.text.as_dict(), measured.shuffled.as_dict()
    for key in ("tokens", "vocabulary", "rare_fraction", "zipf_exponent", "zipf_range"):
        assert shuffled[key] == text[key]
    assert shuffled["frequency_bins"] == text["frequency_bins"]
    assert text["successor_agreement"] > 0.7
    assert shuffled["successor_agreement"] < 0.1
    assert text["variability"] < 0.3 < 0.9 < shuffled["variability"]


def test_the_seed_decides_the_permutation(write):
    path = write(random_text(7))
    assert measure(path, context=5, seed=1) == measure(path, context=5, seed=1)
    assert measure(path, context=5, seed=1).text == measure(path, context=5, seed=2).text
    assert measure(path, context=5, seed=1).shuffled != measure(path, context=5, seed=2).shuffled


# Results and errors


def test_as_dict_is_json(write):
    measured = measure(write(random_text(0)), tokenization="characters", context=8)
    statistics = measured.as_dict()
    shuffled = statistics.pop("shuffled")
    assert json.loads(json.dumps(statistics, allow_nan=False)) == statistics
    assert list(statistics) == list(shuffled) == list(corpus.CorpusStatistics.__annotations__)
    assert (statistics["name"], statistics["tokenization"]) == ("sample", "characters")
    assert (statistics["context"], statistics["tokens"]) == (8, 400)
    assert shuffled == measured.shuffled.as_dict()


def test_progress_goes_to_standard_error(write, capsys):
    path = write(random_text(0))
    measure(path, context=4)
    assert capsys.readouterr() == ("", "")
    measure(path, context=4, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "reading" in err


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("", {}, "Argument `path` must hold at least context + 2 = 66 words, but {} holds 0."),
        ("-- ?", {"context": 1}, "must hold at least context + 2 = 3 words, but {} holds 0."),
        ("a b", {"context": 1}, "must hold at least context + 2 = 3 words, but {} holds 2."),
        (b"ab\0c", {}, "must be a text in UTF-8, but byte 2 of {} (counted from 0) is a NUL."),
        (b"ab\xff\xff", {}, "must be a text in UTF-8, but byte 2 of {} (counted from 0) is not"),
        (b"abc \xe2\x82", {"tokenization": "characters"}, "but byte 4 of {} (counted from 0) is"),
        ("a b c", {"context": 0}, "Argument `context` must be an integer of at least 1, but is 0."),
        ("a b c", {"context": 1.5}, "`context` must be an integer of at least 1, but is 1.5."),
        ("a b c", {"rare_count": 0}, "`rare_count` must be an integer of at least 1, but is 0."),
        ("a b c", {"seed": -1}, "Argument `seed` must be an integer of at least 0, but is -1."),
        (
            "a b c",
            {"tokenization": "lines"},
            "Argument `tokenization` must be one of words, characters, bytes, but is 'lines'.",
        ),
    ],
)
@pytest.mark.parametrize("chunk", [1, 1 << 22])
def test_bad_input(write, monkeypatch, chunk, content, options, message):
    monkeypatch.setattr(corpus, "_CHUNK", chunk)
    path = write(content)
    with pytest.raises(ValueError, match=re.escape(message.format(path))):
        measure(path, **options)


def test_unreadable_paths(tmp_path):
    for path in (tmp_path, tmp_path / "missing.txt"):
        message = re.escape(f"Argument `path` must be a readable file, but {path} is not (")
        with pytest.raises(ValueError, match=message):
            measure(path)


@pytest.mark.skipif(not SHAKESPEARE.exists(), reason="the shared text is not there")
def test_shakespeare():
    measured = measure(SHAKESPEARE)
    text, shuffled = measured.text, measured.shuffled
    assert text.tokens > 150_000
    assert 0.9 < (text.zipf_exponent or 0) < 1.1
    assert 0.05 < text.rare_fraction < 0.2
    assert 0.9 < (text.variability or 0) < (shuffled.variability or 0)
    assert text.context_fraction > shuffled.context_fraction
    assert (text.burstiness or 0) > (shuffled.burstiness or 0)
    assert (text.successor_agreement or 0) > 5 * (shuffled.successor_agreement or 0)
