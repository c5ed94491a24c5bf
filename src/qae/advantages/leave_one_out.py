"""The leave-one-out baseline: RLOO."""

from jaxtyping import Float, Int
from torch import Tensor

from qae.groups import Groups


def leave_one_out_advantages(
    rewards: Float[Tensor, " n"],
    group_ids: Int[Tensor, " n"],
    *,
    flat_tolerance: float = 0.0,
    min_size: int = 2,
) -> Float[Tensor, " n"]:
    """Reward minus the mean of the other rewards of its group.

        A_i = R_i - 1/(n-1) sum_{j != i} R_j = n/(n-1) (R_i - mean_j(R_j))

    There is no division by a spread: the others of a lone success are all equal, and dividing by their
    standard deviation turns an advantage of 1 into a million.

    Rows that were not scored (NaN) get 0 and are outside their group. Groups of one and groups whose rewards
    are all equal get 0. No gradient passes.

    Args:
        rewards: [n] one reward for each completion; NaN for one that was not scored.
        group_ids: [n] any integers, equal for the completions of one prompt, in any order.
        flat_tolerance: rewards no further apart than this count as equal, for noisy judges.
        min_size: a group with fewer scored rows gets 0.

    Returns:
        [n] advantages, of the rewards' dtype.

    Raises:
        TypeError: the tensors are not floats and integers.
        ValueError: an argument is outside its bounds, or a reward is infinite.

    Example:
        >>> import torch
        >>> rewards, group_ids = torch.tensor([1.0, 0, 1]), torch.tensor([0, 0, 0])
        >>> leave_one_out_advantages(rewards, group_ids).tolist()
        [0.5, -1.0, 0.5]

    Reference:
        Ahmadian et al., "Back to Basics", arXiv:2402.14740.
    """
    groups = Groups(rewards, group_ids, argument="rewards")
    size = groups.size().double()
    advantages = (groups.values - groups.mean()) * size / (size - 1)
    return advantages.where(groups.compared(flat_tolerance, min_size), 0.0).to(rewards.dtype)
