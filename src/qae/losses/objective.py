"""Which pairs of a loss and a reduction are not the objective that the loss is named for."""


def objective_warning(loss_name: str, reduction_name: str) -> str | None:
    """What to tell a user whose reduction changes the objective that the loss is named for, or None.

    Only GSPO's objective depends on its reduction in this sense. The names are those of `LOSSES` and
    `REDUCTIONS`; checking that they exist is the caller's job.

    Args:
        loss_name: a key of `qae.losses.LOSSES`.
        reduction_name: a key of `qae.reduce.REDUCTIONS`.

    Returns:
        a sentence with the remedy, or None.

    Example:
        >>> objective_warning("sequence", "sequence_mean") is None
        True
        >>> print(objective_warning("sequence", "token_mean").split(":")[0])
        loss 'sequence' (GSPO) with reduction 'token_mean' is another objective
    """
    if loss_name != "sequence" or reduction_name == "sequence_mean":
        return None
    return (
        f"loss 'sequence' (GSPO) with reduction {reduction_name!r} is another objective: all tokens of a "
        "completion carry the same sequence ratio, so a completion would weigh in proportion to its length; "
        "GSPO's own reduction is 'sequence_mean'"
    )
