"""The page's answers are those of the verbs: the same engine, the same sentences, with the GPUs to light up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kubectl_gpushare import options
from kubectl_gpushare.source.files import Files
from kubectl_gpushare.ui import cluster_follower, page_answers, page_state
from kubectl_gpushare.ui.page_answers import PageAnswers
from tests.kubectl_gpushare import sample
from tests.kubectl_gpushare.conftest import Plugin


@pytest.fixture
def answers(saved: Path) -> PageAnswers:
    chosen = options.Options(files=(str(saved),))
    origin = Files(chosen.files)
    scene = cluster_follower.saved_scene(origin, chosen, sample.NOW)
    return PageAnswers(origin, chosen, lambda: scene)


def words(page: list[dict[str, Any]]) -> dict[str, list[str]]:
    return {part["key"]: part["values"] for part in page if "key" in part}


def test_why_says_what_the_verb_says_and_lights_up_its_first_choice(
    answers: PageAnswers, plugin: Plugin, saved: Path
) -> None:
    answer = answers.answer("why", {"pod": "ml/waiting"})
    verb = json.loads(plugin("why", "waiting", "-n", "ml", "--from", saved, "-o", "json").out)
    assert answer["choices"] == [choice["gpus"] for choice in verb["choices"]] == ["gpu-1/3"]
    assert words(answer["page"])["Fits"] == [
        "it would fit now, on gpu-1/3; the placer comes to it by priority, then age"
    ]
    assert answer["command"] == f"kubectl gpushare why waiting -n ml --from={saved}"


def test_why_names_the_nearest_misses(answers: PageAnswers, saved: Path, plugin: Plugin) -> None:
    whole = json.loads(saved.read_text())
    manifest = sample.gated("ml/large", request="1", memory="79Gi")
    whole["items"].append(manifest)
    saved.write_text(json.dumps(whole))
    chosen = options.Options(files=(str(saved),))
    origin = Files(chosen.files)
    scene = cluster_follower.saved_scene(origin, chosen, sample.NOW)
    answer = PageAnswers(origin, chosen, lambda: scene).answer("why", {"pod": "ml/large"})
    verb = json.loads(plugin("why", "large", "-n", "ml", "--from", saved, "-o", "json").out)
    assert answer["nearest"][0] == {"gpu": "gpu-1/3", "why": "has 70Gi of 80Gi free", "rule": "memory"}
    assert [miss["gpu"] for miss in answer["nearest"]] == [miss["gpu"] for miss in verb["candidates"][:12]]


def test_fit_marks_each_gpu_and_the_place_that_the_webhook_would_choose(
    answers: PageAnswers, plugin: Plugin, saved: Path
) -> None:
    answer = answers.answer("fit", {"request": "0.5", "memory": "16Gi"})
    verb = json.loads(plugin("fit", "--request", "0.5", "--memory", "16Gi", "--from", saved, "-o", "json").out)
    assert answer["best"] == verb["pods"][0]["gpus"]
    assert answer["fits"] == {"gpu-1": "0001", "gpu-2": "0000", "gpu-10": "0011"}
    assert answer["more"] == verb["more"] + 1
    assert {"phrase": "unhealthy", "gpus": 1} in answer["counts"]


def test_fit_takes_the_flags_of_the_verb(answers: PageAnswers) -> None:
    asked = {name: "8Gi" for name in page_answers.ASKED if "memory" in name} | {"request": "0.5", "policy": "spread"}
    answer = answers.answer("fit", asked)
    flags = ("--request=0.5", "--memory=8Gi", "--memory-limit=8Gi", "--min-memory=8Gi", "--policy=spread")
    assert all(flag in answer["command"] for flag in flags)


def test_fit_says_why_not_on_one_gpu(answers: PageAnswers) -> None:
    asked = {"request": "0.5", "memory": "16Gi"}
    assert answers.answer("fit", {**asked, "gpu": "gpu-1/0"})["verdict"] == "has 0.25 of its compute free"
    assert answers.answer("fit", {**asked, "gpu": "gpu-1/3"})["verdict"] == "fits"


@pytest.mark.parametrize(
    ("name", "question", "sentence"),
    [
        ("fit", {"request": "1.5"}, 'gpushare.io/request "1.5" is more than one GPU'),
        ("fit", {"memory": "many"}, "many"),
        ("fit", {}, "say how large the share is"),
        (
            "fit",
            {"request": "0.5", "colour": "red"},
            'unknown word "colour=": must be one of request=, limit=, memory=,',
        ),
        ("fit", {"memory": "8Gi", "memory-limit": "24Gi", "isolation": "none"}, "as nothing enforces a limit"),
        ("why", {"pod": "ml/gone"}, 'pod "ml/gone" is gone'),
        ("describe", {"kind": "secret", "name": "x"}, 'invalid kind "secret"'),
        ("describe", {"kind": "gpu", "name": "gpu-1/77"}, 'no GPU "gpu-1/77"'),
        ("defrag", {"pod": "ml/trainer"}, "does not wait"),
    ],
)
def test_bad_questions_get_a_sentence(answers: PageAnswers, name: str, question: dict[str, str], sentence: str) -> None:
    assert sentence in answers.answer(name, question)["error"]


def test_describe_has_the_words_of_the_verb(answers: PageAnswers) -> None:
    page = words(answers.answer("describe", {"kind": "gpu", "name": "gpu-2/1"})["page"])
    assert page["Reason"] == ["XID 79: the GPU has fallen off the bus"]
    answer = answers.answer("describe", {"kind": "pod", "name": "ml/trainer"})
    assert words(answer["page"])["Placement"] == ["on gpu-1/0, shared with ml/notebook"]
    assert answer["command"].startswith("kubectl gpushare describe pod trainer -n ml --from=")


def crowded(tmp_path: Path) -> PageAnswers:
    """Two GPUs, each 40% taken by a pod of a ReplicaSet, and one more pod that would fit if both were on one GPU."""
    from gpushare import codec
    from gpushare.gpunode import GpuNode

    gpus = tuple(sample.gpu("n", index) for index in range(2))
    held = tuple(sample.held(f"ml/p{index}", gpus[index].uuid, request=40, gib=30) for index in range(2))
    pods = [sample.pod(f"ml/p{index}", node="n", request="0.4", memory="30Gi") for index in range(2)]
    for manifest in pods:
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "p", "uid": "rs", "controller": True}
        manifest["metadata"]["ownerReferences"] = [owner]
    waits = sample.gated("ml/whole", request="1", memory="70Gi", reason="no GPU fits")
    path = tmp_path / "crowded.json"
    items = [codec.to_document(GpuNode("n", gpus, held)), *pods, waits]
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    chosen = options.Options(files=(str(path),))
    origin = Files(chosen.files)
    scene = cluster_follower.saved_scene(origin, chosen, sample.NOW)
    return PageAnswers(origin, chosen, lambda: scene)


def test_defrag_draws_moves_and_the_gpus_after_them(tmp_path: Path) -> None:
    answer = crowded(tmp_path).answer("defrag", {})
    (move,) = answer["moves"]
    assert {*move["from"], *move["to"]} == {"n/0", "n/1"}
    (node,) = answer["after"]
    pods = sorted(share["pod"] for gpu in node["gpus"] for share in gpu["shares"])
    assert "ml/whole" in pods
    assert answer["command"].startswith("kubectl gpushare defrag --apply --from=")


def test_defrag_for_one_pod_names_it_in_the_command(tmp_path: Path) -> None:
    answer = crowded(tmp_path).answer("defrag", {"pod": "ml/whole"})
    assert answer["command"].startswith("kubectl gpushare defrag whole -n ml --apply --from=")


def test_answers_are_json(answers: PageAnswers) -> None:
    for name, question in (
        ("why", {"pod": "ml/trainer"}),
        ("defrag", {}),
        ("describe", {"kind": "node", "name": "gpu-1"}),
    ):
        assert "error" not in answers.answer(name, question)
        page_state.encoded(answers.answer(name, question))


@pytest.mark.parametrize(
    ("name", "question"),
    [
        ("describe", {"kind": "pod", "name": "<not-yet-named>"}),
        ("describe", {"kind": "pod", "name": "deploy/../x"}),
        ("describe", {"kind": "node", "name": "deploy/x"}),
        ("describe", {"kind": "gpu", "name": ""}),
        ("describe", {"kind": "pod", "name": "train-0"}),
        ("fit", {"request": "1", "gpus": "99999"}),
        ("fit", {"request": "nan"}),
        ("fit", {"request": "1", "isolation": "foo"}),
        ("why", {"pod": ""}),
    ],
)
def test_a_wrong_question_is_answered_with_a_sentence(
    answers: PageAnswers, name: str, question: dict[str, str]
) -> None:
    answer = answers.answer(name, question)
    assert answer["error"]
