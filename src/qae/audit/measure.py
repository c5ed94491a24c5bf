"""Predicted against measured entropy change: one checkpoint, one small plain gradient step a baseline and batch.

Adam on samples that change from step to step cannot tell what a baseline does to the entropy; this can. The policy is
put back before each baseline, and entropy is taken on contexts that stay the same: completions of held-out problems.

Beside the measured change stand two predictions for a step on the logits themselves, from the same tokens: the paper's
identity, which rises with the baseline, and the centred one of the true gradient, from which the baseline cancels.

With several batches it also says what of a baseline's gradient they share and how far they scatter: the baseline hardly
changes the first, the expected gradient, but it does change the second. How much it does follows from how long the
gradients of successes and of failures are (`qae.noise`), which is measured, too.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qae.advantages import fixed_advantages, mean_advantages, quantile_advantages
from qae.noise import least_noise_k
from qae.policies import Policy, load_policy
from qae.sampling import Completion, make_engine
from qae.sampling.rng import row_key
from qae.tasks import make_task
from qae.trainer.batch import Group, collect, train_params
from qae.trainer.checkpoint import checkpoints
from qae.trainer.config import TrainConfig
from qae.trainer.packing import Packed, hidden_states, pack_padded, packed_logprobs

KS = (0.2, 0.4, 0.6, 0.8)
HELDOUT = 32
HELDOUT_SAMPLES = 2
ROWS_AT_ONCE = 16
SIGN_DRAWS = 4
TOKENS_AT_ONCE = 256
_STREAM = 7


@dataclass(frozen=True)
class EntropyStep:
    """What one baseline's step did.

    Attributes:
        baseline: its name.
        gradient_norm: of the loss -mean(A log pi) over the batch's tokens.
        step_size: learning rate; the same for all baselines.
        predicted_nats: to first order: the gradient of the held-out entropy times the step.
        measured_nats: held-out entropy after the step minus before.
        own_predicted_nats: as predicted, for the entropy on the batch's own tokens.
        own_measured_nats: entropy on the batch's own tokens after the step minus before.
        identity_per_step: the paper's identity on those tokens, in nats for a logit step of size 1:
            -mean(A pi_y (log pi_y + H)).
        centred_per_step: likewise for the true gradient's logit step A (e_y - pi):
            -mean(A (pi_y (log pi_y + H) - sum_v pi_v^2 (log pi_v + H))).
        predicted_noise_norm: sqrt(sum_i A_i^2 s_i): how far the gradient scatters if completions are independent, from
            the mean squared lengths s of successes' and failures' gradients.
    """

    baseline: str
    gradient_norm: float
    step_size: float
    predicted_nats: float
    measured_nats: float
    own_predicted_nats: float
    own_measured_nats: float
    identity_per_step: float
    centred_per_step: float
    predicted_noise_norm: float


_NUMBERS = tuple(field.name for field in fields(EntropyStep) if field.name != "baseline")


def measure_entropy_steps(
    run_dir: Path, *, batches: int = 1, relative_step: float = 1e-5, tell: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Take one small plain gradient step from a run's newest checkpoint under each baseline, and put it back.

    Args:
        run_dir: a run with config.yaml and checkpoints.
        batches: independent batches to do so with; what is given are means over them.
        relative_step: length of the step of the mean baseline, over the length of the parameters.
        tell: told what is being done.

    Returns:
        A record: checkpoint, batches, completions, heldout_tokens, entropy_nats, own_entropy_nats; success_norm2 and
        failure_norm2, the mean squared lengths of the gradients of their summed log-probs, and least_noise_k, which
        follows from them; and steps, one a baseline: the values of `EntropyStep`, `measured_se_nats` (standard error
        over the batches), the paired difference from the mean baseline's measured change, `from_mean_nats` with
        `from_mean_se_nats`, and from two batches on `signal_norm` and `noise_norm` of its gradient.

    Raises:
        ValueError: there is no checkpoint, or no group of a batch is mixed.
    """
    found = checkpoints(run_dir)
    if not found:
        raise ValueError(f"{run_dir} has no checkpoint to take a step from; set checkpoint.every, or finish the run")
    config = TrainConfig.load(str(run_dir / "config.yaml"))
    tell(f"loading {found[-1]}")
    policy = load_policy(str(found[-1]), dtype="float32", device=config.policy.device)  # LoRA's adapters are merged in
    task = make_task(config.task.model_dump(), config.seed)
    engine = make_engine("builtin", policy)
    engine.refresh()
    tell(f"sampling {'one batch' if batches == 1 else f'{batches} batches'} and the held-out contexts")
    sampled: list[list[Group]] = []
    for i in range(batches):
        cursor = i * config.rollout.prompts
        batch = collect(config, policy, task, engine, step=i, cursor=cursor, phase=lambda *a, **b: None)
        sampled.append([group for group in batch.groups if group.is_mixed])
        if not sampled[-1]:
            raise ValueError(f"no group of the batch is mixed: every advantage is 0 at {found[-1]}")
    items = task.heldout_items(HELDOUT) or [task.train_item(10**6 + i) for i in range(HELDOUT)]
    prompts = [task.encode(item, policy.tokenizer) for item in items]
    rows = [i for i in range(len(items)) for _ in range(HELDOUT_SAMPLES)]
    keys = [row_key(config.seed, _STREAM, n) for n in range(len(rows))]
    completions = engine.generate(prompts, rows, keys, train_params(config, task))
    if policy.device.type != "mps":  # which has no float64; a small change of entropy drowns in float32's rounding
        policy.model.double()
    contexts = Contexts(policy, prompts, rows, completions, config.rollout.temperature)
    rises = contexts.gradient(lambda logprobs, entropies, rows: entropies)
    owns = [contexts_of(policy, groups, config.rollout.temperature) for groups in sampled]
    steps: list[list[EntropyStep]] = []
    scatter: dict[str, Scatter] = {}
    lengths: list[tuple[float, float]] = []
    for i, (groups, own) in enumerate(zip(sampled, owns, strict=True)):
        label = f" on batch {i + 1}" if batches > 1 else ""
        lengths.append(gradient_lengths(own, groups, config.seed + i))
        steps.append(
            _steps(
                policy, groups, own, contexts, rises, scatter, lengths[-1], relative_step,
                lambda text, at=label: tell(text + at),
            )
        )  # fmt: skip
    success, failure = (fmean(both[i] for both in lengths) for i in range(2))
    return {
        "checkpoint": str(found[-1]),
        "batches": batches,
        "completions": sum(len(own.completions) for own in owns),
        "heldout_tokens": contexts.count,
        "entropy_nats": contexts.entropy(),
        "own_entropy_nats": fmean(own.entropy() for own in owns),
        "success_norm2": success,
        "failure_norm2": failure,
        "least_noise_k": least_noise_k(success_norm2=success, failure_norm2=failure),
        "relative_step": relative_step,
        "steps": [
            _over_batches(same, [batch[0] for batch in steps]) | scatter[same[0].baseline].norms()
            for same in zip(*steps, strict=True)
        ],
    }


