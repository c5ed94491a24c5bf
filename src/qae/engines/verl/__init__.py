"""verl on Ray: the same configuration as its overrides, its dumps and metrics as our run directory.

overrides   TrainConfig -> verl's overrides and environment
refusals    what verl cannot do, and what it does in its own way
data        problems -> Parquet; reward: the run's task as verl's reward function
run         prepare, start, watch, resume; cause: why it failed
records     verl's dumps -> our records
"""
