"""Boolean functions, their sensitivities, and what random transformers compute."""

import json
import re
from math import comb
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import once, softmax
from matplotlib import pyplot as plt

from fullmodel.boolean import ensemble, functions, plot
from fullmodel.boolean.functions import function, packed, string, table, unpacked
from fullmodel.boolean.recognizer import (
    RULES,
    Architecture,
    Initialization,
    bits_of,
    initial,
    margins,
    sinusoids,
    truth_table,
    variances,
)
from fullmodel.boolean.sensitivity import estimate, flipped, sensitivity, zero_strings
from imir.cli import run


def counts(length, **kinds):
    """A profile from K_n given as k1=8 …"""
    profile = [0] * (length + 1)
    for name, count in kinds.items():
        profile[int(name[1:])] += count
    return profile


def of_majority(N):
    """w = ⌊N/2⌋ ones are just too few, w + 1 just enough; all other strings are insensitive."""
    w = N // 2
    profile = [0] * (N + 1)
    profile[N - w] += comb(N, w)
    profile[w + 1] += comb(N, w + 1)
    profile[0] += 2**N - sum(profile)
    return profile


def of_threshold(N, k):
    """k − 1 ones: any of N − k + 1 zeros decides; k ones: any of them does."""
    profile = [0] * (N + 1)
    profile[N - k + 1] += comb(N, k - 1)
    profile[k] += comb(N, k)
    profile[0] += 2**N - sum(profile)
    return profile


def sparse(profile, N):
    m = len(profile) - 1
    return [2 ** (N - m) * k for k in profile] + [0] * (N - m)


def closed_forms(N):
    """Profiles by their own combinatorics, and average sensitivities."""
    m, k, ones = (N + 1) // 2, (N + 2) // 3, 2**N
    parity = [0] * N + [ones]
    middle = comb(N, N // 2) * (N - N // 2) + comb(N, N // 2 + 1) * (N // 2 + 1)
    yield "parity", parity, N
    yield "first", counts(N, k1=ones), 1
    yield f"dictator:{N}", counts(N, k1=ones), 1
    yield "majority", of_majority(N), middle / ones
    yield f"parity:{m}", sparse([0] * m + [2**m], N), m
    yield f"majority:{m}", sparse(of_majority(m), N), None
    yield "and", of_threshold(N, N), N / 2 ** (N - 1)
    yield "or", of_threshold(N, 1), N / 2 ** (N - 1)
    yield f"threshold:{k}", of_threshold(N, k), None
    yield "zero", counts(N, k0=ones), 0
    yield "one", counts(N, k0=ones), 0


@pytest.mark.parametrize("N", range(1, 21))
def test_profiles_equal_their_closed_forms(N):
    for name, profile, average in closed_forms(N):
        f = function(name, N)
        found = sensitivity(table(f), N)
        assert found.profile.tolist() == profile == list(f.profile or ()), name
        mean = sum(n * k for n, k in enumerate(profile)) / 2**N
        assert abs(found.average - (mean if average is None else average)) < 1e-12, name
        assert abs(np.sum(found.influences) - found.average) < 1e-12
        assert found.maximum == max(n for n, k in enumerate(profile) if k)


@pytest.mark.parametrize("N", [1, 2, 5, 6, 7, 11])
def test_sensitivities_of_random_functions_are_those_of_single_flips(N):
    words = functions.random_words(N, 3, seed=N)
    found, index = sensitivity(words, N), np.arange(2**N)
    for row, profile, influences in zip(words, found.profile, found.influences, strict=True):
        values = unpacked(row, N)
        change = np.stack([values != values[index ^ (1 << (N - 1 - i))] for i in range(N)])
        s = np.sum(change, axis=0)
        assert np.array_equal(profile, np.bincount(s, minlength=N + 1))
        assert np.allclose(influences, np.mean(change, axis=1))
        assert np.array_equal(zero_strings(row, N), np.flatnonzero(s == 0))
        assert np.array_equal(unpacked(flipped(row, N, 0), N), change[0])


def test_zero_strings_of_majority_and_their_order():
    found = zero_strings(table(function("majority", 3)), 3)
    assert [string(k, 3) for k in found] == ["000", "111"]
    assert zero_strings(table(function("parity", 9)), 9).size == 0
    assert zero_strings(table(function("one", 9)), 9, most=4).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["parity", "majority:4", "dictator:2", "zero", "random:7"])