def contexts_of(policy: Policy, groups: Sequence[Group], temperature: float) -> "Contexts":
    """The completions of the groups, in order."""
    return Contexts(
        policy,
        [group.prompt for group in groups],
        [i for i, group in enumerate(groups) for _ in group.completions],
        [c for group in groups for c in group.completions],
        temperature,
    )


def gradient_lengths(own: "Contexts", groups: Sequence[Group], seed: int) -> tuple[float, float]:
    """Mean squared length of the gradient of a completion's summed log-prob: of successes, of failures.

    By random signs, E |sum_i e_i g_i|^2 = sum_i |g_i|^2, so that a few backward passes do for all completions.

    Args:
        own: the n completions of the groups, in order.
        groups: with both successes and failures among them.
        seed: of the signs.

    Returns:
        s_1 and s_0 of `qae.noise`, of per-sequence sums.
    """
    right, wrong = _successes(groups)
    generator = torch.Generator().manual_seed(seed)
    found: list[float] = []
    for kind in (right, wrong):
        squares = 0.0
        for _ in range(SIGN_DRAWS):
            signs = torch.where(kind, 2.0 * torch.randint(2, kind.shape, generator=generator) - 1.0, 0.0)
            weights = signs.to(own.policy.device)
            gradient = own.gradient(lambda logprobs, entropies, rows, weights=weights: weights[rows] * logprobs)
            squares += _dot(gradient, gradient) * own.count**2
        found.append(squares / SIGN_DRAWS / int(kind.sum()))
    return found[0], found[1]


