"""What else can run an experiment: a run's configuration as another framework's settings, its records as ours."""
