from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare import contract, errors, request
from gpushare.allocation import ALL_STEPS, Memory, Share, Steps
from gpushare.policies import POLICIES
from tests import builders
from tests.builders import GIB


def only_demand(**annotations: str) -> request.Demand:
    (demand,) = request.parse(builders.pod(**annotations)).demands
    return demand


@pytest.mark.parametrize(
    ("annotations", "share", "gpus"),
    [
        pytest.param({"request": "0.5"}, Share(50, 100, Memory(percent=50)), 1, id="memory-follows-the-request"),
        pytest.param(
            {"request": "0.5", "memory": "8Gi"}, Share(50, 100, Memory(bytes=8 * GIB)), 1, id="memory-in-bytes"
        ),
        pytest.param(
            {"memory": "8Gi"}, Share(0, 100, Memory(bytes=8 * GIB)), 1, id="memory-only-guarantees-no-compute"
        ),
        pytest.param({"memory": "25%"}, Share(0, 100, Memory(percent=25)), 1, id="memory-as-a-part"),
        pytest.param({"gpus": "2"}, Share(100, 100, Memory(percent=100)), 2, id="gpus-only-are-whole"),
        pytest.param({"gpus": "2", "request": "0.5"}, Share(50, 100, Memory(percent=50)), 2, id="several-parts"),
        pytest.param({"request": "20%", "limit": "60%"}, Share(20, 60, Memory(percent=20)), 1, id="limit"),
        pytest.param({"request": " 0.5 "}, Share(50, 100, Memory(percent=50)), 1, id="spaces-around-do-no-harm"),
        pytest.param(
            {"memory": "8Gi", "memory_limit": "50%"},
            Share(0, 100, Memory(bytes=8 * GIB), Memory(percent=50)),
            1,
            id="memory-limit",
        ),
        pytest.param({"request": "0", "memory": "1Gi"}, Share(0, 100, Memory(bytes=GIB)), 1, id="request-zero"),
    ],
)
def test_defaults_follow_the_table(annotations: dict[str, str], share: Share, gpus: int) -> None:
    demand = only_demand(**annotations)
    assert (demand.share, demand.gpus, demand.containers) == (share, gpus, ("main",))