def _successes(groups: Sequence[Group]) -> tuple[Bool[Tensor, " n"], Bool[Tensor, " n"]]:
    """Which completions succeeded and which failed; outcomes between 0 and 1 by the nearer end of those that occur."""
    outcomes = torch.tensor([outcome for group in groups for outcome in group.outcomes])
    scored = outcomes[~outcomes.isnan()]
    half = (scored.min() + scored.max()) / 2
    return outcomes > half, outcomes <= half


def _over_batches(same: Sequence[EntropyStep], first: list[EntropyStep]) -> dict[str, Any]:
    """Means of one baseline's steps over the batches, and how sure they are.

    Args:
        same: its step on each batch.
        first: the mean baseline's.
    """
    measured = [step.measured_nats for step in same]
    differences = [step.measured_nats - of_mean.measured_nats for step, of_mean in zip(same, first, strict=True)]
    values = {name: fmean(getattr(step, name) for step in same) for name in _NUMBERS}
    return (
        {"baseline": same[0].baseline}
        | values
        | {
            "measured_se_nats": _standard_error(measured),
            "from_mean_nats": fmean(differences),
            "from_mean_se_nats": _standard_error(differences),
        }
    )


def _standard_error(values: list[float]) -> float | None:
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else None


def _steps(
    policy: Policy,
    groups: Sequence[Group],
    own: "Contexts",
    contexts: "Contexts",
    rises: list[Tensor],
    scatter: dict[str, "Scatter"],
    lengths: tuple[float, float],
    relative_step: float,
    tell: Callable[[str], None],
) -> list[EntropyStep]:
    rewards = torch.tensor([reward for group in groups for reward in group.rewards])
    ids = torch.tensor([i for i, group in enumerate(groups) for _ in group.completions], dtype=torch.int64)
    baselines = {"mean": mean_advantages(rewards, ids)}
    baselines |= {f"quantile K={k:g}": quantile_advantages(rewards, ids, k) for k in KS}
    baselines |= {f"fixed {b}": fixed_advantages(rewards, ids, baseline=b) for b in (0, 1)}
    drawn, expected, owners = own.surprises()
    norm2 = torch.where(_successes(groups)[0], *lengths) / own.count**2
    own_rises = own.gradient(lambda logprobs, entropies, rows: entropies)
    before, own_before = contexts.entropy(), own.entropy()
    found: list[EntropyStep] = []
    step_size = 0.0
    for name, advantages in baselines.items():
        tell(f"one step of {name}")
        weights = advantages.nan_to_num().to(policy.device)
        direction = own.gradient(lambda logprobs, entropies, rows, weights=weights: weights[rows] * logprobs)
        norm = _dot(direction, direction) ** 0.5
        scatter.setdefault(name, Scatter()).add(direction)
        if not step_size:
            length = sum(float(p.detach().double().square().sum()) for p in _trained(policy)) ** 0.5
            step_size = relative_step * length / norm
        with _moved(policy, direction, step_size):
            measured, own_measured = contexts.entropy() - before, own.entropy() - own_before
        predicted, own_predicted = (step_size * _dot(g, direction) for g in (rises, own_rises))
        weight = weights.double()[owners]
        found.append(
            EntropyStep(
                baseline=name,
                gradient_norm=norm,
                step_size=step_size,
                predicted_nats=predicted,
                measured_nats=measured,
                own_predicted_nats=own_predicted,
                own_measured_nats=own_measured,
                identity_per_step=-float((weight * drawn).mean()),
                centred_per_step=-float((weight * (drawn - expected)).mean()),
                predicted_noise_norm=float((advantages.nan_to_num().square() * norm2).sum()) ** 0.5,
            )
        )
    return found


