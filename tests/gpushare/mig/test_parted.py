"""Files in mig-parted's format."""

from __future__ import annotations

from typing import Any

import pytest

from gpushare.mig import catalogue, instance_layout, parted

GOOD: dict[str, Any] = {"devices": "all", "mig-enabled": True, "mig-devices": {"1g.5gb": 2}}


def read(**changes: Any) -> parted.MigConfigEntry:
    return parted.read_entry({key: value for key, value in {**GOOD, **changes}.items() if value is not ...})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"devices": ...}, "the entry lacks devices"),
        ({"devices": "gpu0"}, 'devices is "gpu0": write all, or a list'),
        ({"devices": [True]}, "devices is"),
        ({"devices": [-1]}, "devices is"),
        ({"mig-enabled": "yes"}, 'mig-enabled is "yes": write true or false'),
        ({"mig-devices": ...}, "has mig-enabled: true and no mig-devices"),
        ({"mig-devices": None}, "has mig-enabled: true and no mig-devices"),
        ({"mig-enabled": False}, "has mig-devices and mig-enabled: false"),
        ({"mig-devices": {"bogus": 1}}, '"bogus" is not a MIG profile'),
        ({"mig-devices": {"1g.5gb": -1}}, 'mig-devices.1g.5gb is "-1"'),
        ({"mig-devices": {"1g.5gb": 1.5}}, 'mig-devices.1g.5gb is "1.5"'),
        ({"mig-devices": {"1g.5gb": True}}, "mig-devices.1g.5gb is"),
        ({"mig-devices": {"1g.5gb": 0}}, "only counts of 0"),
        ({"mig-devices": ["1g.5gb"]}, "write a mapping"),
        ({"device-filter": [1]}, "device-filter is"),
        ({"more": 1}, 'the unexpected field "more": its fields are device-filter, devices, mig-enabled, mig-devices'),
    ],
)
def test_an_invalid_mig_entry_is_rejected_with_field_and_remedy(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(parted.PartedError) as error:
        read(**changes)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    "entry",
    [GOOD, {"devices": [0, 1], "mig-enabled": False}, {**GOOD, "mig-devices": {}, "device-filter": ["0x20B510DE"]}],
)
def test_a_mig_config_is_written_back_as_read(entry: dict[str, Any]) -> None:
    assert parted.written(parted.read_entry(entry)) == entry


def test_an_entry_applies_to_the_gpus_it_names() -> None:
    a100, a30 = parted.parse_device_id("0x20B510DE:0x153310DE"), parted.parse_device_id("0x20B710DE")
    assert read().applies_to(index=3, hardware=None)
    assert not read(devices=[0]).applies_to(index=3, hardware=a100)
    only = read(**{"device-filter": "0x20B510DE"})
    assert only.applies_to(index=0, hardware=a100)
    assert not only.applies_to(index=0, hardware=a30)
    assert not only.applies_to(index=0, hardware=None)


def test_pci_device_ids_are_printed_as_they_were_written() -> None:
    for text in ("0x20B510DE", "0x20B510DE:0x153310DE"):
        assert str(parted.parse_device_id(text)) == text
    assert parted.device_id_of_nvml(0x20B510DE, 0x153310DE) == parted.parse_device_id("0x20B510DE:0x153310DE")
    for text in ("", "20B5", "0x20B510DE:", "0x120B510DE", "0x20B510DE:1:2", "-1"):
        with pytest.raises(parted.DeviceIdError):
            parted.parse_device_id(text)


@pytest.mark.parametrize("name", catalogue.MODELS)
def test_every_generated_config_fits_its_model(name: str) -> None:
    geometry = catalogue.MODELS[name]
    model = parted.MigModel("0x20B510DE", {kind.profile: kind.most for kind in geometry.kinds})
    configs = parted.generated_configs([model])
    assert {"all-disabled", "all-enabled", "all-balanced"} <= configs.keys()
    for entries in configs.values():
        for entry in entries:
            assert instance_layout.config_error(geometry, entry.wanted) is None
            assert parted.read_entry(parted.written(entry)) == entry
