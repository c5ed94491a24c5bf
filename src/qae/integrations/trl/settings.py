"""What a quantile trainer takes beside GRPOTrainer's arguments. Standard library only."""

from dataclasses import dataclass, field, fields
from typing import Any

_CHOICES = {
    "quantile_method": ("exact", "linear"),
    "skip_zero_advantage": ("auto", "on", "off"),
    "entropy_rows": ("all", "kept"),
}


@dataclass
class QuantileSettings:
    """Keyword arguments of `QuantileGRPOTrainer`, and keys of a YAML file or flags of the command.

    Attributes:
        quantile_k: level of the quantile, strictly between 0 and 1.
        quantile_method: "exact" is the paper's definition, "linear" the authors' code.
        flat_tolerance: rewards of a group no further apart than this count as equal.
        outcome_reward: name of the reward function that is the verifier's outcome. The gate then looks at it alone and
            the other rewards are added beside it; None takes the quantile of the total.
        skip_zero_advantage: leave rows with advantage 0 out of the loss's forward and backward pass: "auto" where that
            is exact, "on" refuses where it is not, "off" never.
        entropy_rows: the metric `entropy` is measured over "all" rows, for which skipped ones need a forward pass
            without gradient, or over the "kept" ones only, under the name `entropy/kept_rows`.
        dynamic_sampling_refills: how often fresh prompts are sampled in place of flat groups before a step trains on
            what there is; 0 is TRL's behaviour.
    """

    quantile_k: float = field(default=0.4, metadata={"help": "Level of the quantile, between 0 and 1."})
    quantile_method: str = field(
        default="exact",
        metadata={"help": "exact: the paper's definition. linear: the authors' code.", "choices": ["exact", "linear"]},
    )
    flat_tolerance: float = field(default=0.0, metadata={"help": "Rewards no further apart than this are equal."})
    outcome_reward: str | None = field(
        default=None, metadata={"help": "Reward function that alone decides the gate; the others are added beside it."}
    )
    skip_zero_advantage: str = field(
        default="auto",
        metadata={"help": "Leave rows with advantage 0 out of the loss: auto (where exact), on (or refuse), off."},
    )
    entropy_rows: str = field(
        default="all",
        metadata={"help": "Measure the entropy over all rows, or only over those kept.", "choices": ["all", "kept"]},
    )
    dynamic_sampling_refills: int = field(
        default=0, metadata={"help": "How often fresh prompts replace flat groups (DAPO's dynamic sampling)."}
    )

    def __post_init__(self) -> None:
        """Refuse values that cannot be meant."""
        from qae.checks import check_at_least, check_choice
        from qae.groups import fraction_meant

        # YAML reads `on` and `off` as booleans, argparse leaves the words that YAML makes of them.
        words = {"true": "on", "false": "off"}
        said = str(self.skip_zero_advantage).lower()
        self.skip_zero_advantage = words.get(said, said)
        for name, choices in _CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        fraction_meant(self.quantile_k)
        check_at_least("flat_tolerance", self.flat_tolerance, 0)
        check_at_least("dynamic_sampling_refills", self.dynamic_sampling_refills, 0)

    @classmethod
    def take(cls, keywords: dict[str, Any]) -> "QuantileSettings":
        """The settings among `keywords`, which are removed from it.

        Args:
            keywords: of a trainer's constructor.

        Example:
            >>> keywords = {"model": "tiny", "quantile_k": 0.2}
            >>> QuantileSettings.take(keywords).quantile_k, keywords
            (0.2, {'model': 'tiny'})
        """
        return cls(**{f.name: keywords.pop(f.name) for f in fields(cls) if f.name in keywords})
