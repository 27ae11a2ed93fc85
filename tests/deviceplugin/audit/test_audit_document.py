"""The audit as the JSON document that the plugin reads."""

from __future__ import annotations

import dataclasses

from deviceplugin.audit import node_audit
from tests.deviceplugin.audit.sample_node import (
    GIB,
    RECORD,
    A,
    B,
)
from tests.deviceplugin.audit.test_process_limits import judge, process, seen


def test_document_shows_a_share_of_a_mig_device_on_its_gpu() -> None:
    document = node_audit.to_json(judge(seen(process())), node_name="node-a", checked_at=1.5, parents={A: "GPU-whole"})
    assert [gpu["uuid"] for gpu in document["gpus"]] == ["GPU-whole", B]
    assert [process["pid"] for process in document["gpus"][0]["processes"]] == [7]
    assert [share["gpu"] for share in document["shares"]] == ["GPU-whole"]


def test_document_has_the_fields_that_the_plugin_reads() -> None:
    record = dataclasses.replace(RECORD, overhead_bytes=300)
    document = node_audit.to_json(
        judge(seen(process(), process(9, gpu=B, used_bytes=None), record=record)), node_name="node-a", checked_at=1.5
    )
    assert (document["node"], document["checkedAt"], document["problem"], document["blind"]) == (
        "node-a",
        1.5,
        "",
        False,
    )
    assert document["gpus"][0] == {
        "uuid": A,
        "index": 0,
        "mode": "fractional",
        "memoryEnforcement": "library",
        "processes": [
            {
                "pid": 7,
                "name": "python3",
                "namespace": "ml",
                "pod": "trainer",
                "container": "main",
                "usedBytes": 2 * GIB,
                "chargedBytes": GIB,
                "state": "limited",
                "memoryEnforcement": "library",
                "reason": "",
            }
        ],
    }
    assert document["gpus"][1]["processes"][0]["usedBytes"] is None
    assert document["shares"] == [
        {
            "namespace": "ml",
            "pod": "trainer",
            "containers": ["main"],
            "gpu": A,
            "requestPercent": 50,
            "limitPercent": 80,
            "limitBytes": 8 * GIB,
            "enforcedRequestPercent": 50,
            "enforcedLimitPercent": 80,
            "enforcedBytes": 8 * GIB,
            "driverBytes": None,
            "memoryEnforcement": "library",
            "chargedBytes": GIB,
            "overheadBytes": 300,
            "usedPercent": None,
            "letPercent": None,
            "processes": 1,
            "withLibrary": 1,
            "inForce": True,
            "reason": "",
        }
    ]
