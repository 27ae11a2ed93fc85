"""The precedence of flags, and invalid values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare import errors
from gpushare.config import config_file, flags, node_settings
from gpushare.config.model import ALL, Config, ReplicaStrategy

PLACES = ("cli", "env", "file")


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(PLACES), st.sampled_from(["none", "single", "mixed"])))
def test_precedence_is_command_line_environment_file_default(values: dict[str, str]) -> None:
    settings = flags.effective(
        {"migStrategy": values["file"]} if "file" in values else {},
        arguments=[f"--mig-strategy={values['cli']}"] if "cli" in values else [],
        environment={"MIG_STRATEGY": values["env"]} if "env" in values else {},
    )
    first = next((values[place] for place in PLACES if place in values), "none")
    assert settings["migStrategy"] == first


@pytest.mark.parametrize(
    ("arguments", "key", "value"),
    [
        (["--mig-strategy", "single"], "migStrategy", "single"),
        (["--pass-device-specs"], "plugin.passDeviceSpecs", True),
        (["--pass-device-specs", "--other"], "plugin.passDeviceSpecs", True),
        (["--fail-on-init-error=false"], "failOnInitError", False),
        (["--device-list-strategy=envvar, cdi-cri"], "plugin.deviceListStrategy", ("envvar", "cdi-cri")),
        (
            ["--device-list-strategy=envvar", "--device-list-strategy=cdi-cri"],
            "plugin.deviceListStrategy",
            ("envvar", "cdi-cri"),
        ),
        (["--sleep-interval=2m"], "gfd.sleepInterval", 120 * 10**9),
        (["--imex-channel-ids=0"], "imex.channelIDs", (0,)),
        (["--nvidia-driver-root=/run/nvidia"], "nvidiaDevRoot", "/run/nvidia"),
        (["--unknown=1", "word"], "migStrategy", "none"),
    ],
)
def test_the_command_line_is_parsed_like_nvidias_plugin(arguments: list[str], key: str, value: object) -> None:
    assert flags.effective({}, arguments=arguments)[key] == value


@pytest.mark.parametrize(
    ("environment", "key", "value"),
    [
        ({"PASS_DEVICE_SPECS": "1"}, "plugin.passDeviceSpecs", True),
        ({"FAIL_ON_INIT_ERROR": ""}, "failOnInitError", False),
        ({"MPS_ROOT": ""}, "mpsRoot", ""),
        ({"DEVICE_LIST_STRATEGY": ""}, "plugin.deviceListStrategy", ("envvar",)),
        ({"NVIDIA_CTK_PATH": "/b", "NVIDIA_CDI_HOOK_PATH": "/a"}, "plugin.nvidiaCTKPath", "/a"),
    ],
)
def test_the_environment_is_parsed_like_nvidias_plugin(environment: dict[str, str], key: str, value: object) -> None:
    assert flags.effective({}, environment=environment)[key] == value


@pytest.mark.parametrize(
    ("arguments", "environment", "part"),
    [
        (["--pass-device-specs=maybe"], {}, '--pass-device-specs "maybe"'),
        ([], {"FAIL_ON_INIT_ERROR": "on"}, 'FAIL_ON_INIT_ERROR "on"'),
        (["--sleep-interval=60"], {}, '--sleep-interval "60"'),
        (["--imex-channel-ids=a"], {}, "--imex-channel-ids"),
        (["--mig-strategy"], {}, "--mig-strategy has no value"),
    ],
)
def test_an_invalid_value_is_reported_with_its_source(
    arguments: list[str], environment: dict[str, str], part: str
) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        flags.effective({}, arguments=arguments, environment=environment)
    assert part in str(caught.value)


def test_mig_entries_imply_the_mixed_strategy_unless_one_is_set() -> None:
    text = "mig:\n- {devices: all, mig-enabled: true, mig-devices: {1g.10gb: 1}}\n"
    assert node_settings.effective(config_file.read(text)).mig_strategy == "mixed"
    assert node_settings.effective(config_file.read(text), arguments=["--mig-strategy=single"]).mig_strategy == "single"
    assert node_settings.effective(config_file.read(text + "flags: {migStrategy: none}")).mig_strategy == "none"


def test_mps_excludes_mixed_mig_only_under_strict_compatibility() -> None:
    mps = config_file.read("sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}")
    assert mps.sharing.strategy is ReplicaStrategy.MPS
    mixed = ["--mig-strategy=mixed"]
    assert node_settings.effective(mps, strict=True).mps_root == ""
    assert node_settings.effective(mps, arguments=mixed).mig_strategy == "mixed"
    with pytest.raises(errors.ConfigError, match="mixed"):
        node_settings.effective(mps, strict=True, arguments=mixed)


def test_the_defaults_are_valid() -> None:
    assert node_settings.effective(Config()) == node_settings.NodeSettings()


@pytest.mark.parametrize(
    ("argument", "part"),
    [
        ("--device-list-strategy=env", "invalid --device-list-strategy option: env"),
        ("--device-id-strategy=name", "invalid --device-id-strategy option: name"),
        ("--shared-devices-allocation-policy=some", "invalid --shared-devices-allocation-policy option: some"),
        ("--device-discovery-strategy=pci", "invalid --device-discovery-strategy option pci"),
        ("--mig-strategy=two", "unknown MIG strategy: two"),
        ("--imex-channel-ids=1", "invalid IMEX channel IDs: [1]"),
    ],
)
def test_an_unknown_value_is_rejected_with_the_valid_ones(argument: str, part: str) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        node_settings.effective(Config(), arguments=[argument])
    assert part in str(caught.value)
    assert "write" in str(caught.value)


def test_cdi_needs_nvml() -> None:
    with pytest.raises(errors.ConfigError, match="NVML"):
        node_settings.effective(Config(), arguments=["--device-list-strategy=cdi-cri"], has_nvml=False)


def test_strict_compatibility_drops_gpushares_extensions_with_warnings() -> None:
    config = config_file.read(
        """
        resources: {gpus: [{pattern: "*", name: a}]}
        sharing:
          timeSlicing: {resources: [{name: gpu, replicas: 3}]}
          mps: {renameByDefault: true, resources: [{name: gpu, replicas: 2, rename: b, devices: [0]}]}
          fractional: {resources: [{name: gpu}]}
        mig: [{devices: all, mig-enabled: false}]
        """
    )
    strict = node_settings.restricted(config)
    assert strict.resources.gpus == ()
    assert strict.sharing.time_slicing is None
    assert strict.sharing.fractional == ()
    assert strict.mig == ()
    assert strict.sharing.mps is not None
    (entry,) = strict.sharing.mps.resources
    assert (entry.rename, entry.devices) == ("nvidia.com/gpu.shared", ALL)
    assert len(strict.warnings) == 6
    assert all("has no effect" in warning for warning in strict.warnings)


def test_strict_compatibility_does_not_change_a_plain_file() -> None:
    config = config_file.read("sharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, replicas: 3}]}}")
    assert node_settings.restricted(config) == config
    assert node_settings.restricted(config).warnings == ()


@pytest.mark.parametrize(
    ("file", "arguments", "environment", "named"),
    [
        ("", [], {}, False),
        ("flags: {plugin: {deviceIDStrategy: index}}", [], {}, False),
        ("flags: {plugin: {deviceListStrategy: envvar}}", [], {}, True),
        ("", ["--device-list-strategy=envvar"], {}, True),
        ("", [], {"DEVICE_LIST_STRATEGY": "envvar"}, True),
        ("", [], {"DEVICE_LIST_STRATEGY": ""}, False),
    ],
)
def test_an_explicit_device_list_strategy_is_recognized(
    file: str, arguments: list[str], environment: dict[str, str], named: bool
) -> None:
    read = config_file.read(f"version: v1\n{file}\n")
    settings = node_settings.effective(read, arguments=arguments, environment=environment)
    assert (settings.device_list_strategies, settings.names_strategies) == (("envvar",), named)
