"""The types of the names that `__init__.py` loads on first use."""

from qae.advantages import ADVANTAGES as ADVANTAGES
from qae.advantages import asymre_advantages as asymre_advantages
from qae.advantages import fixed_advantages as fixed_advantages
from qae.advantages import leave_one_out_advantages as leave_one_out_advantages
from qae.advantages import leave_one_out_quantile_advantages as leave_one_out_quantile_advantages
from qae.advantages import mean_advantages as mean_advantages
from qae.advantages import neg_mask_advantages as neg_mask_advantages
from qae.advantages import pos_mask_advantages as pos_mask_advantages
from qae.advantages import quantile_advantages as quantile_advantages
from qae.advantages import random_mask_advantages as random_mask_advantages
from qae.advantages import w_reinforce_advantages as w_reinforce_advantages
from qae.engines.dispatch import train as train
from qae.entropy import predicted_entropy_change as predicted_entropy_change
from qae.entropy import regime_table as regime_table
from qae.evaluation.estimators import maj_at_k as maj_at_k
from qae.evaluation.estimators import pass_at_k as pass_at_k
from qae.groups import group_mean as group_mean
from qae.groups import group_quantile as group_quantile
from qae.groups import group_size as group_size
from qae.groups import group_std as group_std
from qae.logprobs import token_entropy as token_entropy
from qae.losses import LOSSES as LOSSES
from qae.losses import cispo_policy_loss as cispo_policy_loss
from qae.losses import clip_cov_policy_loss as clip_cov_policy_loss
from qae.losses import clipped_policy_loss as clipped_policy_loss
from qae.losses import kl_cov_policy_loss as kl_cov_policy_loss
from qae.losses import sapo_policy_loss as sapo_policy_loss
from qae.losses import sequence_policy_loss as sequence_policy_loss
from qae.reduce import sequence_mean as sequence_mean
from qae.reduce import sequence_sum as sequence_sum
from qae.reduce import sequence_sum_norm as sequence_sum_norm
from qae.reduce import token_mean as token_mean
from qae.report import write_report as write_report
from qae.trainer.config import TrainConfig as TrainConfig

__version__: str
__all__: list[str]