def test_functions_read_bits_as_their_tables_do(name):
    f = function(name, 7)
    bits = np.asarray(bits_of(jnp.arange(128), 7))
    wanted = unpacked(table(f), 7)
    assert np.array_equal(f(bits), wanted)
    assert np.array_equal(jax.jit(f)(jnp.asarray(bits)), wanted)


def test_a_truth_table_is_read_in_the_order_of_the_strings(tmp_path):
    file = tmp_path / "first.txt"
    file.write_text("0000\n1111\n")
    f = function(f"table:{file}", 3)
    assert np.array_equal(table(f), table(function("first", 3)))
    assert np.array_equal(packed(unpacked(table(f), 3)), table(f))


def test_a_table_of_24_bits():
    words = table(function("majority", 24))
    assert sensitivity(words, 24).profile.tolist() == of_majority(24)


def test_estimates_cover_the_exact_values_as_often_as_they_say():
    f, runs = function("majority", 5), 25
    exact = sensitivity(table(f), 5)
    share = exact.profile / 2**5
    hits = np.zeros(3)
    for seed in range(runs):
        found = estimate(f, 5, 300, jax.random.key(seed))
        low, high = found.profile_interval
        hits[0] += np.mean((low <= share) & (share <= high))
        low, high = found.influences_interval
        hits[1] += np.mean((low <= exact.influences) & (exact.influences <= high))
        low, high = found.average_interval
        hits[2] += low <= exact.average <= high
    assert np.all(hits / runs > 0.88)


def test_estimates_reach_beyond_tables():
    found = estimate(function("parity:20", 26), 26, 64, jax.random.key(0))
    assert found.profile[20] == 1
    assert found.maximum == found.average == 20
    assert found.influences.tolist() == [1] * 20 + [0] * 6
    assert found.zero_strings == ()


def plain_margins(a, p, bits):
    """Logits and the variances that layer norms read, one string and one head after another."""
    p = SimpleNamespace(**{k: None if v is None else np.asarray(v) for k, v in vars(p).items()})
    places = sinusoids(a) if p.positions is None else p.positions
    logits, read = [], []
    for row in bits:
        variance: list[np.ndarray] = []

        def norm(X, variance=variance):
            variance.append(X.var(axis=1))
            return (X - X.mean(axis=1, keepdims=True)) / np.sqrt(X.var(axis=1) + a.epsilon)[:, None]

        X = p.tokens[[*map(int, row), 2]] + places
        for layer in range(a.layers):
            Y = norm(X) if a.norm == "pre" else X
            q, k, v = (Y @ W[layer] for W in (p.query, p.key, p.value))
            read_, size = np.zeros_like(X), a.width // a.heads
            for h in range(a.heads):
                c = slice(h * size, (h + 1) * size)
                A = softmax(q[:, c] @ k[:, c].T / np.sqrt(size))
                read_ += A @ v[:, c] @ p.output[layer][c]
            X = X + read_
            if a.feedforward is not None:
                Y = norm(X) if a.norm == "pre" else X
                hidden = np.maximum(Y @ p.up[layer] + p.up_bias[layer], 0)
                X = X + hidden @ p.down[layer] + p.down_bias[layer]
            X = norm(X) if a.norm == "post" else X
        X = norm(X) if a.norm == "pre" else X
        logits.append(X[-1] @ p.readout + p.bias)
        read.append(variance)
    return np.array(logits), np.array(read)


ARCHITECTURES = (
    Architecture(4, 2, 2, 6, 5, "post", 0.0),
    Architecture(4, 2, 1, 6, 5, "pre", 1e-3, "fixed"),
    Architecture(4, 1, 3, 6, None, "none", 0.0),
)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("a", ARCHITECTURES, ids=lambda a: a.norm)
def test_the_recogniser_computes_what_its_equations_say(a):
    p = initial(a, Initialization("gaussian"), jax.random.key(1))
    bits = bits_of(jnp.arange(16), 4)
    logits, read = plain_margins(a, p, bits)
    said, found = once(lambda p: (margins(a, p, bits), variances(a, p, bits)), p)
    assert np.allclose(said, logits, atol=1e-10)
    assert found.shape == (16, len(a.norms), 5)
    assert np.allclose(found, read.reshape(found.shape))
    tables = truth_table(a, p)
    assert np.array_equal(unpacked(tables.words, 4), logits > 0)
    assert np.isclose(tables.margin, np.min(np.abs(logits)))


