"""The page's answers are those of the verbs: the same engine, the same sentences, with the GPUs to light up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpushare import codec, contract
from kubectl_gpushare import options
from kubectl_gpushare.planning import reasons
from kubectl_gpushare.source.files import Files
from kubectl_gpushare.ui import cluster_follower, page_answers, page_state
from kubectl_gpushare.ui.page_answers import PageAnswers
from tests import builders
from tests.gpushare.defragmentation import clusters
from tests.kubectl_gpushare import sample
from tests.kubectl_gpushare.conftest import Plugin


def about(path: Path, **chosen_flags: Any) -> PageAnswers:
    chosen = options.Options(files=(str(path),), **chosen_flags)
    origin = Files(chosen.files)
    scene = cluster_follower.saved_scene(origin, chosen, sample.NOW)
    return PageAnswers(origin, chosen, lambda: scene)


def add(path: Path, *items: dict[str, Any]) -> Path:
    whole = json.loads(path.read_text())
    whole["items"] += items
    path.write_text(json.dumps(whole))
    return path


@pytest.fixture
def answers(saved: Path) -> PageAnswers:
    return about(saved)


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
    add(saved, sample.gated("ml/large", request="1", memory="79Gi"))
    answer = about(saved).answer("why", {"pod": "ml/large"})
    verb = json.loads(plugin("why", "large", "-n", "ml", "--from", saved, "-o", "json").out)
    assert answer["nearest"][0] == {"gpu": "gpu-1/3", "why": "has 70Gi of 80Gi free", "rule": "memory"}
    assert [miss["gpu"] for miss in answer["nearest"]] == [miss["gpu"] for miss in verb["candidates"][:12]]


def test_why_says_preemption_and_what_kueue_waits_for(tmp_path: Path, plugin: Plugin) -> None:
    low, lower = clusters.owned("low", priority=1, request="1"), clusters.owned("lower", request="1")
    high = builders.pod("high", request="1", uid="uid-high", spec={"priority": 10})
    gates = [{"name": contract.SCHEDULING_GATE}, {"name": reasons.KUEUE_GATE}]
    queued = builders.pod("queued", request="1", uid="uid-queued")
    high["spec"]["schedulingGates"], queued["spec"]["schedulingGates"] = gates[:1], gates
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "queued", "uid": "uid-queued"}
    condition = {"type": "QuotaReserved", "status": "False", "message": "no quota is left"}
    workload = {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "Workload",
        "metadata": {"name": "w", "namespace": "default", "ownerReferences": [owner]},
        "status": {"conditions": [condition]},
    }
    items = [codec.to_document(view.node) for view in clusters.cluster((low, "n0/0"), (lower, "n0/1")).views.values()]
    path = tmp_path / "cluster.json"
    items += [clusters.node_manifest("n0"), low, lower, high, queued, workload]
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    answers = about(path)
    for name, sentence in (("high", "would take the place of default/lower on n0"), ("queued", "Kueue: no quota is")):
        page = json.dumps(answers.answer("why", {"pod": f"default/{name}"})["page"])
        assert sentence in page
        assert sentence in " ".join(plugin("why", name, "-n", "default", "--from", path).out.split())


def test_fit_heeds_the_bounds_and_defaults_of_the_namespace(saved: Path, plugin: Plugin) -> None:
    bounds = {"max.gpushare.io/request": "0.2", "default.gpushare.io/memory": "8Gi"}
    add(saved, *(namespace(name, bounds) for name in ("default", "ml")))
    answers = about(saved)
    for question, flags in (({}, ()), ({"namespace": "ml"}, ("-n", "ml"))):
        no = answers.answer("fit", {"request": "0.5", "memory": "16Gi", **question})
        verb = plugin("fit", "--request", "0.5", "--memory", "16Gi", *flags, "--from", saved)
        assert verb.err == f"error: {no['error']}\n"
        assert 'has max.gpushare.io/request "0.2": write at most "0.2"' in no["error"]
        yes = answers.answer("fit", {"request": "0.1", **question})
        document = json.loads(plugin("fit", "--request", "0.1", *flags, "--from", saved, "-o", "json").out)
        assert yes["best"] == document["pods"][0]["gpus"]
        assert words(yes["page"])["Asks For"] == document["pods"][0]["asksFor"]
        assert "8Gi" in words(yes["page"])["Asks For"][0]
        assert ("-n ml" in yes["command"]) is bool(question)


def test_fit_heeds_quotas_and_the_namespace_of_the_command_line(saved: Path, plugin: Plugin) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "gpus", "namespace": "ml"},
        "spec": {"hard": {f"requests.{contract.RESOURCE_PERCENT}": "20"}},
    }
    asked = {"request": "0.5", "memory": "16Gi"}
    answer = about(add(saved, quota), namespace="ml").answer("fit", {**asked, "on_gpu": "gpu-1/3"})
    verb = plugin("fit", "--request", "0.5", "--memory", "16Gi", "-n", "ml", "--from", saved, "-o", "json")
    assert answer["reason"] == json.loads(verb.out)["pods"][0]["reason"]
    assert "the ResourceQuota gpus of its namespace leaves 20" in answer["reason"]
    assert set("".join(answer["fits"].values())) == {"0"}
    assert answer["verdict"] == f"cannot take it: {answer['reason']}"
    assert answer["counts"] == [{"phrase": "beyond the ResourceQuota", "gpus": 12}]
    assert answer["command"].startswith("kubectl gpushare fit --request=0.5 --memory=16Gi -n ml --from=")
    assert about(saved).answer("fit", asked)["reason"] == ""


def namespace(name: str, annotations: dict[str, str]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "annotations": annotations}}


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
    assert answers.answer("fit", {**asked, "on_gpu": "gpu-1/0"})["verdict"] == "has 0.25 of its compute free"
    assert answers.answer("fit", {**asked, "on_gpu": "gpu-1/3"})["verdict"] == "fits"


@pytest.mark.parametrize(
    ("name", "question", "sentence"),
    [
        ("fit", {"request": "1.5"}, 'gpushare.io/request "1.5" is more than one GPU'),
        ("fit", {"memory": "many"}, "many"),
        ("fit", {}, "specify the size of the share"),
        ("fit", {"request": "0.5", "gpu": "2"}, 'unknown word "gpu=": must be one of request=, '),
        ("fit", {"request": "0.5", "isolation": ""}, '"isolation=" has no value'),
        ("fit", {"request": "0.5", "namespace": "../x"}, 'namespace "../x" cannot be the name of a namespace'),
        ("why", {"pod": "web/nginx"}, 'pod "nginx" asks for no share of a GPU'),
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
    return about(path)


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
