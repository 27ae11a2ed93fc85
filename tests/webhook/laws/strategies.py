"""Random pods with requests, with unknown fields, and with fields of ours in them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from gpushare import contract

_NAMES = ("main", "side", "setup", "proxy")
_UNKNOWN = st.dictionaries(
    st.sampled_from(["futureField", "image", "workingDir", "x/y~z"]),
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.lists(st.integers(), max_size=2)),
    max_size=3,
)
_VARIABLES = st.lists(
    st.one_of(
        st.fixed_dictionaries({"name": st.sampled_from(["A", "B", contract.ENV_VISIBLE_DEVICES, contract.ENV_LIMIT])}),
        st.fixed_dictionaries(
            {
                "name": st.sampled_from(["C", contract.ENV_VISIBLE_DEVICES, contract.ENV_MEMORY]),
                "value": st.sampled_from(["", "all", "GPU-node-a-0", "50"]),
            }
        ),
        st.just({"name": "D", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}),
    ),
    max_size=4,
)
_AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "memory", "example.com/card"]), st.just("1"), max_size=2)
_RESOURCES = st.dictionaries(st.sampled_from(["limits", "requests"]), st.one_of(st.none(), _AMOUNTS), max_size=2)


@st.composite
def containers(draw: st.DrawFn, name: str) -> dict[str, Any]:
    made: dict[str, Any] = {**draw(_UNKNOWN), "name": name}
    for key, values in (("env", st.one_of(st.none(), _VARIABLES)), ("resources", st.one_of(st.none(), _RESOURCES))):
        if draw(st.booleans()):
            made[key] = draw(values)
    return made


@st.composite
def pods(draw: st.DrawFn) -> dict[str, Any]:
    """Return a pod whose request is valid and which no rule denies."""
    names = draw(st.permutations(_NAMES))
    split = draw(st.integers(1, len(names)))
    spec: dict[str, Any] = {**draw(_UNKNOWN), "containers": [draw(containers(name)) for name in names[:split]]}
    if names[split:]:
        spec["initContainers"] = [draw(containers(name)) for name in names[split:]]
        spec["initContainers"][0]["restartPolicy"] = "Always"
    if draw(st.booleans()):
        spec["nodeSelector"] = draw(
            st.one_of(st.none(), st.just({"pool": "gpu"}), st.just({contract.HOSTNAME_LABEL: "node-a"}))
        )
    if draw(st.booleans()):
        gates = st.sampled_from(["example.com/other", contract.SCHEDULING_GATE])
        spec["schedulingGates"] = [{"name": name} for name in draw(st.lists(gates, unique=True, max_size=2))]
    if draw(st.booleans()):
        spec["ephemeralContainers"] = [{"name": "debug", "env": [{"name": contract.ENV_VISIBLE_DEVICES}]}]
    metadata: dict[str, Any] = {**draw(_UNKNOWN), "annotations": draw(annotations_of(names))}
    if draw(st.booleans()):
        metadata["labels"] = draw(st.dictionaries(st.sampled_from(["app", contract.SHARE_LABEL]), st.just("x")))
    return {**draw(_UNKNOWN), "metadata": metadata, "spec": spec}


@st.composite
def annotations_of(draw: st.DrawFn, names: list[str]) -> dict[str, str]:
    made = {"example.com/note": "keep me"} if draw(st.booleans()) else {}
    own = draw(st.sets(st.sampled_from(names), max_size=2))
    rest = [name for name in names if name not in own]
    if not own or draw(st.booleans()):
        made.update(_amounts(draw, ""))
        made[contract.CONTAINER] = ",".join(draw(st.lists(st.sampled_from(rest), min_size=1, unique=True)))
    for name in own:
        made.update(_amounts(draw, f".{name}"))
    for key in (contract.ALLOCATION, contract.NODE, contract.GPU_UUIDS, f"{contract.GPU_UUIDS}.main", contract.REASON):
        if draw(st.booleans()):
            made[key] = draw(st.sampled_from(["", "forged", "node-a", "GPU-node-a-0"]))
    return made


def _amounts(draw: st.DrawFn, suffix: str) -> dict[str, str]:
    request = draw(st.sampled_from([None, "0", "0.07", "50%", "1"]))
    memory = draw(st.sampled_from([None, "1048577", "3Gi", "1.5Gi", "10%"]))
    if memory is None and request in {None, "0"}:
        request = "0.1"
    made = {} if request is None else {contract.REQUEST + suffix: request}
    if memory is not None:
        made[contract.MEMORY + suffix] = memory
    if draw(st.booleans()):
        made[contract.GPUS + suffix] = draw(st.sampled_from(["1", "2", "3"]))
    return made