SMALL = Architecture(7, 1, 2, 8, None, epsilon=0.0)


def drawn(models):
    keys = jax.random.split(jax.random.key(0), models)
    return once(jax.vmap(lambda k: initial(SMALL, Initialization("gaussian"), k)), keys)


@pytest.mark.usefixtures("float64")
def test_tables_do_not_depend_on_blocks_and_groups():
    p = drawn(7)
    together = truth_table(SMALL, p)
    assert together.words.shape == (7, 2)
    streamed = truth_table(SMALL, p, memory=2**17)
    alone = truth_table(SMALL, jax.tree.map(lambda x: x[3], p), memory=1)
    assert np.array_equal(together.words, streamed.words)
    assert np.array_equal(together.words[3], alone.words)
    assert np.allclose(together.margin, streamed.margin, rtol=1e-9)


def test_without_variance_and_epsilon_nothing_is_undefined():
    p = jax.tree.map(jnp.ones_like, initial(SMALL, Initialization(), jax.random.key(0)))
    p = jax.tree.map(lambda x: x / 3, p)  # every vector is constant, to rounding
    bits = bits_of(jnp.arange(4), 7)
    value, slope = once(jax.value_and_grad(lambda p: jnp.sum(margins(SMALL, p, bits))), p)
    assert np.isclose(value, 4 / 3)  # the bias alone is left
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(slope))


@pytest.mark.parametrize("rule", RULES)
def test_parameters_follow_their_law(rule):
    a = Architecture(3, 2, 2, 64, 128)
    p = once(lambda k: initial(a, Initialization(rule, scale=0.5), k), jax.random.key(0))
    assert p.up is not None
    assert p.up_bias is not None
    xavier, even = rule.startswith("xavier"), rule.endswith("uniform")
    deviation = 0.5 * (np.sqrt(2 / 192) if xavier else np.sqrt(1 / 3) if even else 1)
    assert np.isclose(np.std(p.up), deviation, rtol=0.05)
    assert np.max(np.abs(p.up)) < (1.75 if even else 6) * deviation
    assert np.any(p.up_bias != 0) != xavier


@pytest.mark.parametrize("rule", RULES)
def test_every_random_transformer_has_strings_of_sensitivity_zero(rule):
    a = Architecture(10, epsilon=0.0)
    found = ensemble.transformers(a, Initialization(rule), 16, seed=0)
    assert found.with_zero == 16
    assert np.all(np.sum(found.profiles, axis=1) == 2**10)
    assert np.mean(found.averages) < 2  # uniformly random functions: 5


def test_the_control_agrees_with_its_probability():
    found = ensemble.control(10, 4000, seed=0)
    for expected in (ensemble.zero_share(10), ensemble.LIMIT):
        assert abs(found.share - expected) < 2 * found.standard_error
    assert np.allclose(found.mean_profile / 2**10, [comb(10, n) / 2**10 for n in range(11)], 0.3)


def test_the_share_of_insensitive_functions_at_small_and_large_length():
    assert [ensemble.zero_share(N) for N in (1, 2)] == [0.5, 0.625]
    assert np.isclose(ensemble.zero_share(24), ensemble.LIMIT, atol=1e-4)
    found = ensemble.control(8, 40_000, seed=1)
    assert abs(found.share - ensemble.zero_share(8)) < 3 * found.standard_error


def test_the_bound_of_the_theorem():
    assert np.isclose(ensemble.bound(Architecture(10, 2, 2, 16)), 10**-1.25)
    assert np.isclose(ensemble.bound(Architecture(10, 1, 2, 16)), 10**2.5)


