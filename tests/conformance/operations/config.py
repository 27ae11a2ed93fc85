"""The configuration file: text, sections, flags, names and device references."""

from __future__ import annotations

import json
from typing import Any

from gpushare.config import config_file, flags, model, node_settings, value_parsers, yaml_tree
from tests.conformance.runner import Case, Facets


def tree(plain: Any, path: str = "", line: int = 0) -> yaml_tree.Item:
    """Return the plain data that `json.loads` would return."""
    if isinstance(plain, dict):
        entries = {str(key): tree(value, yaml_tree.below(path, str(key)), line) for key, value in plain.items()}
        return yaml_tree.Item(path, line, entries)
    if isinstance(plain, list):
        return yaml_tree.Item(
            path, line, tuple(tree(value, f"{path}[{index}]", line) for index, value in enumerate(plain))
        )
    return yaml_tree.Item(path, line, plain)


def _json(case: Case) -> yaml_tree.Item:
    return tree(json.loads(case.input))


def load_config_yaml(case: Case) -> Any:
    config = config_file.read(case.input)
    written: dict[str, Any] = {}
    _flatten(model.as_document(config), "", written)
    for path, shared in (("sharing.timeSlicing", config.sharing.time_slicing), ("sharing.mps", config.sharing.mps)):
        if shared is not None:
            written[f"{path}.failRequestsGreaterThanOne"] = bool(shared.fail_requests_greater_than_one)
    effective = node_settings.values_of(config)
    for key, value in effective.items():
        shown = list(value) if isinstance(value, tuple) else value
        written |= {key: shown, f"flags.{key}": shown}
    return Facets(written | {"strategy": str(config.sharing.strategy), "warnings": list(config.warnings)})


def _flatten(value: Any, path: str, into: dict[str, Any]) -> None:
    into[path] = value
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in entries:
        _flatten(below, f"{path}.{key}" if path else str(key), into)
        if isinstance(value, list):
            _flatten(below, f"{path}[{key}]", into)


def parse_flags_json(case: Case) -> Any:
    settings = config_file.flags(_json(case), [])
    shown: dict[str, Any] = {section: {} for section in sorted(settings.sections)}
    for key, value in settings.values.items():
        section, _, name = key.rpartition(".")
        if flags.BY_KEY[key].kind is flags.FlagType.DURATION:
            name += "_ns"
        (shown.setdefault(section, {}) if section else shown)[name] = list(value) if isinstance(value, tuple) else value
    return shown


def dump_flags_json(case: Case) -> Any:
    return model.flags_document(config_file.flags(tree(_nanoseconds(case.input)), []))


def _nanoseconds(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key.removesuffix("_ns"): _nanoseconds(below) for key, below in value.items()}


def parse_imex_json(case: Case) -> Any:
    imex = config_file.imex(_json(case), [])
    required = {} if imex.required is None else {"required": imex.required}
    return {"channelIDs": imex.channel_ids} | required


def parse_devices_json(case: Case) -> Any:
    return _devices(config_file.devices(_json(case)))


def _devices(devices: model.Devices) -> dict[str, Any]:
    if devices.listed is not None:
        return {"list": devices.listed}
    return {"all": True} if devices.count is None else {"count": devices.count}


def dump_devices_json(case: Case) -> Any:
    listed = case.input.get("list")
    return model.devices_document(
        model.Devices(
            everything=case.input.get("all", False),
            count=case.input.get("count"),
            listed=None if listed is None else tuple(listed),
        )
    )


def parse_replicated_resource_json(case: Case) -> Any:
    return _shown(model.replicated_resource_document(config_file.replicated_resource(_json(case))), case)


def parse_replicated_resources_json(case: Case) -> Any:
    return model.replicated_document(config_file.replicated_resources(_json(case)))


def _shown(written: dict[str, Any], case: Case) -> dict[str, Any]:
    """Remove unset values, unless the case asks for them."""
    wanted = case.expect.get("value") or {}
    return {key: value for key, value in written.items() if value is not None or key in wanted}