def test_default_container_is_the_first_or_kubectls() -> None:
    manifest = builders.pod(containers=("a", "b"), request="0.5")
    assert request.parse(manifest).demands[0].containers == ("a",)
    manifest["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] = "b"
    assert request.parse(manifest).demands[0].containers == ("b",)


def test_listed_containers_use_one_share_together() -> None:
    manifest = builders.pod(containers=("a", "b", "c"), request="0.5", container="a, c")
    (demand,) = request.parse(manifest).demands
    assert demand.containers == ("a", "c")


def test_container_can_have_its_own_share() -> None:
    manifest = builders.pod(containers=("a", "b"), **{"request": "0.5", "memory.b": "4Gi", "request.b": "0.1"})
    first, second = request.parse(manifest).demands
    assert (first.containers, first.share.request_percent) == (("a",), 50)
    assert (second.containers, second.share) == (("b",), Share(10, 100, Memory(bytes=4 * GIB)))


def test_init_container_can_be_named() -> None:
    manifest = builders.pod(**{"request.warm": "0.2"})
    manifest["spec"]["initContainers"] = [{"name": "warm"}]
    assert request.parse(manifest).demands[0].containers == ("warm",)


def steps(manifest: dict[str, Any]) -> dict[str, Steps]:
    return {",".join(demand.containers): demand.steps for demand in request.parse(manifest).demands}


def test_containers_that_run_in_turn_have_separate_steps() -> None:
    manifest = builders.pod(
        containers=("main",), **{f"request.{name}": "0.2" for name in ("first", "side", "last", "main")}
    )
    manifest["spec"]["initContainers"] = [
        {"name": "without"},
        {"name": "first"},
        {"name": "side", "restartPolicy": "Always"},
        {"name": "last"},
    ]
    assert steps(manifest) == {"first": Steps(0, 0), "side": Steps(1), "last": Steps(2, 2), "main": Steps(3)}


def test_share_is_in_use_from_its_first_to_its_last_container() -> None:
    manifest = builders.pod(request="0.5", container="first,main", **{"request.last": "0.2"})
    manifest["spec"]["initContainers"] = [{"name": "first"}, {"name": "last"}]
    assert steps(manifest) == {"first,main": ALL_STEPS, "last": ALL_STEPS}


def test_containers_that_overlap_have_all_steps() -> None:
    assert steps(builders.in_turn(warm="0.5", main="0.5", restarts="Always")) == {"warm": ALL_STEPS, "main": ALL_STEPS}


def test_constraints_are_parsed() -> None:
    parsed = request.parse(
        builders.pod(
            request="0.5",
            model="*A100*, H100",
            min_memory="40Gi",
            min_compute_capability="8.6",
            uuid="GPU-1,GPU-2",
            not_uuid="GPU-3",
            affinity="red",
            anti_affinity="green",
            exclusion="blue",
            policy="pack",
            isolation="arbiter",
            group="gang",
            group_size="4",
            latency="true",
        )
    )
    assert parsed.constraints == request.Constraints(
        models=("*A100*", "H100"),
        min_memory_bytes=40 * GIB,
        min_compute_capability=(8, 6),
        uuids=("GPU-1", "GPU-2"),
        not_uuids=("GPU-3",),
        affinity="red",
        anti_affinity="green",
        exclusion="blue",
    )
    assert (parsed.policy, parsed.isolation, parsed.group, parsed.group_size, parsed.latency) == (
        "pack",
        "arbiter",
        "gang",
        (4, 4),
        True,
    )


@pytest.mark.parametrize(
    ("annotations", "sentence"),
    [
        ({"request": "1.5"}, 'gpushare.io/request "1.5" is more than one GPU: write 0 to 1 in steps of 0.01, and gpushare.io/gpus for more GPUs'),
        ({"request": "a lot"}, 'gpushare.io/request "a lot" is not a part of a GPU: write it as "0.5", "50%" or "500m"'),
        ({"memory": "8Gi", "memory_limit": "4Gi"}, 'gpushare.io/memory-limit "4Gi" is less than the request: write at least 8Gi'),
        ({"memory": "50%", "memory_limit": "25%"}, 'gpushare.io/memory-limit "25%" is less than the request: write at least 50%'),
        ({"request": "0.5", "memory_limit": "4Gi"}, 'gpushare.io/memory-limit "4Gi" is a limit without a request: add gpushare.io/memory'),
        ({"memory": "8Gi", "memory_limit": "9Gi", "isolation": "mig"}, 'gpushare.io/isolation "mig" cannot be combined with gpushare.io/memory-limit, as a MIG device has its own memory: remove one of them, or write "arbiter"'),
        ({"memory": "8Gi", "memory_limit": "9Gi", "isolation": "none"}, 'gpushare.io/isolation "none" cannot be combined with gpushare.io/memory-limit, as nothing enforces a limit: remove one of them, or write "arbiter"'),
        ({"request": "0.5", "limit": "0.2"}, 'gpushare.io/limit "0.2" is less than the request: write 0.5 to 1, or omit it for 1'),
        ({"limit": "0.5"}, 'gpushare.io/limit "0.5" without a request means a limit on a whole GPU, which must be 1: add gpushare.io/request'),
        ({"gpus": "2", "limit": "0.5"}, 'gpushare.io/limit "0.5" without a request means a limit on a whole GPU, which must be 1: add gpushare.io/request'),
        ({"limit.main": "0.5"}, 'gpushare.io/limit.main "0.5" without a request means a limit on a whole GPU, which must be 1: add gpushare.io/request.main'),
        ({"memory": "8"}, 'gpushare.io/memory "8" is less than 1Mi of memory: write the unit, such as "8Gi"'),
        ({"memory": "8192"}, 'gpushare.io/memory "8192" is less than 1Mi of memory: write the unit, such as "8Gi"'),
        ({"request": "1", "min-memory": "40"}, 'gpushare.io/min-memory "40" is less than 1Mi of memory: write the unit, such as "8Gi"'),
        ({"memory": "8GB"}, 'gpushare.io/memory "8GB" is not a quantity: write a number with an optional unit, such as "8Gi"'),
        ({"memory": "120%"}, 'gpushare.io/memory "120%" is not a percentage of the memory: write "0%" to "100%" in whole percent, or bytes such as "8Gi"'),
        ({"memory": "0"}, 'gpushare.io/memory "0" gives no memory: set gpushare.io/memory to more than 0, such as 1Gi'),
        ({"request": "0"}, 'gpushare.io/request "0" gives no memory: set gpushare.io/memory to more than 0, such as 1Gi'),
        ({"gpus": "0"}, 'gpushare.io/gpus "0" is not a count: write a whole number from 1 to 63'),
        ({"gpus": "1.5"}, 'gpushare.io/gpus "1.5" is not a count: write a whole number from 1 to 63'),
        ({"request": "1", "container": "other"}, 'gpushare.io/container "other" names the container "other", which the pod does not have: it has main'),
        ({"request": "1", "container": "main,"}, 'gpushare.io/container "main," has an empty item: write a list such as a,b'),
        ({"request.other": "1"}, 'gpushare.io/request.other "1" names the container "other", which the pod does not have: it has main'),
        ({"request": "1", "policy": "best"}, f'gpushare.io/policy "best" is unknown: write one of {", ".join(POLICIES)}'),
        ({"request": "1", "latency": "yes"}, 'gpushare.io/latency "yes" is neither "true" nor "false"'),
        ({"request": "1", "group": "g"}, 'gpushare.io/group "g" also requires gpushare.io/group-size'),
        ({"request": "1", "group-size": "3"}, 'gpushare.io/group-size "3" also requires gpushare.io/group'),
        ({"request": "1", "group-size": "2-8"}, 'gpushare.io/group-size "2-8" also requires gpushare.io/group'),
        ({"request": "1", "group": "g", "group-size": "8-2"}, 'gpushare.io/group-size "8-2" has a minimum above its maximum: write "2-8"'),
        ({"request": "1", "group": "g", "group-size": "0-4"}, 'gpushare.io/group-size "0-4" is not a count: write a whole number from 1 to 63, or a range of them such as "2-8"'),
        ({"request": "1", "group": "g", "group-size": "2-"}, 'gpushare.io/group-size "2-" is not a count: write a whole number from 1 to 63, or a range of them such as "2-8"'),
        ({"request": "1", "affinity": "no spaces"}, "gpushare.io/affinity \"no spaces\" is not a label value: write at most 63 letters, digits, '-', '_' or '.', a letter or digit at both ends"),
        ({"request": "1", "min-compute-capability": "new"}, 'gpushare.io/min-compute-capability "new" is not a compute capability: write it as "8.0"'),
    ],
)  # fmt: skip
def test_invalid_input_gets_one_sentence(annotations: dict[str, str], sentence: str) -> None:
    with pytest.raises(errors.RequestError) as caught:
        request.parse(builders.pod(**annotations))
    assert str(caught.value) == sentence


def test_misspelt_key_is_reported_with_the_known_keys() -> None:
    with pytest.raises(
        errors.RequestError,
        match=r'gpushare.io/memroy "8Gi" is not a gpushare key: did you mean gpushare.io/memory\? it knows request, limit',
    ):
        request.parse(builders.pod(request="0.5", memroy="8Gi"))


def test_container_in_two_places_is_rejected() -> None:
    with pytest.raises(errors.RequestError, match="has its own keys"):
        request.parse(builders.pod(containers=("a", "b"), **{"request": "0.5", "container": "a,b", "memory.b": "4Gi"}))


def test_huge_value_is_rejected_with_a_short_sentence() -> None:
    with pytest.raises(errors.RequestError) as caught:
        request.parse(builders.pod(request="9" * 200_000))
    assert "200000 characters" in str(caught.value)
    assert len(str(caught.value)) < 300


def test_sentence_contains_no_control_characters() -> None:
    with pytest.raises(errors.RequestError) as caught:
        request.parse(builders.pod(request="0.5\x1b[31m\n\u202e"))
    assert str(caught.value).isprintable()


def test_result_annotations_are_ignored() -> None:
    manifest = builders.pod(request="0.5")
    manifest["metadata"]["annotations"] |= {contract.NODE: "evil", contract.GPU_UUIDS + ".main": "GPU-1"}
    assert request.parse(manifest) == request.parse(builders.pod(request="0.5"))


@pytest.mark.slow
@given(
    st.dictionaries(
        st.sampled_from([*contract.REQUEST_KEYS, contract.REQUEST + ".main"]), st.text(max_size=20), min_size=1
    )
)
def test_any_annotations_are_parsed_or_rejected_with_their_key(annotations: dict[str, str]) -> None:
    manifest = builders.pod()
    manifest["metadata"]["annotations"] = annotations
    try:
        parsed = request.parse(manifest)
    except errors.RequestError as error:
        assert error.key in annotations or error.key in contract.REQUEST_KEYS
        assert str(error).isprintable()
    else:
        for demand in parsed.demands:
            assert 0 <= demand.share.request_percent <= demand.share.limit_percent <= 100
