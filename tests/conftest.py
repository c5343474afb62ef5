"""Profiles of hypothesis: ``ci`` (the default) and ``nightly`` (HYPOTHESIS_PROFILE=nightly)."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile("ci", deadline=None, max_examples=60, suppress_health_check=_SLOW)
settings.register_profile("nightly", deadline=None, max_examples=3000, suppress_health_check=_SLOW)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
