"""The range of a namespace's shares: one table of annotations on Namespaces, and what they mean for pods."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare import contract, errors, pod, share_range
from gpushare import request as requests

AMOUNTS = {"request": ("0", "0.1", "0.5"), "limit": ("0.2", "0.8"), "memory": ("1Gi", "8Gi")}


def asking(**annotations: str) -> dict[str, Any]:
    keys = {f"{contract.PREFIX}{key.replace('__', '.')}": text for key, text in annotations.items()}
    return {
        "metadata": {"name": "one", "namespace": "ml", "annotations": keys},
        "spec": {"containers": [{"name": "main"}, {"name": "side"}]},
    }


def asked(manifest: pod.PodJson) -> dict[str, str]:
    return {key.removeprefix(contract.PREFIX): text for key, text in pod.annotations_of(manifest).items()}


def of(**annotations: str) -> share_range.ShareRange:
    keys = {f"{key.replace('_', '.gpushare.io/')}": text for key, text in annotations.items()}
    return share_range.read("ml", {"kubernetes.io/other": "x", **keys})


@pytest.mark.parametrize(
    ("limits", "annotations", "added"),
    [
        ({"default_memory": "8Gi"}, {"request": "0.5"}, {"memory": "8Gi"}),
        ({"default_memory": "8Gi"}, {"request": "0.5", "memory": "50%"}, {}),
        ({"default_request": "0.1"}, {"memory": "8Gi"}, {"request": "0.1"}),
        ({"default_limit": "0.5"}, {"request": "0.2"}, {"limit": "0.5"}),
        ({"default_limit": "0.5"}, {"request": "0.8"}, {"limit": "0.8"}),
        ({"default_limit": "0.5"}, {"memory": "8Gi"}, {"limit": "0.5"}),
        ({"max_limit": "0.5"}, {"request": "0.2"}, {"limit": "0.5"}),
        ({"default_limit": "0.4", "max_limit": "0.5"}, {"request": "0.2"}, {"limit": "0.4"}),
        ({"default_memory": "8Gi", "default_limit": "0.5"}, {"gpus": "2"}, {}),  # whole GPUs stay whole
        ({"default_request": "0.25", "default_memory": "8Gi"}, {"gpus": "2"}, {"request": "0.25", "memory": "8Gi"}),
        ({"default_memory": "8Gi"}, {"request__side": "0.5"}, {"memory.side": "8Gi"}),
        ({"default_memory": "8Gi"}, {"request": "0.5", "memory__side": "1Gi"}, {"memory": "8Gi"}),
        ({"max_request": "0.5", "min_memory": "1Gi"}, {"request": "0.2"}, {}),
        ({"default_request": "0.5"}, {"memory": "8Gi", "limit": "0.3"}, {"request": "0.3"}),
        ({"default_request": "0", "default_memory": "8Gi"}, {"gpus": "1"}, {}),
        ({"require_isolation": "mig"}, {"request": "0.2"}, {"isolation": "mig"}),
        ({"require_isolation": "mig"}, {"request": "0.2", "isolation": "mps"}, {}),
    ],
)
def test_defaults_replace_only_what_a_share_does_not_write(
    limits: dict[str, str], annotations: dict[str, str], added: dict[str, str]
) -> None:
    manifest = asking(**annotations)
    after = of(**limits).with_defaults(manifest)
    assert asked(after) == {**asked(manifest), **added}
    assert (after is manifest) is (not added)
    assert requests.parse(after)


@pytest.mark.parametrize(
    ("limits", "annotations", "sentence"),
    [
        (
            {"max_request": "0.5"},
            {"request": "0.8"},
            'gpushare.io/request of container "main" is 0.8, but the namespace "ml" has max.gpushare.io/request "0.5": '
            'write at most "0.5"',
        ),
        (
            {"max_request": "0.5"},
            {"gpus": "2"},
            'gpushare.io/request of container "main" is 1, but the namespace "ml" has max.gpushare.io/request "0.5": '
            'write at most "0.5"',
        ),
        (
            {"min_memory": "1Gi"},
            {"memory__side": "100Mi"},
            'gpushare.io/memory of container "side" is 100Mi, but the namespace "ml" has min.gpushare.io/memory "1Gi": '
            'write at least "1Gi"',
        ),
        (
            {"max_memory": "8Gi"},
            {"memory": "4Gi", "memory-limit": "10Gi"},
            'gpushare.io/memory-limit of container "main" is 10Gi, but the namespace "ml" has max.gpushare.io/memory '
            '"8Gi": write at most "8Gi"',
        ),
        (
            {"max_memory": "8Gi", "max_memory-limit": "16Gi"},
            {"memory": "4Gi", "memory-limit": "100%"},
            'gpushare.io/memory-limit of container "main" is 100% of a GPU, but the namespace "ml" has '
            'max.gpushare.io/memory-limit "16Gi": write at most "16Gi"',
        ),
        ({"max_memory": "8Gi", "max_memory-limit": "16Gi"}, {"memory": "4Gi", "memory-limit": "16Gi"}, None),
        ({"max_memory": "8Gi"}, {"memory": "8Gi", "memory-limit": "8Gi"}, None),
        (
            {"max_memory": "40Gi"},
            {"request": "0.5"},
            'gpushare.io/memory of container "main" is 50% of a GPU, but the namespace "ml" has max.gpushare.io/memory '
            '"40Gi": write at most "40Gi"',
        ),
        (
            {"max_limit": "0.5"},
            {"request": "0.2", "limit": "1"},
            'gpushare.io/limit of container "main" is 1, but the namespace "ml" has max.gpushare.io/limit "0.5": '
            'write at most "0.5"',
        ),
        (
            {"require_isolation": "mig"},
            {"request": "0.2", "isolation": "auto"},
            'gpushare.io/isolation is "auto", but the namespace "ml" has require.gpushare.io/isolation "mig": remove '
            'gpushare.io/isolation, or write "mig"',
        ),
        ({"require_isolation": "mig"}, {"request": "0.2", "isolation": "mig"}, None),
        ({"require_isolation": "mps"}, {"request": "0.2"}, None),
        ({"min_request": "0.1"}, {"request": "0.1"}, None),
        ({"max_memory": "8Gi", "default_memory": "4Gi"}, {"request": "1"}, None),
        ({}, {"request": "1"}, None),
    ],
)
def test_a_share_outside_of_the_bounds_is_refused_with_a_sentence(
    limits: dict[str, str], annotations: dict[str, str], sentence: str | None
) -> None:
    allowed = of(**limits)
    assert allowed.excess(requests.parse(allowed.with_defaults(asking(**annotations)))) == sentence


@pytest.mark.parametrize(
    ("annotations", "wrong"),
    [
        ({"max_memory": "lots"}, 'max.gpushare.io/memory "lots" is not a quantity: write a number'),
        ({"max_memory": "8"}, 'max.gpushare.io/memory "8" is less than 1Mi of memory: write the unit'),
        ({"max_memory": "50%"}, 'max.gpushare.io/memory "50%" is not a quantity'),
        ({"default_memory": "0"}, 'default.gpushare.io/memory "0" is zero'),
        ({"max_request": "2"}, 'max.gpushare.io/request "2" is more than one GPU'),
        ({"min_limit": "0.5"}, 'min.gpushare.io/limit "0.5" is not a key that gpushare knows: it knows min.'),
        ({"require_isolation": "none"}, 'require.gpushare.io/isolation "none" is not one of arbiter, mps, mig'),
        ({"require_isolation": "auto"}, 'require.gpushare.io/isolation "auto" is not one of'),
        ({"require_memory": "8Gi"}, 'require.gpushare.io/memory "8Gi" is not a key that gpushare knows'),
        ({"max_requests": "0.5"}, 'max.gpushare.io/requests "0.5" is not a key that gpushare knows'),
        (
            {"min_memory": "8Gi", "max_memory": "4Gi"},
            'min.gpushare.io/memory "8Gi" is more than max.gpushare.io/memory',
        ),
        ({"default_memory": "8Gi", "max_memory": "4Gi"}, 'default.gpushare.io/memory "8Gi" is more than max.'),
        ({"min_memory": "8Gi", "default_memory": "4Gi"}, 'min.gpushare.io/memory "8Gi" is more than default.'),
        (
            {"min_request": "0.5", "max_limit": "0.4"},
            'min.gpushare.io/request "0.5" is more than max.gpushare.io/limit',
        ),
    ],
)
def test_an_unreadable_annotation_refuses_all_shares_of_the_namespace(annotations: dict[str, str], wrong: str) -> None:
    unreadable = of(**annotations)
    manifest = asking(request="0.3")
    assert unreadable.with_defaults(manifest) is manifest
    sentence = unreadable.excess(requests.parse(manifest))
    assert sentence is not None
    assert sentence.startswith(wrong)
    assert sentence.endswith(
        ': this is an annotation of the namespace "ml", and its pods get no share until an administrator corrects or '
        "removes it"
    )


def test_annotations_for_people_and_other_programs_change_nothing() -> None:
    allowed = share_range.read("ml", {"gpushare.io/max-memory": "1", "max.example.com/memory": "1"})
    assert allowed == share_range.ShareRange("ml")


@given(
    st.fixed_dictionaries({}, optional={f"{rule}_{key}": st.sampled_from(texts)
                                        for key, texts in AMOUNTS.items()
                                        for rule in ("default", "min", "max")
                                        if (rule, key) != ("min", "limit")}),
    st.dictionaries(
        st.sampled_from([f"{key}{suffix}" for key in AMOUNTS for suffix in ("", "__side")]),
        st.sampled_from(["0.1", "0.3", "1", "2Gi", "50%", "x"]),
        min_size=1,
    ),
)  # fmt: skip
def test_law_defaults_are_complete_after_one_step_and_never_break_a_valid_pod(
    limits: dict[str, str], annotations: dict[str, str]
) -> None:
    allowed, manifest = of(**limits), asking(**annotations)
    after = allowed.with_defaults(manifest)
    assert allowed.with_defaults(after) is after
    assert asked(manifest).items() <= asked(after).items()
    try:
        requests.parse(manifest)
    except errors.RequestError:
        return
    requests.parse(after)
