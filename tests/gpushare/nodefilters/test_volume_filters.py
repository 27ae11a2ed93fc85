"""Attach limits: by CSINodes, claims, volumes, classes and attachments, in any order of arrival."""

import copy
import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.nodefilters import NodeSpec, PodAffinity, PodInfo, PodKey, SchedulerCache, volumes
from tests import builders

NODES = ("node-a", "node-b")
DRIVER = "disk.example.com"
OTHER = "net.example.com"
Json = dict[str, Any]


def node_spec(name: str) -> NodeSpec:
    return NodeSpec.from_manifest(
        {
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"pods": "110"}},
        }
    )


def item(kind: str, name: str, namespace: str = "", **fields: Any) -> Json:
    return {"kind": kind, "metadata": {"name": name, **({"namespace": namespace} if namespace else {})}, **fields}


def claim(name: str = "data", volume: str = "", storage_class: str | None = None) -> Json:
    spec: Json = {"storageClassName": storage_class} if storage_class is not None else {}
    return item(volumes.CLAIM, name, "default", spec=spec | ({"volumeName": volume} if volume else {}))


def disk(name: str = "disk", handle: str = "", driver: str = DRIVER) -> Json:
    return item(volumes.VOLUME, name, spec={"csi": {"driver": driver, "volumeHandle": handle or name}})


def limits(node: str = "node-a", **most: int) -> Json:
    drivers = [{"name": driver.replace("_", "."), "allocatable": {"count": count}} for driver, count in most.items()]
    return item(volumes.LIMITS, node, spec={"drivers": [*drivers, {"name": "any.example.com", "allocatable": {}}]})


def a_class(name: str = "fast", provisioner: str = DRIVER, created: str = "", *, is_default: bool = False) -> Json:
    made = item(volumes.CLASS, name, provisioner=provisioner)
    made["metadata"]["creationTimestamp"] = created
    if is_default:
        made["metadata"]["annotations"] = {"storageclass.kubernetes.io/is-default-class": "true"}
    return made


def attachment(name: str, node: str, volume: str, driver: str = DRIVER) -> Json:
    spec = {"nodeName": node, "attacher": driver, "source": {"persistentVolumeName": volume}}
    return item(volumes.ATTACHMENT, name, spec=spec)


def mounting(*claims: str, name: str = "", **more: Any) -> Json:
    made = builders.pod(name) if name else builders.pod()
    entries = [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims]
    made["spec"]["volumes"] = entries + [{"name": key, **volume} for key, volume in more.items()]
    return made


def made_for_it(storage_class: str | None = None) -> Json:
    spec = {} if storage_class is None else {"storageClassName": storage_class}
    return {"ephemeral": {"volumeClaimTemplate": {"spec": spec}}}


class Cluster:
    """A scheduler cache, and the objects that were put into it."""

    def __init__(self, *items: Json) -> None:
        self.cache = SchedulerCache()
        self.found: dict[tuple[str, volumes.Name], Json] = {}
        for name in NODES:
            self.cache.put_node_spec(name, node_spec(name))
        for item in items:
            self.put(item)

    def put(self, manifest: Json) -> None:
        metadata = manifest["metadata"]
        key = str(manifest["kind"]), (str(metadata.get("namespace", "")), str(metadata["name"]))
        before = self.found.get(key)
        self.cache.put_storage(key[1], volumes.read(before) if before else None, volumes.read(manifest))
        self.found[key] = manifest

    def drop(self, kind: str, name: str, namespace: str = "") -> None:
        gone = self.found.pop((kind, (namespace, name)))
        self.cache.put_storage((namespace, name), volumes.read(gone), None)

    def run(self, key: str, manifest: Json, node: str = "node-a") -> None:
        self.cache.put(key, PodInfo.from_manifest(manifest, node))

    def verdict(self, manifest: Json, node: str = "node-a", itself: Any = None) -> str | None:
        node_filter = self.cache.node_filter(
            PodKey.from_manifest(manifest), PodAffinity.from_manifest(manifest), itself=itself
        )
        said = node_filter(node)
        assert node_filter.fits(node) == (said is None)
        assert node_filter.misfits() >> self.cache.row(node) & 1 == (said is not None)
        return said