def test_figures_draw_on_given_axes():
    found = ensemble.control(4, 20)
    _, axes = plt.subplots(1, 4)
    exact = sensitivity(table(function("majority", 5)), 5)
    sampled = estimate(function("majority", 5), 5, 50, jax.random.key(0))
    plot.profile(exact, ax=axes[0])
    plot.influences(sampled, ax=axes[1])
    plot.profiles(found, ax=axes[2])
    plot.zero_counts([found], bound=3.0, ax=axes[3])
    assert [p.get_height() for p in axes[0].patches] == [12 / 32, 0, 0, 20 / 32, 0, 0]
    assert len(axes[2].patches) == 5
    plt.close("all")


def said(capsys, *arguments):
    assert run(["boolean", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_profile_reports_every_key_and_writes_its_files(capsys, tmp_path):
    arguments = ("profile", "--function", "majority", "--length", "5")
    data = said(capsys, *arguments, "--out", str(tmp_path))
    assert data["profile"] == data["closed_form"] == [12, 0, 0, 20, 0, 0]
    assert (data["average"], data["maximum"], data["zero_count"]) == (1.875, 3, 12)
    assert data["zero_strings"][:2] == ["00000", "00001"]
    assert data["influences"] == [0.375] * 5
    names = {"profile.png", "profile.pdf", "report.json", "config.toml"}
    assert {p.name for p in tmp_path.iterdir()} == names
    again = said(capsys, "profile", "--config", str(tmp_path / "config.toml"))
    assert again == {**data, "files": again["files"]}


def test_a_long_profile_is_estimated(capsys):
    data = said(capsys, "profile", "--function", "first", "--length", "40", "--samples", "50")
    assert data["profile"][1] == 2.0**40
    assert not data["exact"]
    assert (data["average"], data["zero_strings"]) == (1.0, [])


def test_random_reports_every_key_and_draws(capsys, tmp_path):
    small = "--length 4 --models 3 --layers 1 --width 8 --feedforward 0 --margin 0.001"
    small += " --initializations uniform gaussian"
    data = said(capsys, "random", *small.split(), "--out", str(tmp_path))
    assert data["models"] == 3
    assert set(data["with_zero_sensitivity"]) == set(data["mean_profile"])
    assert set(data["mean_profile"]) == {"uniform", "gaussian"}
    assert all(np.isclose(sum(k), 16) for k in data["mean_profile"].values())
    assert data["bound"] == 4**-1.5
    assert data["bound_says_nothing"]
    assert data["control"]["expected"] == ensemble.zero_share(4)
    assert (tmp_path / "random.png").stat().st_size > 10_000


MISTAKES = {
    "no bits": ("profile --function parity --length 0", "`length` must be at least 1, but is 0"),
    "too long": ("profile --function parity --length 25", "from 1 to 24 .* but is 25; .* sampled"),
    "long random": ("random --length 25", "from 1 to 24 for an exact truth table, but is 25"),
    "unknown": ("profile --function xor --length 3", "must be one of parity, .* but is 'xor'"),
    "m": ("profile --function parity:4 --length 3", "from 1 to N = 3, but is 'parity:4'"),
    "no m": ("profile --function threshold --length 3", "must be threshold:n"),
    "seed": ("profile --function random:-1 --length 3", "not negative, but is 'random:-1'"),
    "missing": ("profile --function table:no --length 3", "readable truth table, but 'table:no'"),
    "short": ("profile --function table:short.txt --length 3", "2.3 = 8 entries, but .* has 4"),
    "letters": ("profile --function table:odd.txt --length 2", "0 and 1, but .* has '2'"),
    "samples": ("profile --function or --length 3 --samples 1", "`samples` must be at least 2"),
    "epsilon": ("random --epsilon -1", "`epsilon` must not be negative, but is -1"),
    "margin": ("random --margin -0.5", "`margin` must not be negative, but is -0.5"),
    "heads": ("random --width 9", "`width` must be divisible by the 2 heads, but is 9"),
    "models": ("random --models 0", "`models` must be at least 1, but is 0"),
    "scale": ("random --scale 0", "`scale` must be positive, but is 0"),
    "layers": ("random --layers 0", "`layers` must be at least 1, but is 0"),
}


@pytest.mark.parametrize(("arguments", "sentence"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_refused_in_one_sentence(capsys, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.txt").write_text("0110")
    (tmp_path / "odd.txt").write_text("0120")
    assert run(["boolean", *arguments.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("imir: Argument `")
    assert captured.err.count("\n") == 1
    assert re.search(sentence, captured.err)
