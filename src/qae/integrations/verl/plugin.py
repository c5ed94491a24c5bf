"""What verl loads into each of its processes: the registration of our estimators, and nothing else.

Loaded by the entry point group `verl.plugins`, or by `VERL_USE_EXTERNAL_MODULES=qae.integrations.verl.plugin`. verl
swallows the exception of an entry point and later reports an unknown estimator, after the first rollout; so what goes
wrong here is said on stderr before it is raised.
"""

import sys


def _register() -> None:
    try:
        from qae.integrations.verl.estimators import register

        register()
    except Exception as error:
        print(  # noqa: T201
            f"qae: its verl plug-in could not be loaded ({type(error).__name__}: {error}); the estimators qae, "
            "qae_linear and qae_loo are missing. Run `qae doctor verl`.",
            file=sys.stderr,
            flush=True,
        )
        raise


_register()
