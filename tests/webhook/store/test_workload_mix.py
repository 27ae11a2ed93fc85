from __future__ import annotations

from typing import Any

from gpushare.allocation import Isolation, Memory
from gpushare.mix import Host, RequestClass
from tests import builders
from webhook.pods.stored_pod import Pod
from webhook.store import chooser
from webhook.store.chooser import WorkloadMix

HALF = RequestClass(1, 50, Memory(percent=50), Host(4000, 2**30))


def asks(**annotations: str) -> chooser.Asks:
    return chooser.asks_of(Pod.from_manifest(builders.pod(**annotations)), (("cpu", 4000), ("memory", 2**30)))


def test_request_combines_annotations_and_containers() -> None:
    assert asks(request="0.5") == (HALF,)
    (named,) = asks(gpus="2", model="*H100*")
    assert (named.gpus, named.constraints.models) == (2, ("*H100*",))


def test_results_of_gpushare_do_not_change_the_kind() -> None:
    assert asks(request="0.5", allocation="a1", node="node-a", gpu_uuids="GPU-1") == (HALF,)


def test_class_has_the_isolation_that_the_pod_was_given() -> None:
    """Otherwise no kind of GPU that takes only MPS shares would seem to fit the pods of a cluster with that default."""
    (given,) = asks(request="0.5", isolation_given="mps")
    assert given.constraints.isolation is Isolation.MPS
    assert asks(request="0.5", isolation_given="other") == (HALF,)


def test_pods_without_a_valid_request_have_no_classes() -> None:
    nonsense: dict[str, Any] = {"request": 5}
    assert asks() == asks(request="a lot") == asks(**nonsense) == ()


def test_mix_counts_existing_pods() -> None:
    counted = WorkloadMix()
    quarter = asks(request="0.25")
    for _ in range(60):
        counted.change((), (HALF,))
        counted.change((), quarter)
    for _ in range(20):
        counted.change((HALF,), ())
    mix = counted.snapshot()
    assert mix.classes == {HALF: 40.0, quarter[0]: 60.0}
    assert mix.pods == 100


def test_lesson_is_due_once_a_third_of_the_pods_has_changed() -> None:
    due: list[int] = []
    counted = WorkloadMix(lambda: due.append(counted.snapshot().pods))
    tenth = asks(request="0.1")
    for _ in range(240):
        counted.change((), tenth)
    assert due == [10, 20, 30, 40, 53, 70, 93, 124, 165, 220]
    counted.change(tenth, tenth)
    assert len(due) == 10


def test_lesson_is_due_once_a_third_of_the_compute_has_changed() -> None:
    due: list[int] = []
    counted = WorkloadMix(lambda: due.append(counted.snapshot().pods))
    for _ in range(93):
        counted.change((), asks(request="0.1"))
    del due[:]
    for _ in range(4):
        counted.change((), asks(gpus="8"))
    assert due == [94, 95, 97]  # at 17.3, 25.3 and 41.3 GPUs, of which the last two pods are a third


def test_lesson_is_due_with_the_first_pod_if_it_is_large() -> None:
    due: list[int] = []
    counted = WorkloadMix(lambda: due.append(counted.snapshot().pods))
    counted.change((), asks(gpus="8"))
    assert due == [1]


def test_mix_ignores_requests_of_too_few_pods() -> None:
    counted = WorkloadMix()
    counted.change((), (HALF,))
    assert HALF not in counted.snapshot().classes