def full(used: int, most: int, more: int = 1, driver: str = DRIVER) -> str:
    return f"would exceed max volume count: {used} of {most} volumes of {driver} are in use, and the pod adds {more}"


def limited(most: int, node: str = "node-a") -> Json:
    made = limits(node)
    made["spec"]["drivers"].append({"name": DRIVER, "allocatable": {"count": most}})
    return made


def test_node_attaches_no_more_volumes_than_its_limit() -> None:
    there = Cluster(limited(1), claim("one", "v1"), disk("v1"), claim("two", "v2"), disk("v2"))
    assert there.verdict(mounting("two")) is None
    there.run("one", mounting("one"))
    assert there.verdict(mounting("two")) == full(1, 1)
    assert there.verdict(mounting("two"), "node-b") is None  # no limit without a CSINode
    assert there.verdict(mounting()) is None
    there.put(limited(2))
    assert there.verdict(mounting("two")) is None
    assert there.verdict(mounting("one", "two")) is None
    there.put(limited(0))
    assert there.verdict(mounting("two")) == full(1, 0)
    there.drop(volumes.LIMITS, "node-a")
    assert there.verdict(mounting("two")) is None


def test_volume_counts_once_per_node() -> None:
    there = Cluster(limited(1), claim("one", "v1"), disk("v1"), claim("same", "v1"))
    there.run("one", mounting("one"))
    assert there.verdict(mounting("one")) is None
    assert there.verdict(mounting("same")) is None
    there.run("another", mounting("same"))
    there.cache.put("one", None)
    assert there.verdict(mounting("one")) is None


def test_running_pod_does_not_block_itself() -> None:
    there = Cluster(limited(1), claim("one", "v1"), disk("v1"), claim("two", "v2"), disk("v2"))
    there.run("one", mounting("one"))
    assert there.verdict(mounting("two"), itself="one") is None
    assert there.verdict(mounting("two")) == full(1, 1)


def test_unbound_claim_counts_for_the_driver_of_its_class() -> None:
    there = Cluster(limited(1), claim("one", storage_class="fast"), claim("two", storage_class="fast"), claim("none"))
    there.run("one", mounting("one"))
    assert there.verdict(mounting("two")) is None  # unknown class
    there.put(a_class())
    assert there.verdict(mounting("two")) == full(1, 1)
    assert there.verdict(mounting("one")) is None
    assert there.verdict(mounting("none")) is None
    there.put(claim("one", "v1", "fast"))  # bound to a volume that is not known yet
    assert there.verdict(mounting("two")) == full(1, 1)
    there.put(disk("v1", driver=OTHER))
    assert there.verdict(mounting("two")) is None
    there.put(item(volumes.VOLUME, "v1", spec={"nfs": {}}))  # never attached
    assert there.verdict(mounting("one")) is None


def test_ephemeral_claim_counts_before_it_exists() -> None:
    there = Cluster(limited(1), a_class())
    nameless = mounting(scratch=made_for_it("fast"))
    nameless["metadata"] = {"generateName": "trainer-", "namespace": "default"}
    assert there.verdict(nameless) is None
    there.run("promised", nameless)
    assert there.verdict(nameless) == full(1, 1)
    there.cache.put("promised", None)
    there.run("one", mounting(name="one", scratch=made_for_it("fast")))
    assert there.verdict(mounting(name="two", scratch=made_for_it("fast"))) == full(1, 1)
    there.put(claim("one-scratch", "v1", "fast"))
    there.put(disk("v1"))
    assert there.verdict(mounting(name="two", scratch=made_for_it("fast"))) == full(1, 1)
    assert there.verdict(mounting(name="two", scratch=made_for_it(""))) is None


def test_template_without_a_class_gets_the_newest_default() -> None:
    there = Cluster(limited(0), a_class("old", created="2025-01-01T00:00:00Z", is_default=True))
    asked = mounting(name="one", scratch=made_for_it())
    assert there.verdict(asked) == full(0, 0)
    there.put(a_class("new", OTHER, created="2026-01-01T00:00:00Z", is_default=True))
    assert there.verdict(asked) is None
    there.drop(volumes.CLASS, "new")
    assert there.verdict(asked) == full(0, 0)


