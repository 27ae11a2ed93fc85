"""Reading a configuration file: NVIDIA's format is accepted, errors name line and key."""

from __future__ import annotations

import dataclasses
import json
import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare import errors
from gpushare.config import config_file, model, value_parsers, yaml_tree
from gpushare.config.model import Devices


def read(text: str) -> model.Config:
    return config_file.read(textwrap.dedent(text))


def refusal(text: str) -> str:
    with pytest.raises(errors.ConfigError) as caught:
        read(text)
    return str(caught.value)


FULL = """
version: v1
flags:
  migStrategy: mixed
  failOnInitError: false
  plugin:
    deviceListStrategy: [envvar, cdi-cri]
    deviceIDStrategy: index
  gfd:
    sleepInterval: 90s
resources:
  gpus:
  - {pattern: "*A100*", name: a100}
  mig:
  - {pattern: "1c.*", name: nvidia.com/slices}
sharing:
  timeSlicing:
    renameByDefault: true
    failRequestsGreaterThanOne: true
    resources:
    - {name: gpu, replicas: 4, devices: [1], interval: short}
  mps:
    resources:
    - {name: nvidia.com/gpu, replicas: 2, devices: 1, rename: halves}
  fractional:
    resources:
    - {name: nvidia.com/gpu, devices: [0, GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c]}
imex: {channelIDs: [0], required: true}
mig:
- devices: [3]
  mig-enabled: true
  mig-devices: {1g.10gb: 7}
"""


def test_a_full_file_is_read_completely() -> None:
    config = read(FULL)
    assert config.warnings == ()
    assert config.flags.values["plugin.deviceListStrategy"] == ("envvar", "cdi-cri")
    assert config.flags.values["gfd.sleepInterval"] == 90 * 10**9
    assert config.resources.gpus == (model.ResourceRule("*A100*", "nvidia.com/a100"),)
    assert config.sharing.time_slicing is not None
    assert config.sharing.mps is not None
    assert config.sharing.time_slicing.resources == (
        model.ReplicatedResource("nvidia.com/gpu", 4, Devices(listed=("1",)), "nvidia.com/gpu.shared", "short"),
    )
    assert config.sharing.mps.resources == (
        model.ReplicatedResource("nvidia.com/gpu", 2, Devices(count=1), "nvidia.com/halves"),
    )
    assert config.sharing.mps.fail_requests_greater_than_one is True
    assert config.sharing.fractional[0].devices.listed == ("0", "GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c")
    assert config.imex == model.Imex((0,), required=True)
    assert config.mig[0].wanted == {"1g.10gb": 7}


def fractional(fields: str) -> str:
    return f"sharing: {{fractional: {{resources: [{{name: gpu, {fields}}}]}}}}\n"


