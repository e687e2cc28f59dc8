"""Deep models: ties that shorten paths, and metrics block by block."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import once, small_basis

from imir import Flow, Task, basis_of, exact, gradient_flow, population
from imir.flow.metric import DENSE, BlockInverse, inverse
from imir.ties import REDUCTIONS, free, short, tie


def test_a_metric_is_inverted_block_by_block(float64):
    """Two places share a coordinate: their blocks are one."""
    basis = small_basis(4, 1)
    names = basis.names
    far = names[0], names[-1]
    tied = tie(basis, {"both": list(far), **{n: [n] for n in names[1:-1]}})
    assert len(tied.names) > DENSE
    expected = tied.matrix.T @ basis.gram @ tied.matrix
    assert np.allclose(tied.metric, expected, rtol=1e-14, atol=0)
    found, vector = inverse(tied.metric), np.random.default_rng(0).normal(size=len(tied.names))
    assert isinstance(found, BlockInverse)
    assert found.blocks.shape[1] < 12
    moved = once(lambda f, x: f @ x, found, jnp.asarray(vector))
    assert np.allclose(expected @ np.asarray(moved), vector, rtol=0, atol=1e-12)


def test_short_ties_keep_elements_of_few_steps():
    basis = small_basis(3, 2)
    kept = REDUCTIONS["one-step"](basis)
    elements = [basis.elements[i] for (i,) in kept.members]
    paths = {p for e in elements for p in (e.query_path, e.key_path)}
    assert paths == {(), *(((layer, h),) for layer in (1, 2, 3) for h in (1, 2))}
    assert [basis.name(e) for e in elements] == list(kept.names)
    counts = [len(REDUCTIONS[name](basis).names) for name in ("one-step", "two-step", "all")]
    assert counts == sorted(set(counts))
    assert counts[-1] == len(free(basis).names)
    assert short(basis, 3).names == basis.names
    with pytest.raises(ValueError, match=r"^Argument `steps` must be at least 0, but is -1.$"):
        short(basis, -1)


@pytest.mark.slow
def test_two_hops_are_learned_in_five_layers():
    """From every random initial point, by gradient flow; large discrete steps sometimes fail."""
    task = Task("2hop", blocks=6, rare_fraction=1.0)
    prompts = exact(free(basis_of(task, 5, 1)), task)
    tie, seen = prompts.tie, prompts.at()
    right = jax.jit(lambda y: seen.weight @ population.score(tie, y, seen, "cross_entropy"))
    for seed in range(10):
        start = 0.1 * np.random.default_rng(seed).normal(size=len(tie.names))
        run = gradient_flow(prompts, jnp.asarray(start), Flow(until=2e4, rtol=1e-4))
        assert right(jnp.asarray(run.coordinates[-1])) >= 0.99
