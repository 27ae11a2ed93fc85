"""MIG: profiles, layouts, mig-parted files, placement of devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from gpushare.mig import catalogue, instance_layout, parted, profile
from gpushare.mig.instance_layout import Geometry
from tests.conformance.runner import Case, Facets
from tests.gpushare.mig import sequences


def parse_mig_profile(case: Case) -> Any:
    try:
        mig_profile = profile.parse(case.input)
    except profile.ProfileError:
        return {"valid_format": False, "supported_by_device": False}
    device = case.suite["device"]
    return {"valid_format": True, "supported_by_device": mig_profile in set(_profiles_of(device))}


def _profiles_of(device: Mapping[str, Any]) -> Any:
    """Return every profile of a GPU with these GPU instances, by NVML's names such as `2_SLICE_REV1`."""
    attributes = {"REV1": ("me", ""), "GFX": ("gfx", ""), "ALL_ME": ("me.all", ""), "NO_ME": ("", "me")}
    for name, mib in device["gi_profile_memory_mib"].items():
        slices, _, suffix = name.partition("_SLICE")
        with_, without = attributes.get(suffix.removeprefix("_"), ("", ""))
        for compute in (1, 2, 3, 4, 6, 7, 8):
            yield profile.Profile(
                gpu_slices=int(slices),
                memory_gb=profile.memory_gb_of_mib(instance_mib=mib, total_bytes=device["memory_bytes"]),
                compute_slices=compute,
                with_=(with_,) if with_ else (),
                without=(without,) if without else (),
            )


def mig_profiles_equal(case: Case) -> Any:
    first, second = map(profile.parse, case.input)
    return first == second


def mig_profile_gb(case: Case) -> Any:
    return profile.memory_gb_of_mib(instance_mib=case.input["instance_mib"], total_bytes=case.input["total_bytes"])


def mig_resource_name(case: Case) -> Any:
    return profile.parse(case.input).resource


def mig_profile_table(case: Case) -> Any:
    model = _model(case.input["model"])
    kinds = [
        {
            "profile": str(kind.profile),
            "gpu_slices": kind.gpu_slices,
            "memory_slices": kind.memory_slices,
            "placement_starts": list(kind.starts),
            "max_count": kind.most,
            "device_profile_id": kind.device_profile_id,
            **{key: value for key, value in wanted.items() if key in {"memory_mib", "sms"}},  # not used
        }
        for kind, wanted in zip(model.kinds, case.expect["profiles"], strict=True)
    ]
    note = {"note": case.expect["note"]} if "note" in case.expect else {}  # a remark, not an expectation
    return Facets(memory_slices=model.memory_slices, gpu_slices=model.gpu_slices, profiles=kinds, **note)


_OTHER_NAMES = {
    "GH200": "H100-96GB",
    "GH200-96GB": "H100-96GB",
    "RTX-PRO-6000-96GB": "RTX-PRO-6000",
}  # the size may be omitted if there is only one


def _model(name: str) -> Geometry:
    wanted = _OTHER_NAMES.get(name, name)
    (model,) = [gpu for known, gpu in catalogue.MODELS.items() if wanted == known or known.startswith(f"{wanted}-")]
    return model


def mig_layout_feasible(case: Case) -> Any:
    model = _model(case.input["model"])
    result = Facets(feasible=instance_layout.config_error(model, case.input["instances"]) is None)
    # Several placements are valid: ours may differ, but the expected one must be possible with ours.
    example = case.expect.get("example_placement")
    if example is not None and _sequence_error(model.name, example) is None:
        result["example_placement"] = example
    return result


def mig_place_sequence(case: Case) -> Any:
    problem = _sequence_error(case.input["model"], case.input["sequence"])
    if problem is not None:
        raise ValueError(problem)
    return Facets()


def _sequence_error(model: str, sequence: Any) -> str | None:
    steps = [(profile.parse(step["profile"]), step["start"]) for step in sequence]
    return sequences.error(_model(model), steps)