class Contexts:
    """Completions as fixed contexts: their tokens' log-probs and entropies under the policy as it is now."""

    def __init__(
        self,
        policy: Policy,
        prompts: list[list[int]],
        rows: list[int],
        completions: list[Completion],
        temperature: float,
    ) -> None:
        self.policy, self.prompts, self.temperature = policy, prompts, temperature
        pairs = [(row, c.token_ids) for row, c in zip(rows, completions, strict=True)]
        self.rows, self.completions = [row for row, _ in pairs], [ids for _, ids in pairs]
        self.count = sum(map(len, self.completions))

    def entropy(self) -> float:
        """Mean over the tokens, in nats."""
        with torch.no_grad():
            return sum(float(entropies.double().sum()) for _, entropies, _ in self._parts()) / self.count

    def gradient(self, of: Callable[[Tensor, Tensor, Tensor], Tensor]) -> list[Tensor]:
        """Gradient of the mean over the tokens of `of(log-probs, entropies, row of each token)`."""
        for p in self.policy.model.parameters():
            p.grad = None
        for logprobs, entropies, rows in self._parts():
            (of(logprobs, entropies, rows).sum() / self.count).backward()
        trained = _trained(self.policy)
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad.detach().clone() for p in trained]
        for p in trained:
            p.grad = None
        return gradients

    @torch.no_grad()
    def surprises(self) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"], Int[Tensor, " m"]]:
        """Of each token y, pi_y (log pi_y + H) and its expectation over y; and the row that it belongs to."""
        head: Any = self.policy.model.get_output_embeddings()
        found: list[tuple[Tensor, Tensor, Tensor]] = []
        for packed, owners in self._packings():
            hidden = hidden_states(self.policy.model, packed).flatten(0, 1).index_select(0, packed.source)
            for part in torch.arange(len(owners), device=owners.device).split(TOKENS_AT_ONCE):
                logprobs = (head(hidden[part]) / self.temperature).double().log_softmax(-1)
                probs = logprobs.exp()
                surprise = probs * (logprobs - (probs * logprobs).sum(-1, keepdim=True))
                drawn = surprise.gather(1, packed.targets[part][:, None])[:, 0]
                found.append((drawn, (probs * surprise).sum(-1), owners[part]))
        drawn, expected, owners = zip(*found, strict=True)
        return torch.cat(drawn), torch.cat(expected), torch.cat(owners)

    def _parts(self) -> Iterator[tuple[Float[Tensor, " m"], Float[Tensor, " m"], Tensor]]:
        for packed, owners in self._packings():
            logprobs, entropies = packed_logprobs(self.policy, packed, self.temperature)
            yield logprobs, entropies, owners

    def _packings(self) -> Iterator[tuple[Packed, Int[Tensor, " m"]]]:
        for start in range(0, len(self.completions), ROWS_AT_ONCE):
            chunk = range(start, min(start + ROWS_AT_ONCE, len(self.completions)))
            ids = [self.completions[i] for i in chunk]
            packed = pack_padded(self.prompts, [self.rows[i] for i in chunk], ids, self.policy.device)
            yield packed, torch.tensor([i for i in chunk for _ in self.completions[i]], device=self.policy.device)


class Scatter:
    """One baseline's gradient on independent batches: the part that they share, and how far they scatter.

        noise^2 = (sum_b |g_b|^2 - |sum_b g_b|^2 / B) / (B - 1),    signal^2 = sum_b |g_b|^2 / B - noise^2

    Both unbiased: the trace of the covariance of one batch's gradient, and the squared norm of the expected one.
    """

    def __init__(self) -> None:
        self.batches, self.squares, self.total = 0, 0.0, list[Tensor]()

    def add(self, gradient: list[Tensor]) -> None:
        """One more batch's gradient; only the sum is kept, in float32."""
        self.batches, self.squares = self.batches + 1, self.squares + _dot(gradient, gradient)
        if not self.total:
            self.total = [g.float() for g in gradient]
            return
        for total, g in zip(self.total, gradient, strict=True):
            total.add_(g)

    def norms(self) -> dict[str, float | None]:
        """signal_norm, 0 where the noise hides it, and noise_norm; None for a single batch."""
        if self.batches < 2:
            return {"signal_norm": None, "noise_norm": None}
        noise = max(0.0, self.squares - _dot(self.total, self.total) / self.batches) / (self.batches - 1)
        signal = max(0.0, self.squares / self.batches - noise)
        return {"signal_norm": signal**0.5, "noise_norm": noise**0.5}


@contextmanager
def _moved(policy: Policy, direction: list[Tensor], step_size: float) -> Generator[None]:
    """The policy after one step along `direction`, and as it was again afterwards."""
    parameters = _trained(policy)
    kept = [p.detach().clone() for p in parameters]
    with torch.no_grad():
        for p, d in zip(parameters, direction, strict=True):
            p.add_(d, alpha=step_size)
    try:
        yield
    finally:
        with torch.no_grad():
            for p, old in zip(parameters, kept, strict=True):
                p.copy_(old)


def _trained(policy: Policy) -> list[Tensor]:
    return [p for p in policy.model.parameters() if p.requires_grad]


def _dot(a: list[Tensor], b: list[Tensor]) -> float:
    return sum(float((x.double() * y.double()).sum()) for x, y in zip(a, b, strict=True))