def effective_setting(case: Case) -> Any:
    key = next(key for key in flags.BY_KEY if case.input["setting"] in (key, key.rpartition(".")[2]))
    config = model.Config()
    if case.input.get("file") is not None:
        section, _, name = key.rpartition(".")
        written = {name: case.input["file"]}
        flag_file = {"imex": written} if section == "imex" else {"flags": {section: written} if section else written}
        config = config_file.read(json.dumps(flag_file))
    return node_settings.values_of(
        config, arguments=case.input.get("cli") or (), environment=case.input.get("env") or {}
    )[key]


def validate_flags(case: Case) -> None:
    arguments = dict(case.input)
    strategy = model.ReplicaStrategy(arguments.pop("strategy", "none"))
    has_nvml = arguments.pop("has_nvml", True)
    values = node_settings.values_of(model.Config())
    for name, value in arguments.items():
        key = next(key for key in flags.BY_KEY if name in (key, key.rpartition(".")[2]))
        values[key] = tuple(value) if isinstance(value, list) else value
    node_settings.check_settings(values, strategy=strategy, has_nvml=has_nvml)


def apply_shipped_restrictions(case: Case) -> Any:
    warnings: list[str] = []
    values = dict(case.input)
    sections = {key: value for key, value in values.items() if key not in ("resources", "renameByDefault")}
    if isinstance(values.get("resources"), dict) or "sharing" in sections:  # a complete file
        config = node_settings.restricted(config_file.read(json.dumps(values)))
        return Facets(model.as_document(config) | {"warning": bool(config.warnings)})
    shared = config_file.replicated_resources(tree(values))
    resources = model.replicated_document(node_settings.restricted_resources(shared, "sharing.timeSlicing", warnings))
    return Facets(resources | {"warning": bool(warnings)})


def sharing_strategy(case: Case) -> Any:
    return str(sharing_of(case.input).strategy)


def sharing_of(values: dict[str, Any]) -> model.Sharing:
    """Build a Sharing directly, because a file cannot have one replica."""

    def built(section: dict[str, Any] | None) -> model.ReplicatedResources | None:
        if section is None:
            return None
        return model.ReplicatedResources(
            tuple(
                model.ReplicatedResource(
                    value_parsers.parse_resource_name(resource["name"]),
                    resource["replicas"],
                    rename=resource.get("rename"),
                )
                for resource in section.get("resources") or ()
            )
        )

    return model.Sharing(built(values.get("timeSlicing")), built(values.get("mps")))


OPERATIONS = {
    "load_config_yaml": load_config_yaml,
    "parse_flags_json": parse_flags_json,
    "dump_flags_json": dump_flags_json,
    "parse_imex_json": parse_imex_json,
    "parse_devices_json": parse_devices_json,
    "dump_devices_json": dump_devices_json,
    "parse_replicated_resource_json": parse_replicated_resource_json,
    "parse_replicated_resources_json": parse_replicated_resources_json,
    "effective_setting": effective_setting,
    "validate_flags": validate_flags,
    "apply_shipped_restrictions": apply_shipped_restrictions,
    "sharing_strategy": sharing_strategy,
    "parse_resource_name": lambda case: value_parsers.parse_resource_name(case.input),
    "resource_pattern_matches": lambda case: value_parsers.matches(case.input["pattern"], case.input["name"]),
    "classify_device_ref": lambda case: value_parsers.reference_kind(case.input),
    "is_gpu_index": lambda case: value_parsers.reference_kind(case.input) is value_parsers.ReferenceKind.GPU_INDEX,
    "is_mig_index": lambda case: value_parsers.reference_kind(case.input) is value_parsers.ReferenceKind.MIG_INDEX,
    "is_gpu_uuid": lambda case: value_parsers.is_gpu_uuid(case.input),
    "is_mig_uuid": lambda case: value_parsers.is_mig_uuid(case.input),
}
