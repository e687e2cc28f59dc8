"""The symbolic basis of the invariant manifold (arXiv 2607.11875, Theorem 1).

    layer ℓ, head h:  V_u S V_vᵀ   for query and key paths u, v below ℓ and selections S
    output:           S V_vᵀ       for all paths v and selections S whose rows are tokens

A path is a sequence of (layer, head) with growing layer; V_u is the product of its output-value
maps. Selections are orbitals of the tokens' and the positions' symmetry group, centred or not:

- `centered` (the paper's): T = {I, C, …} centred by orbit, P = {M^j} centred by ring;
- `onehot`: all orbitals, those that couple tokens with positions included.

**Which shifts are reachable.** M^j couples index i of a block with index i − j. Causal attention
gives the empty query path j ≥ 0; a query path through a head may carry a later index than the key,
so all |j| < k appear. The paper's literal set {1, M, …, M^(k−1)} for every query path leaves out
the negative shifts, and the gradient leaves its span. `shifts` chooses `reachable`, `literal`, or
`all` (every |j| < k for every query path, whose surplus elements the gradient never needs).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float

from imir.relations import Configuration, Orbital, Relation
from imir.tasks.task import Task

Path = tuple[tuple[int, int], ...]
Frame = Literal["centered", "onehot"]
Shifts = Literal["reachable", "literal", "all"]


@dataclass(frozen=True)
class Selection:
    """A selection matrix: coefficients of the orbitals, with names.

    `shift` is j for M^j, `None` otherwise; `predicts` says whether its rows are tokens.
    """

    name: str
    latex: str
    coefficients: tuple[float, ...]
    shift: int | None
    predicts: bool


@dataclass(frozen=True)
class Element:
    """V_u S V_vᵀ of a head, or S V_vᵀ of the output (`head` is `None`, `layer` is L + 1)."""

    layer: int
    head: int | None
    query_path: Path
    selection: int
    key_path: Path


@dataclass(frozen=True)
class Basis:
    """Basis elements for token classes, position rings, L layers of H heads and one frame."""

    classes: tuple[Relation, ...]
    positions: Relation
    block_size: int
    layers: int
    heads: int
    frame: Frame = "centered"
    shifts: Shifts = "reachable"

    def __post_init__(self) -> None:
        for name in ("layers", "heads"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"Argument `{name}` must be at least 1, but is {getattr(self, name)}."
                )
        for name, known in (("frame", Frame), ("shifts", Shifts)):
            if getattr(self, name) not in get_args(known):
                raise ValueError(
                    f"Argument `{name}` must be one of {', '.join(get_args(known))}, "
                    f"but is {getattr(self, name)!r}."
                )
        if self.positions.motif.size < 2 * self.block_size:
            raise ValueError(
                f"Argument `positions` must have rings of at least {2 * self.block_size} places "
                f"for blocks of {self.block_size}, but they have {self.positions.motif.size}."
            )

    @cached_property
    def configuration(self) -> Configuration:
        """Tokens and positions side by side; the positions come last."""
        return Configuration((*self.classes, self.positions))

    @cached_property
    def selections(self) -> tuple[Selection, ...]:
        if self.frame == "centered":
            return (*self._centered_tokens(), *self._shifts())
        return (*self._onehot_tokens(), *self._shifts(), *self._couplings())

    def _centered_tokens(self) -> Iterator[Selection]:
        for o in self._within_tokens():
            S = self.configuration.orbitals[o]
            last = max(
                i
                for i in self._within_tokens()
                if self.configuration.orbitals[i].source == S.source
                and self.configuration.orbitals[i].target == S.target
            )
            # The orbitals of two orbits sum to a constant, so of a single copy's one is redundant.
            if o != last or self._relation(S).copies > 1:
                yield self._selection(o, self.configuration.centered(o, "orbit"))

    def _onehot_tokens(self) -> Iterator[Selection]:
        for o, S in enumerate(self.configuration.orbitals):
            if not (self._is_position(S.source) or self._is_position(S.target)):
                yield self._selection(o, np.eye(len(self.configuration.orbitals))[o])

    def _couplings(self) -> Iterator[Selection]:
        for o, S in enumerate(self.configuration.orbitals):
            source, target = self._is_position(S.source), self._is_position(S.target)
            if source != target or (source and target and not S.same):
                yield self._selection(o, np.eye(len(self.configuration.orbitals))[o])

    def _shifts(self) -> Iterator[Selection]:
        """M^j for all |j| < k; reachability is decided for each element."""
        K, ring = self.positions.motif.size, len(self.classes)
        for j in range(1 - self.block_size, self.block_size):
            nodes = self.configuration.node(ring, 0), self.configuration.node(ring, -j % K)
            o = int(self.configuration.table[1][nodes])
            unit = np.eye(len(self.configuration.orbitals))[o]
            centered = self.frame == "centered"
            values = self.configuration.centered(o, "copy") if centered else unit
            name, latex = ("M", "M") if j == 1 else (f"M^{j}", f"M^{{{j}}}")
            yield Selection(name, latex, tuple(values), j, False)

    def _within_tokens(self) -> list[int]:
        orbitals = self.configuration.orbitals
        return [o for o, S in enumerate(orbitals) if S.same and not self._is_position(S.source)]

    def _is_position(self, orbit: int) -> bool:
        return orbit == self.configuration.orbit_of_node[-1]

    def _relation(self, orbital: Orbital) -> Relation:
        return self.configuration.relations[self.configuration.node_relation[orbital.pairs[0][0]]]

    def _selection(self, o: int, values: np.ndarray) -> Selection:
        S = self.configuration.orbitals[o]
        name, latex = self._orbital_name(S)
        return Selection(name, latex, tuple(values), None, not self._is_position(S.source))

    def _orbital_name(self, S: Orbital) -> tuple[str, str]:
        """I, C, C^p in a copy of a cycle, `r->s` of another motif, `rest` and `all` across."""
        sides = [self._side(S.source), self._side(S.target)]
        relation = self._relation(S)
        if not S.same:
            kind = "rest" if sides[0] == sides[1] else "all"
            where = sides[0] if kind == "rest" else ",".join(sides)
            return f"{kind}[{where}]", rf"\mathrm{{{kind}}}_{{\mathrm{{{where}}}}}"
        first = self.configuration.node(self.configuration.relations.index(relation), 0)
        r, s = (x - first for x in S.pairs[0])
        power = (s - r) % relation.motif.size
        symbol = "I" if power == 0 else "C" if power == 1 else f"C^{power}"
        letters = symbol if relation.motif.is_cycle else f"{r}->{s}"
        tex = letters.replace("->", r"\to ")
        if len(self.classes) == 1:
            return letters, tex
        return f"{letters}[{relation.name}]", rf"{tex}_{{\mathrm{{{relation.name}}}}}"

    def _side(self, orbit: int) -> str:
        """Name of an orbit: its relation, with its first role where that has several orbits."""
        nodes = np.flatnonzero(self.configuration.orbit_of_node == orbit)
        r = int(self.configuration.node_relation[nodes[0]])
        relation = self.configuration.relations[r]
        role = nodes[0] - self.configuration.node(r, 0)
        return relation.name if len(nodes) == relation.motif.size else f"{relation.name}.{role}"

    def paths(self, layer: int) -> tuple[Path, ...]:
        """All (H + 1)^(ℓ − 1) paths below a layer; the empty one first."""
        paths: list[Path] = [()]
        for below in range(1, layer):
            heads = [(below, h) for h in range(1, self.heads + 1)]
            paths += [(*path, step) for step in heads for path in paths]
        return tuple(paths)

    @cached_property
    def elements(self) -> tuple[Element, ...]:
        """Every basis element, layer by layer, the output's last."""
        return (*self._head_elements(), *self._output_elements())

    def _head_elements(self) -> Iterator[Element]:
        for layer in range(1, self.layers + 1):
            paths = self.paths(layer)
            for head in range(1, self.heads + 1):
                for u in paths:
                    for v in paths:
                        for s, selection in enumerate(self.selections):
                            if self._reaches(u, selection):
                                yield Element(layer, head, u, s, v)

    def _output_elements(self) -> Iterator[Element]:
        for v in self.paths(self.layers + 1):
            for s, selection in enumerate(self.selections):
                if selection.predicts:
                    yield Element(self.layers + 1, None, (), s, v)

    def _reaches(self, query_path: Path, selection: Selection) -> bool:
        forward = selection.shift is None or selection.shift >= 0
        backward = {"reachable": bool(query_path), "literal": False, "all": True}
        return forward or backward[self.shifts]

    def name(self, element: Element) -> str:
        """Readable name, such as `layer2.head1 () I (1.1)` or `output C ()`."""
        selection = self.selections[element.selection].name
        if element.head is None:
            return f"output {selection} {_path_name(element.key_path)}"
        u, v = _path_name(element.query_path), _path_name(element.key_path)
        return f"layer{element.layer}.head{element.head} {u} {selection} {v}"

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(self.name(element) for element in self.elements)

    def latex(self, element: Element) -> str:
        """The element as a formula, V_u S V_vᵀ."""
        selection = self.selections[element.selection].latex
        key = _path_latex(element.key_path)
        transposed = rf" \left({key}\right)^{{\top}}" if key else ""
        return f"{_path_latex(element.query_path)} {selection}{transposed}".strip()

    @cached_property
    def values(self) -> Float[np.ndarray, "S O"]:
        """Value of each selection on each orbital."""
        return np.array([s.coefficients for s in self.selections])

    @cached_property
    def selection_gram(self) -> Float[np.ndarray, "S S"]:
        """Frobenius inner products ⟨S, S'⟩ = tr SᵀS'."""
        return self.configuration.inner(self.values, self.values)

    @cached_property
    def gram(self) -> Float[np.ndarray, "E E"]:
        """⟨B_a, B_b⟩: block-diagonal over (layer, head, u, v), as the V are partial isometries."""
        s = np.array([e.selection for e in self.elements])
        place = [(e.layer, e.head or 0, e.query_path, e.key_path) for e in self.elements]
        number = {p: i for i, p in enumerate(dict.fromkeys(place))}
        group = np.array([number[p] for p in place])
        return self.selection_gram[s[:, None], s] * (group[:, None] == group)

    def matrix(self, element: Element) -> Float[np.ndarray, "d d"]:
        """The dense matrix in one copy of the embedding space for each path; small bases only."""
        paths, N = self.paths(self.layers + 1), self.configuration.size
        blocks = np.zeros((len(paths), N, len(paths), N))
        u, v = paths.index(element.query_path), paths.index(element.key_path)
        blocks[u, :, v] = self.configuration.dense(self.values[element.selection])
        return blocks.reshape(len(paths) * N, -1)


def _path_name(path: Path) -> str:
    return "(" + ",".join(f"{layer}.{head}" for layer, head in path) + ")"


def _path_latex(path: Path) -> str:
    return " ".join(f"V^{{({layer},{head})}}" for layer, head in reversed(path))


def basis_of(
    task: Task,
    layers: int,
    heads: int,
    frame: Frame = "centered",
    shifts: Shifts = "reachable",
) -> Basis:
    """The basis for a task's token classes and positions."""
    return Basis(task.classes, task.positions, task.block_size, layers, heads, frame, shifts)
