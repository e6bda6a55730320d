from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster_runs import Launches


@pytest.fixture
def launches(tmp_path: Path) -> Iterator[Launches]:
    launches = Launches(tmp_path)
    yield launches
    launches.kill()
