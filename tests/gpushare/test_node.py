import pytest

from gpushare import node


@pytest.mark.parametrize("status", ["True", "False", "Unknown"])
def test_readiness_is_the_status_of_the_ready_condition(status: str) -> None:
    manifest = {
        "status": {"conditions": [{"type": "DiskPressure", "status": "True"}, {"type": "Ready", "status": status}]}
    }
    assert node.readiness(manifest) == status


def test_empty_node_has_no_name_no_labels_and_is_not_ready() -> None:
    assert (node.name({}), node.labels({}), node.readiness({})) == ("", {}, "False")