def test_sm_partitions_are_read() -> None:
    config = read(fractional("isolations: [arbiter, mps], smPartitions: 4"))
    assert config.sharing.fractional[0].sm_partitions == 4
    assert model.fractional_resource_document(config.sharing.fractional[0])["smPartitions"] == 4
    assert read(fractional("isolations: [mps]")).sharing.fractional[0].sm_partitions == 0


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ("smPartitions: 4", "smPartitions 4: needs shares with the isolation mps: add mps to isolations"),
        ("isolations: [mps], smPartitions: 1", "smPartitions 1: is out of range: write 2 to 33"),
        ("isolations: [mps], smPartitions: 13", "smPartitions 13: fits no request in whole percent: write 12"),
        ("isolations: [mps], smPartitions: 17", "smPartitions 17: fits no request in whole percent: write 16"),
        ("isolations: [mps], smPartitions: 34", "smPartitions 34: is out of range: write 2 to 33"),
        ("isolations: [mps], smPartitions: half", 'smPartitions "half": is not a whole number'),
    ],
)
def test_sm_partitions_that_no_share_could_use_are_rejected(fields: str, sentence: str) -> None:
    assert f"sharing.fractional.resources[0].{sentence}" in refusal(fractional(fields))


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "{}", "version:\n", "VERSION: v1", "---\n"])
def test_an_empty_file_shares_no_gpu(text: str) -> None:
    assert read(text) == model.Config()


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        pytest.param("version: v1\nsharing:\n  timeSlicing:\n", ("line 3", "sharing.timeSlicing", "no resources")),
        pytest.param("version: 2", ("line 1", "version 2", "write v1")),
        pytest.param("version: [", ("line 1", "not YAML")),
        pytest.param("a: b: c", ("line 1", "not YAML")),
        pytest.param("- a", ("line 1", "is not a mapping")),
        pytest.param("flags: 3", ("line 1", "flags 3", "is not a mapping")),
        pytest.param("flags: {failOnInitError: 'true'}", ("flags.failOnInitError", '"true"', "true nor false")),
        pytest.param("flags: {gfd: {sleepInterval: soon}}", ("flags.gfd.sleepInterval", '"soon"', '"60s"')),
        pytest.param("imex:\n  channelIDs: [1]", ("line 2", "imex.channelIDs", "[0]")),
        pytest.param("resources: {gpus: [{name: a}]}", ("resources.gpus[0]", "'pattern'")),
        pytest.param(
            "resources: {gpus: [{pattern: a, name: A}]}", ("resources.gpus[0].name", '"A"', "lower-case letters")
        ),
        pytest.param("mig:\n- devices: all", ("line 2", "mig[0]", "mig-enabled")),
        pytest.param("mig:\n- {devices: all, mig-enabled: false, device-filter: A100}", ("line 2", "mig[0]", '"A100"')),
    ],
)
def test_an_invalid_file_is_rejected_with_line_key_and_remedy(text: str, parts: tuple[str, ...]) -> None:
    said = refusal(text)
    assert all(part in said for part in parts), said


@pytest.mark.parametrize(
    ("entry", "parts"),
    [
        pytest.param("replicas: 2", ("line 5", "no resource name"), id="no-name"),
        pytest.param("name: gpu", ("line 5", "no replicas"), id="no-replicas"),
        pytest.param("{name: gpu, replicas: 1}", ("resources[0].replicas 1", ">= 2"), id="one-replica"),
        pytest.param("{name: gpu, replicas: '2'}", ("resources[0].replicas", "is not a whole number"), id="text"),
        pytest.param("{name: gpu, replicas: yes}", ("resources[0].replicas true", "is not a whole number"), id="truth"),
        pytest.param("{name: gpu, replicas: 99999}", ("resources[0].replicas 99999", "<= 50000"), id="too-many"),
        pytest.param("{name: 5, replicas: 2}", ("resources[0].name 5", "is not text"), id="number-for-a-name"),
        pytest.param("{name: gpu, replicas: 2, devices: some}", ("devices", "'some'", "'all'"), id="some"),
        pytest.param("{name: gpu, replicas: 2, devices: null}", ("devices", "'all'"), id="null"),
        pytest.param("{name: gpu, replicas: 2, devices: -1}", ("devices -1", "> 0"), id="less-than-none"),
        pytest.param("{name: gpu, replicas: 2, devices: [GPU-1]}", ("devices[0]", '"GPU-1"', "UUID"), id="no-uuid"),
        pytest.param("{name: gpu, replicas: 2, devices: {a: b}}", ("devices", "unsupported type"), id="mapping"),
        pytest.param("{name: gpu, replicas: 2, interval: slow}", ("interval", '"slow"', "default, short"), id="slow"),
    ],
)
def test_an_invalid_entry_is_rejected_with_line_key_and_remedy(entry: str, parts: tuple[str, ...]) -> None:
    said = refusal(f"version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - {entry}\n")
    assert all(part in said for part in parts), said
    assert "line 5: sharing.timeSlicing.resources[0]" in said


