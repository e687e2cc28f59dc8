"""A block-list task: a template with data statistics (arXiv 2607.11875, section 2).

Every axis of the phase diagrams is a field of `Task`. Token classes are relations: rare tokens have
none (single nodes), common tokens stand in cycles as long as the template has letters, so that
each letter's associated token is its successor.
"""

from dataclasses import dataclass
from functools import cached_property
from math import ceil, isfinite, sqrt

from imir.relations import Configuration, Relation, cycle, single
from imir.tasks.template import Template, named


@dataclass(frozen=True)
class Task:
    """A template and its data statistics.

    - `text`: a name such as `recall`, or a template such as `"a b | a -> b"`.
    - `blocks` N: complete blocks in the context; the query's incomplete block comes after them.
    - `burstiness` b: copies of each relevant block.
    - `context_fraction`: probability that the relevant blocks are in the context; otherwise
      distractors stand in their places.
    - `rare_fraction` f_r: probability that a block's tokens are rare (the letters' blocks share
      one class, each distractor draws its own).
    - `variability` f_v = 1 − Σ_y p(y|x)² of a common token's label y: the associated token with
      probability 1 − q, else a common token of another copy, uniformly.
    - `vocabulary`, `rare_vocabulary`: numbers of common and of rare tokens (by default 256 copies
      of the common motif, and as many rare tokens as common ones).
    - `frequency_bins`: shares and numbers of tokens of several common classes (a Zipf law is a
      list of frequency bins); the shares are among common blocks.

    All tokens of a prompt differ, except where a letter stands several times.
    """

    text: str
    blocks: int = 8
    burstiness: int = 1
    context_fraction: float = 1.0
    rare_fraction: float = 0.0
    variability: float = 0.0
    vocabulary: int | None = None
    rare_vocabulary: int | None = None
    frequency_bins: tuple[tuple[float, int], ...] = ()

    def __post_init__(self) -> None:
        _check_ranges(self)
        _check_blocks(self)
        _check_classes(self)
        _check_copies(self)

    @cached_property
    def template(self) -> Template:
        return named(self.text)

    @property
    def block_size(self) -> int:
        """k, the longest block."""
        return self.template.block_size

    @property
    def length(self) -> int:
        """n, the number of tokens of a prompt."""
        fixed = self.burstiness * sum(len(b.tokens) for b in self.template.relevant)
        fixed += sum(len(b.tokens) for b in self.template.decoys) + len(self.template.query)
        return fixed + self.distractors * self.block_size

    @property
    def distractors(self) -> int:
        """Blocks that are neither relevant nor decoys."""
        template = self.template
        return self.blocks - self.burstiness * len(template.relevant) - len(template.decoys)

    @property
    def motif_size(self) -> int:
        return len(self.template.letters)

    @cached_property
    def classes(self) -> tuple[Relation, ...]:
        """Token classes: the rare one first (where f_r > 0), then the common ones (f_r < 1)."""
        common = self.vocabulary or 256 * self.motif_size
        bins = self.frequency_bins or ((1.0, common),)
        rare = Relation("rare", single(), self.rare_vocabulary or sum(size for _, size in bins))
        motif, many = cycle(self.motif_size), len(bins) > 1
        named_bins = [(f"common{i + 1}" if many else "common", s) for i, (_, s) in enumerate(bins)]
        commons = [Relation(name, motif, size // motif.size) for name, size in named_bins]
        return (*[rare] * (self.rare_fraction > 0), *commons * (self.rare_fraction < 1))

    @cached_property
    def shares(self) -> tuple[float, ...]:
        """Probability of each class for a block's tokens."""
        common = 1.0 - self.rare_fraction
        bins = [common * share for share, _ in self.frequency_bins or ((1.0, 0),)]
        rare = [self.rare_fraction] * (self.rare_fraction > 0)
        return (*rare, *bins * (self.rare_fraction < 1))

    @cached_property
    def unlinked(self) -> tuple[float, ...]:
        """q of each class: the probability that a token is not followed by its associate."""
        return tuple(unlinked(self.variability, relation) for relation in self.classes)

    @cached_property
    def tokens(self) -> Configuration:
        return Configuration(self.classes)

    @property
    def positions(self) -> Relation:
        """Rings of 2k + 1 places, one slot for each block and one for the query.

        2k − 1 places keep the shifts −(k − 1) … k − 1 apart, but only from 2k on are their
        centred matrices linearly independent.
        """
        return Relation("position", cycle(2 * self.block_size + 1), self.blocks + 1)

    def __str__(self) -> str:
        return f"{self.template} (N = {self.blocks}, n = {self.length})"


def unlinked(variability: float, relation: Relation) -> float:
    """q of a class: the probability that a token is not followed by its associate.

    f_v = 1 − (1−q)² − q²/M for the M tokens of other copies, solved for q; 1 without a relation.
    """
    others = relation.size - relation.motif.size
    if relation.motif.size == 1:
        return 1.0
    if variability == 0 or others == 0:
        return 0.0
    c = 1 + 1 / others
    return (1 - sqrt(max(0.0, 1 - variability * c))) / c


def _check_ranges(task: Task) -> None:
    for name in ("context_fraction", "rare_fraction", "variability"):
        value = getattr(task, name)
        if not (isfinite(value) and 0 <= value <= 1):
            raise ValueError(f"Argument `{name}` must lie between 0 and 1, but is {value}.")
    for name in ("blocks", "burstiness"):
        if getattr(task, name) < 1:
            raise ValueError(f"Argument `{name}` must be at least 1, but is {getattr(task, name)}.")


def _check_blocks(task: Task) -> None:
    if task.distractors < 0:
        needed = task.blocks - task.distractors
        raise ValueError(
            f"Argument `blocks` must be at least {needed} for burstiness {task.burstiness} "
            f"({len(task.template.relevant)} relevant blocks each, {len(task.template.decoys)} "
            f"decoys), but is {task.blocks}."
        )


def _check_classes(task: Task) -> None:
    m, bins = task.motif_size, task.frequency_bins
    if bins and task.vocabulary is not None:
        raise ValueError(
            "Argument `vocabulary` must be left out where `frequency_bins` are given, "
            f"but is {task.vocabulary}."
        )
    if bins and not (abs(sum(s for s, _ in bins) - 1) < 1e-9 and all(s > 0 for s, _ in bins)):
        raise ValueError(
            "Argument `frequency_bins` must have positive shares that sum to 1, "
            f"but has {[s for s, _ in bins]}."
        )
    sizes = {"rare_vocabulary": task.rare_vocabulary, "vocabulary": task.vocabulary}
    for name, size in [*sizes.items(), *(("frequency_bins", size) for _, size in bins)]:
        unit = 1 if name == "rare_vocabulary" else m
        if size is not None and (size < unit or size % unit):
            raise ValueError(
                f"Argument `{name}` must be a positive multiple of {unit} "
                f"(the tokens of one association), but is {size}."
            )


def _check_copies(task: Task) -> None:
    """Enough tokens for the prompt that needs most of them, and for the wanted variability."""
    for relation, q in zip(task.classes, task.unlinked, strict=True):
        needed, field = copies_needed(task, q), _field(relation, task)
        if relation.copies < needed:
            raise ValueError(
                f"Argument `{field}` must be at least {needed * relation.motif.size} for a prompt "
                f"of {task.length} different tokens, but is {relation.size}."
            )
        most = 1 - 1 / max(1, relation.size - relation.motif.size + 1)
        if relation.motif.size > 1 and task.variability > most:
            raise ValueError(
                f"Argument `variability` must be at most {most:.6g} for {relation.size} common "
                f"tokens, but is {task.variability}."
            )


def copies_needed(task: Task, unlinked: float) -> int:
    """Copies of one class that the most demanding prompt uses."""
    m, template = task.motif_size, task.template
    fresh = sum(block.tokens.count("*") for block in template.decoys)
    fresh += task.burstiness * sum(block.tokens.count("*") for block in template.relevant)
    per_block = task.block_size if unlinked > 0 else ceil(task.block_size / m)
    letters = m if unlinked > 0 else 1
    present = letters + fresh + task.distractors * per_block
    stand_ins = task.burstiness * len(template.relevant) * per_block
    return max(present, present + stand_ins if task.context_fraction < 1 else 0)


def _field(relation: Relation, task: Task) -> str:
    if relation.name == "rare":
        return "rare_vocabulary"
    return "frequency_bins" if task.frequency_bins else "vocabulary"
