import pytest

from gpushare import node


@pytest.mark.parametrize(("status", "ready"), [("True", True), ("False", False), ("Unknown", False)])
def test_a_node_is_ready_if_its_condition_says_so(status: str, ready: bool) -> None:
    found = {
        "status": {"conditions": [{"type": "DiskPressure", "status": "True"}, {"type": "Ready", "status": status}]}
    }
    assert (node.is_ready(found), node.readiness(found)) == (ready, status)


def test_a_node_of_which_nothing_is_known_has_no_name_no_labels_and_is_not_ready() -> None:
    assert (node.name({}), node.labels({}), node.readiness({}), node.is_ready({})) == ("", {}, "False", False)