def test_an_unknown_harmless_key_is_a_warning_with_line_and_suggestion() -> None:
    config = read(
        """\
        version: v1
        flag: {}
        resources:
          gpus:
          - {pattern: "*", name: gpu, colour: red}
        """
    )
    first, second = config.warnings
    assert first == "line 2: flag is unknown: did you mean flags?"
    assert "line 5: resources.gpus[0].colour is unknown: it has no effect; known keys: pattern, name" in second


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("sharng: {}", "line 1: sharng is unknown: did you mean sharing?"),
        ("migs: []", "line 1: migs is unknown: did you mean mig?"),
        (
            "sharing: {fractionl: {resources: [{name: gpu}]}}",
            "sharing.fractionl is unknown: did you mean fractional?",
        ),
        (
            "sharing: {colour: red}",
            "sharing.colour is unknown: remove it; known keys: timeSlicing, mps, fractional",
        ),
        ("sharing: {mps: {resource: []}}", "sharing.mps.resource is unknown: did you mean resources?"),
        (
            "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, Devices: [0]}]}}",
            "sharing.timeSlicing.resources[0].Devices is unknown: did you mean devices?",
        ),
        (
            "sharing: {fractional: {resources: [{name: gpu, device: [0]}]}}",
            "sharing.fractional.resources[0].device is unknown: did you mean devices?",
        ),
    ],
)
def test_a_misspelled_sharing_key_is_rejected_with_a_suggestion(text: str, sentence: str) -> None:
    assert sentence in refusal(f"{text}\n")


def test_a_duplicate_key_is_a_warning_and_the_last_one_counts() -> None:
    config = read("version: v2\nversion: v1\n")
    assert config.warnings == ("line 2: version is written twice: only the last one counts",)


def test_a_second_document_is_a_warning() -> None:
    assert "more than one document" in read("version: v1\n---\nversion: v2\n").warnings[0]


def test_an_unquoted_mig_index_is_not_a_base_60_number() -> None:
    item = yaml_tree.parse("[1:0, 0:1, 2.0, 1_0, 0x10, 010, yes, 'yes', 2001-01-01, ~]").root
    assert yaml_tree.plain(item) == ["1:0", "0:1", 2, 10, 16, 8, True, "yes", "2001-01-01", None]


def test_anchors_are_resolved() -> None:
    config = read(
        """\
        base: &base {name: gpu, replicas: 2}
        sharing:
          timeSlicing:
            resources:
            - {<<: *base, replicas: 4}
        """
    )
    assert config.sharing.time_slicing is not None
    assert config.sharing.time_slicing.resources[0].replicas == 4


BOMB = "\n".join(
    ["a0: &a0 [x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)), "version: v1"]
)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        pytest.param(BOMB, "more than 50000 values", id="many-by-aliases"),
        pytest.param("a: &a [*a]", "", id="itself"),
        pytest.param("[" * 5000, "line 1: nested too deeply", id="deep"),
        pytest.param("{" * 5000, "line 1: nested too deeply", id="deep-mappings"),
        pytest.param("a: &a {<<: *a}", "", id="merges-itself"),
        pytest.param("x" * (yaml_tree.MAX_TEXT + 1), "at most", id="long"),
        pytest.param('"\\UFFFFFFFF"', "not YAML", id="no-such-character"),
        pytest.param("a: !!python/object:os.system x", "tag", id="foreign-tag"),
        pytest.param("a: \x00", "not YAML", id="control-character"),
        pytest.param("? [a]\n: b", "a key is a list", id="list-for-a-key"),
        pytest.param("version: *missing", "line 1", id="no-such-anchor"),
    ],
)
def test_hostile_text_gives_one_clear_error(text: str, part: str) -> None:
    assert part in refusal(text)


@pytest.mark.slow
@given(st.text(max_size=200))
def test_any_text_is_read_or_raises_config_error(text: str) -> None:
    try:
        config_file.read(text)
    except errors.ConfigError as error:
        assert str(error)


KEYS = st.sampled_from(
    [
        *("version", "flags", "resources", "sharing", "imex", "mig", "timeSlicing", "mps", "fractional", "name"),
        *("replicas", "devices", "rename", "plugin", "gfd", "migStrategy", "deviceListStrategy", "sleepInterval"),
        *("renameByDefault", "failRequestsGreaterThanOne", "gpus", "pattern", "channelIDs", "mig-enabled"),
        *("mig-devices", "device-filter", "interval", "bogus"),
    ]
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 12),
    st.floats(allow_nan=False),
    st.sampled_from(["v1", "all", "gpu", "0:1"]),
)
TREES = st.recursive(
    SCALARS,
    lambda below: st.one_of(st.lists(below, max_size=3), st.dictionaries(KEYS, below, max_size=6)),
    max_leaves=24,
)


