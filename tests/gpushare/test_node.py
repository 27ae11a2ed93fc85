import pytest

from gpushare import node


@pytest.mark.parametrize("status", ["True", "False", "Unknown"])
def test_a_node_is_as_ready_as_its_condition_says(status: str) -> None:
    manifest = {
        "status": {"conditions": [{"type": "DiskPressure", "status": "True"}, {"type": "Ready", "status": status}]}
    }
    assert node.readiness(manifest) == status


def test_a_node_of_which_nothing_is_known_has_no_name_no_labels_and_is_not_ready() -> None:
    assert (node.name({}), node.labels({}), node.readiness({})) == ("", {}, "False")
