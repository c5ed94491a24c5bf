"""What a baseline does to the noise of the gradient: nearly all that it does where data are fresh.

The expected policy gradient does not depend on the baseline; how far a batch's gradient scatters around it does. With
0/1 rewards it takes three numbers to say how far: the pass rate p, and how long the gradients of the log-probability
of a success and of a failure are, s_1 = E |grad log pi|^2 over successes and s_0 over failures.
"""


def gradient_noise(pass_rate: float, baseline: float, *, success_norm2: float, failure_norm2: float) -> float:
    """Expected squared length of one completion's term (R - b) grad log pi(o).

        E |(R - b) grad log pi|^2 = p (1 - b)^2 s_1 + (1 - p) b^2 s_0

    Nearly the variance of the term: at the signs and sizes that occur, the square of its mean is small beside this.

    Args:
        pass_rate: p, of the prompt.
        baseline: b.
        success_norm2: s_1, in any unit.
        failure_norm2: s_0, in the same.

    Returns:
        In that unit.

    Example:
        >>> [gradient_noise(0.5, b, success_norm2=1.0, failure_norm2=5.0) for b in (0, 0.5, 1)]
        [0.5, 0.75, 2.5]
    """
    return pass_rate * (1 - baseline) ** 2 * success_norm2 + (1 - pass_rate) * baseline**2 * failure_norm2


def least_noise_k(*, success_norm2: float, failure_norm2: float) -> float:
    """The K whose gate takes, for every prompt, the less noisy of the two baselines 0 and 1.

        p s_1 <= (1 - p) s_0   <=>   p <= s_0 / (s_0 + s_1) = 1 - K,    K = s_1 / (s_0 + s_1)

    It holds where s_1 and s_0 are the same on every prompt; measured over prompts of all pass rates it is approximate.
    One half if failures and successes have gradients of one length; less where failures, the less likely completions,
    have longer ones. Dividing by the group's standard deviation changes neither side.

    Args:
        success_norm2: s_1, in any unit.
        failure_norm2: s_0, in the same.

    Returns:
        K, strictly between 0 and 1.

    Raises:
        ValueError: one of the two is not positive.

    Example:
        >>> least_noise_k(success_norm2=1.0, failure_norm2=4.0)
        0.2
    """
    for name, value in (("success_norm2", success_norm2), ("failure_norm2", failure_norm2)):
        if not value > 0:
            raise ValueError(f"{name} is a squared length above 0, got {value:g}")
    return success_norm2 / (success_norm2 + failure_norm2)
