"""The rights that the component `preemption` adds to the webhook's."""

from __future__ import annotations

import pytest

from gpushare import contract
from tests.config import manifests
from tests.config.conftest import Cluster
from tests.config.installation import apply, withdraw
from tests.config.test_rbac import granted
from tests.rights import EVERYWHERE, WITH_PREEMPTION, expected

pytestmark = pytest.mark.apiserver

RIGHTS = manifests.CONFIG / "components" / "preemption" / "rights.yaml"


def test_the_component_adds_one_right(installed: Cluster) -> None:
    account = contract.WEBHOOK_SERVICE_ACCOUNT
    apply(installed.administrator, manifests.documents(RIGHTS))
    try:
        anyone = granted(installed, "anyone-else", "default")
        rights = granted(installed, account, "default") - anyone
    finally:
        withdraw(installed.administrator, manifests.documents(RIGHTS))
    assert rights == expected(EVERYWHERE[account], WITH_PREEMPTION[account])