def test_attached_volumes_count_without_a_mount() -> None:
    there = Cluster(limited(1), disk("v1"), disk("v2"), claim("one", "v1"), claim("two", "v2"))
    there.put(attachment("a", "node-a", "v1"))
    assert there.verdict(mounting("two")) == full(1, 1)
    assert there.verdict(mounting("one")) == full(1, 1)  # the scheduler does not see that they are equal
    there.run("one", mounting("one"))
    assert there.verdict(mounting("one")) is None
    assert there.verdict(mounting("two")) == full(1, 1)
    there.cache.put("one", None)
    there.put(attachment("a", "node-b", "v1"))
    assert there.verdict(mounting("two")) is None
    there.put(attachment("a", "node-a", "v1"))
    there.drop(volumes.ATTACHMENT, "a")
    assert there.verdict(mounting("two")) is None


@pytest.mark.parametrize("field", volumes.OLD_FIELDS)
def test_in_tree_volume_is_attached_by_its_csi_driver(field: str) -> None:
    old = {"volumeID": "x", "diskURI": "x", "pdName": "x"}
    driver = next(now for _, known, _, now in volumes.IN_TREE if known == field)
    provisioner = next(before for before, known, _, _ in volumes.IN_TREE if known == field)
    most = limits()
    most["spec"]["drivers"].append({"name": driver, "allocatable": {"count": 1}})
    there = Cluster(most, item(volumes.VOLUME, "v1", spec={field: old}), claim("one", "v1"))
    there.put(a_class("of-old", provisioner))
    there.put(claim("two", storage_class="of-old"))
    there.run("one", mounting(within={field: old}))
    assert there.verdict(mounting("one")) is None
    assert there.verdict(mounting("two")) == full(1, 1, driver=driver)


def test_inline_csi_volume_is_never_attached() -> None:
    there = Cluster(limited(0))
    assert there.verdict(mounting(within={"csi": {"driver": DRIVER}})) is None


@dataclasses.dataclass
class Oracle:
    """The scheduler's own algorithm: recomputes everything for each pod and node from the current objects."""

    found: dict[tuple[str, volumes.Name], Json]
    running: dict[str, tuple[Json, str]]

    def get(self, kind: str, name: str, namespace: str = "") -> Json | None:
        return self.found.get((kind, (namespace, name)))

    def mounted(self, manifest: Json) -> dict[str, str]:
        """Return the driver of each volume, by unique name."""
        made = {}
        for volume in manifest["spec"].get("volumes") or []:
            is_made = "ephemeral" in volume
            name = f"{manifest['metadata']['name']}-{volume['name']}" if is_made else ""
            name = name or volume["persistentVolumeClaim"]["claimName"]
            bound = self.get(volumes.CLAIM, name, "default")
            if bound is None and is_made:  # it will be created
                bound = {"spec": volume["ephemeral"]["volumeClaimTemplate"]["spec"]}
            if bound is None:
                continue
            at = self.get(volumes.VOLUME, bound["spec"].get("volumeName", ""))
            if at is not None:
                driver, handle = at["spec"]["csi"]["driver"], at["spec"]["csi"]["volumeHandle"]
            else:
                known = self.get(volumes.CLASS, bound["spec"].get("storageClassName", ""))
                driver, handle = (known["provisioner"], f"unbound/{name}") if known is not None else ("", "")
            if driver:
                made[f"{driver}/{handle}"] = driver
        return made

    def fits(self, manifest: Json, node: str) -> bool:
        limited = self.get(volumes.LIMITS, node)
        if limited is None:
            return True
        there: dict[str, str] = {}
        for entry, where in self.running.values():
            if where == node:
                there |= self.mounted(entry)
        new = {name: driver for name, driver in self.mounted(manifest).items() if name not in there}
        left: dict[str, str] = {}
        for (kind, _), entry in self.found.items():
            if kind == volumes.ATTACHMENT and entry["spec"]["nodeName"] == node:
                at = self.get(volumes.VOLUME, entry["spec"]["source"]["persistentVolumeName"])
                if at is not None:
                    left[f"{entry['spec']['attacher']}/{at['spec']['csi']['volumeHandle']}"] = entry["spec"]["attacher"]
        counts = list((left | there).values())
        most = {
            driver["name"]: driver["allocatable"]["count"]
            for driver in limited["spec"]["drivers"]
            if "count" in driver["allocatable"]
        }
        return all(
            counts.count(driver) + list(new.values()).count(driver) <= most[driver]
            for driver in {*new.values()} & {*most}
        )


