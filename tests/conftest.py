"""Fixtures that every folder of tests shares."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# a busy machine is no failure: examples may be slow to draw and slow to run
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
# nor is the width of the terminal that tests are run from
os.environ["COLUMNS"] = "100"


@pytest.fixture(scope="session")
def corpus() -> Path:
    """The folder of public measurements: `$FUSELEDGER_DATA`, else `../shared/data`."""
    named = os.environ.get("FUSELEDGER_DATA")
    path = Path(named) if named else Path(__file__).resolve().parents[1] / "../shared/data"
    if not path.is_dir():
        pytest.skip("no corpus: set FUSELEDGER_DATA to the folder of measurements")
    return path.resolve()