def parse_mig_config_entry(case: Case) -> Any:
    document = _document(case.input)
    # An empty text has no entry, and so no invalid one.
    return {} if document is None else parted.written(parted.read_entry(document))


def _document(text: Any) -> Any:
    return yaml.safe_load(text) if isinstance(text, str) else text


def valid_mig_config(case: Case) -> Any:
    problem = instance_layout.config_error(_model(case.input["model"]), case.input["config"])
    if problem is not None:
        raise ValueError(problem)
    return Facets()


def normalise_profile_name(case: Case) -> Any:
    return profile.normalised(case.input)


def generate_mig_configs(case: Case) -> Any:
    configs = parted.generated_configs(_models(case.input["gpus"]))
    return {"configs": {name: [_entry(entry) for entry in entries] for name, entries in configs.items()}}


def generate_all_balanced(case: Case) -> Any:
    return {"entries": [_entry(entry) for entry in parted.balanced_config(_models(case.input["gpus"]))]}


def _models(gpus: Any) -> list[parted.MigModel]:
    return [
        parted.MigModel(gpu["device_id"], {profile.parse(name): most for name, most in gpu["profiles_max"].items()})
        for gpu in gpus
    ]


def _entry(entry: parted.MigConfigEntry) -> dict[str, Any]:
    document = parted.written(entry)
    if "device-filter" in document:
        document["device-filter"] = set(document["device-filter"])  # in any order
    return document


def parse_device_id(case: Case) -> Any:
    device = parted.parse_device_id(case.input)
    value = {"device": device.model.device, "vendor": device.model.vendor}
    if device.subsystem is not None:
        value |= {"sub_device": device.subsystem.device, "sub_vendor": device.subsystem.vendor}
    return value


def device_filter_matches(case: Case) -> Any:
    wanted, hardware = map(parted.parse_device_id, case.input)
    return wanted.matches(hardware)


def is_compute_instance_profile(case: Case) -> Any:
    return profile.is_part_of_instance(case.input["c"], case.input["g"])


def creation_order_attempts(case: Case) -> Any:
    succeeds_at = next((value for key, value in case.input.items() if key not in ("config", "all_fail")), None)
    attempts = 0

    def attempt(_: tuple[profile.Profile, ...]) -> bool:
        nonlocal attempts
        attempts += 1
        return attempts == succeeds_at

    instance_layout.first_that_works(instance_layout.named(case.input["config"]), attempt)
    return Facets(attempts=attempts, ok=succeeds_at is not None and attempts == succeeds_at)


OUTSIDE = {
    "parse_mig_parted_file": "no file of mig-parted is read: a configuration has entries of one, as parse_mig_config_entry",
    "mig_device_placement": "the ids of a MIG device's instances are read with the device itself, never by its UUID",
    "parse_legacy_mig_uuid": "drivers before R470, whose MIG UUIDs named the instances, have no support by NVIDIA any more",
}
OPERATIONS = {
    "creation_order_attempts": creation_order_attempts,
    "device_filter_matches": device_filter_matches,
    "generate_all_balanced": generate_all_balanced,
    "generate_mig_configs": generate_mig_configs,
    "is_compute_instance_profile": is_compute_instance_profile,
    "mig_layout_feasible": mig_layout_feasible,
    "mig_place_sequence": mig_place_sequence,
    "mig_profile_gb": mig_profile_gb,
    "mig_profile_table": mig_profile_table,
    "mig_profiles_equal": mig_profiles_equal,
    "mig_resource_name": mig_resource_name,
    "normalise_profile_name": normalise_profile_name,
    "parse_device_id": parse_device_id,
    "parse_mig_config_entry": parse_mig_config_entry,
    "parse_mig_profile": parse_mig_profile,
    "valid_mig_config": valid_mig_config,
}