CLAIMS = ("c1", "c2", "c3")
DISKS = ("v1", "v2", "v3")
PODS = ("p1", "p2", "p3", "p4")


@st.composite
def manifests(draw: st.DrawFn) -> Json:
    name = draw(st.sampled_from(PODS))
    own = {"scratch": made_for_it("fast")} if draw(st.booleans()) else {}
    return mounting(*draw(st.lists(st.sampled_from(CLAIMS), max_size=2, unique=True)), name=name, **own)


NAMES = st.sampled_from(CLAIMS) | st.sampled_from([f"{name}-scratch" for name in PODS])
THINGS = st.one_of(
    st.builds(claim, NAMES, st.sampled_from(("", *DISKS)), st.sampled_from((None, "fast", "gone"))),
    st.builds(disk, st.sampled_from(DISKS), driver=st.sampled_from((DRIVER, OTHER))),
    st.builds(a_class, st.just("fast"), st.sampled_from((DRIVER, OTHER))),
    st.builds(limited, st.integers(0, 3), st.sampled_from(NODES)),
    st.builds(
        attachment, st.sampled_from(("a1", "a2")), st.sampled_from(NODES), st.sampled_from(DISKS), st.just(DRIVER)
    ),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), THINGS),
        st.tuples(st.just("drop"), st.integers(0, 50)),
        st.tuples(st.just("run"), st.tuples(manifests(), st.sampled_from(NODES))),
        st.tuples(st.just("end"), st.sampled_from(PODS)),
    ),
    min_size=3,
    max_size=25,
)


@pytest.mark.slow
@given(STEPS, st.lists(manifests(), min_size=1, max_size=3))
def test_counts_equal_a_recount_after_any_sequence_of_changes(steps: list[tuple[str, Any]], asked: list[Json]) -> None:
    there = Cluster(limited(2), disk("v1"), disk("v2"), claim("c1", "v1"), claim("c2", "v2"), a_class())
    running: dict[str, tuple[Json, str]] = {}
    for verb, given_ in steps:
        if verb == "put":
            there.put(copy.deepcopy(given_))
        elif verb == "drop" and there.found:
            kind, (namespace, name) = sorted(there.found)[given_ % len(there.found)]
            there.drop(kind, name, namespace)
        elif verb == "run":
            manifest, node = given_
            running[manifest["metadata"]["name"]] = manifest, node
            there.run(manifest["metadata"]["name"], manifest, node)
        elif verb == "end":
            running.pop(given_, None)
            there.cache.put(given_, None)
        for manifest in asked:
            itself = manifest["metadata"]["name"]
            others = {name: pod for name, pod in running.items() if name != itself}
            for node in NODES:
                expected = Oracle(there.found, others).fits(manifest, node)
                assert (there.verdict(manifest, node, itself if itself in running else None) is None) == expected


def test_impossibly_long_names_are_shortened() -> None:
    """The API server does not limit references in claims, and users may create very many claims."""
    endless = "x" * 200_000
    annotated = {"annotations": {"volume.beta.kubernetes.io/storage-class": endless}}
    made = {"name": "v", "ephemeral": {"volumeClaimTemplate": {"metadata": annotated}}}
    manifest = {
        "metadata": {"name": "p", "namespace": "ml"},
        "spec": {
            "volumes": [
                {"persistentVolumeClaim": {"claimName": endless}},
                made,
                *({field: {key: endless}} for _, field, key, _ in volumes.IN_TREE),
            ]
        },
    }
    records = [
        volumes.read({"kind": volumes.CLAIM, "metadata": annotated, "spec": {"volumeName": endless}}),
        volumes.read({"kind": volumes.CLAIM, "spec": {"storageClassName": endless}}),
        *volumes.mounts(manifest),
    ]
    assert len(records) == 4 + len(volumes.IN_TREE)
    for record in records:
        assert len(repr(record)) < 3000