@pytest.mark.slow
@given(TREES)
def test_any_tree_is_a_config_or_an_error_with_a_line(tree: object) -> None:
    try:
        config = config_file.read(json.dumps(tree))
    except errors.ConfigError as error:
        assert str(error).startswith("line ")
    else:
        assert isinstance(config, model.Config)


UUIDS = st.uuids().map(lambda uuid: f"GPU-{uuid}")
NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,10}[a-z0-9])?", fullmatch=True).map(value_parsers.parse_resource_name)
CHOICES = st.one_of(
    st.just(model.ALL),
    st.integers(1, 8).map(lambda count: Devices(count=count)),
    st.lists(st.one_of(st.integers(0, 9).map(str), UUIDS, st.just("0:1")), max_size=3).map(
        lambda listed: Devices(listed=tuple(listed))
    ),
)


@st.composite
def shared(draw: st.DrawFn, *, mps: bool) -> model.ReplicatedResources:
    by_default = draw(st.booleans())
    resources = []
    for _ in range(draw(st.integers(1, 3))):
        name = draw(NAMES)
        rename = draw(NAMES if by_default else st.one_of(st.none(), NAMES))
        interval = "" if mps else draw(st.sampled_from(["", *config_file.INTERVALS]))
        resources.append(model.ReplicatedResource(name, draw(st.integers(2, 99)), draw(CHOICES), rename, interval))
    fail = st.booleans() if mps else st.one_of(st.none(), st.booleans())
    return model.ReplicatedResources(tuple(resources), by_default, draw(fail))


CONFIGS = st.builds(
    model.Config,
    flags=st.builds(
        lambda values, sections: model.Flags(values, sections | {key.split(".")[0] for key in values if "." in key}),
        st.fixed_dictionaries(
            {},
            optional={
                "migStrategy": st.sampled_from(["none", "mixed"]),
                "failOnInitError": st.booleans(),
                "mpsRoot": st.just("/mps"),
                "plugin.deviceListStrategy": st.lists(st.sampled_from(["envvar", "cdi-cri"]), max_size=2).map(tuple),
                "gfd.sleepInterval": st.integers(-(2**62), value_parsers.FOREVER_NANOSECONDS),
            },
        ),
        st.frozensets(st.sampled_from(["plugin", "gfd"])),
    ),
    resources=st.builds(
        model.Resources,
        st.lists(st.builds(model.ResourceRule, st.text("*ab1.", max_size=5), NAMES), max_size=2).map(tuple),
    ),
    sharing=st.builds(
        model.Sharing,
        st.one_of(st.none(), shared(mps=False)),
        st.one_of(st.none(), shared(mps=True)),
        st.lists(st.builds(model.FractionalResource, NAMES, CHOICES), max_size=2).map(tuple),
    ),
    imex=st.builds(model.Imex, st.sampled_from([None, (), (0,)]), st.one_of(st.none(), st.booleans())),
)


@pytest.mark.slow
@settings(max_examples=40)
@given(CONFIGS)
def test_a_written_config_is_read_back(config: model.Config) -> None:
    again = config_file.read(json.dumps(model.as_document(config)))
    assert again.warnings == ()
    assert dataclasses.replace(again, flags=config.flags) == config
    assert dict(again.flags.values) == dict(config.flags.values)
    assert model.as_document(again) == model.as_document(config)


@given(st.integers(-(2**63) + 1, 2**63 - 1))
def test_a_written_duration_is_read_back(nanoseconds: int) -> None:
    assert value_parsers.parse_duration(value_parsers.format_duration(nanoseconds)) == nanoseconds


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("1h30m", 5400 * 10**9),
        ("1.5ms", 1_500_000),
        ("1µs", 1000),
        ("1us", 1000),
        ("0", 0),
        ("-1s", -(10**9)),
        (".5s", 5 * 10**8),
    ],
)
def test_durations_are_parsed_like_go(text: str, nanoseconds: int) -> None:
    assert value_parsers.parse_duration(text) == nanoseconds


@pytest.mark.parametrize("text", ["", "5", "s", "1 s", "1d", "1s1", "--1s", "9999999h", "٣s"])
def test_an_invalid_duration_is_rejected(text: str) -> None:
    with pytest.raises(errors.ConfigError):
        value_parsers.parse_duration(text)
