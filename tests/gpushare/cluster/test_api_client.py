from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib import parse

import pytest

from gpushare.cluster import api_client, api_connection, api_errors, transport
from lab import access
from tests.gpushare.cluster import builders, tcp_proxy

pytestmark = pytest.mark.apiserver


async def test_objects_are_created_read_changed_and_deleted(api: api_client.ApiClient, config_maps: str) -> None:
    created = await api.create(config_maps, builders.config_map("life", a="1"))
    assert created["metadata"]["managedFields"][0]["manager"] == "gpushare-test"
    replaced = await api.replace(f"{config_maps}/life", {**created, "data": {"a": "2"}})
    assert replaced["data"] == {"a": "2"}
    await api.delete(f"{config_maps}/life", uid=created["metadata"]["uid"])
    with pytest.raises(api_errors.NotFound, match=r"GET .*/life: configmaps \"life\" not found \(HTTP 404\)"):
        await api.get(f"{config_maps}/life")


@pytest.mark.parametrize(
    ("body", "content_type", "expected"),
    [
        ({"data": {"b": "2", "a": None}}, api_client.MERGE_PATCH, {"b": "2"}),
        ([{"op": "add", "path": "/data/b", "value": "2"}], api_client.JSON_PATCH, {"a": "1", "b": "2"}),
    ],
    ids=["merge", "json"],
)
async def test_a_patch_is_applied_by_its_content_type(
    api: api_client.ApiClient,
    config_maps: str,
    body: Any,
    content_type: str,
    expected: dict[str, str],
) -> None:
    await api.create(config_maps, builders.config_map("patched", a="1"))
    try:
        patched = await api.patch(f"{config_maps}/patched", body, content_type)
        assert patched["data"] == expected
    finally:
        await api.delete(f"{config_maps}/patched")


async def test_a_dry_run_changes_nothing(api: api_client.ApiClient, config_maps: str) -> None:
    stored = await api.create(config_maps, builders.config_map("dry", a="1"))
    path = f"{config_maps}/dry"
    await api.create(config_maps, builders.config_map("dry-too"), query={"dryRun": "All"})
    await api.delete(path, query={"dryRun": "All"})
    assert await api.get(path) == stored
    with pytest.raises(api_errors.NotFound):
        await api.get(f"{config_maps}/dry-too")


async def test_errors_carry_the_reason_of_the_api_server(api: api_client.ApiClient, config_maps: str) -> None:
    first = await api.create(config_maps, builders.config_map("refused", a="1"))
    path = f"{config_maps}/refused"
    with pytest.raises(api_errors.AlreadyExists, match="already exists"):
        await api.create(config_maps, builders.config_map("refused"))
    await api.patch(path, {"data": {"a": "2"}})
    with pytest.raises(api_errors.Conflict, match="the object has been modified"):
        await api.replace(path, first)
    with pytest.raises(api_errors.Conflict, match=r"(?i)precondition"):
        await api.delete(path, uid="00000000-0000-0000-0000-000000000000")
    with pytest.raises(api_errors.Invalid, match=r"metadata\.name"):
        await api.create(config_maps, builders.config_map("Not A Name"))
    with pytest.raises(api_errors.Invalid, match="cannot unmarshal"):
        await api.create(config_maps, {**builders.config_map("x"), "data": 5})


async def test_a_service_account_without_rights_is_forbidden(
    api_server: access.Access, namespace: str, tmp_path: Path
) -> None:
    weak = api_server.service_account_kubeconfig(namespace, "default", tmp_path / "weak")
    async with api_client.connect(str(weak)) as api:
        with pytest.raises(api_errors.Forbidden, match="cannot list resource"):
            await api.list("/api/v1/pods", keep=api_client.whole)


async def test_a_list_of_several_pages_is_complete(api: api_client.ApiClient, config_maps: str) -> None:
    names = {f"page-{number:02}" for number in range(25)}
    await asyncio.gather(*(api.create(config_maps, builders.config_map(name)) for name in names))
    for query in ({"limit": 4}, {"limit": 4, "resourceVersion": "0"}, {}):
        listing = await api.list(config_maps, query, keep=api_client.whole)
        entries = [item for item in listing.items if item["metadata"]["name"] in names]
        assert len(entries) == len(names)
        assert {(item["kind"], item["apiVersion"]) for item in entries} == {("ConfigMap", "v1")}
        assert int(listing.resource_version) > 0


async def test_selectors_are_sent_to_the_api_server_unchanged(api: api_client.ApiClient, config_maps: str) -> None:
    body = builders.config_map("selected")
    body["metadata"]["labels"] = {"gpushare.io/group": "a+b".replace("+", "_")}
    await api.create(config_maps, body)
    for query in (
        {"labelSelector": "gpushare.io/group in (a_b, c),gpushare.io/group!=d"},
        {"fieldSelector": "metadata.name=selected"},
    ):
        assert [
            item["metadata"]["name"] for item in (await api.list(config_maps, query, keep=api_client.whole)).items
        ] == ["selected"]


async def test_a_watch_reports_changes_and_ends_at_its_timeout(api: api_client.ApiClient, config_maps: str) -> None:
    version = (await api.list(config_maps, keep=api_client.whole)).resource_version
    query = {"resourceVersion": version, "fieldSelector": "metadata.name=watched"}
    expected = ["ADDED", "MODIFIED", "DELETED"]
    seen: list[str] = []
    async with asyncio.timeout(60), api.watch(config_maps, query, timeout_seconds=50) as events:
        await api.create(config_maps, builders.config_map("watched", a="x" * 500_000))
        await api.patch(f"{config_maps}/watched", {"data": {"a": "2"}})
        await api.delete(f"{config_maps}/watched")
        async for event in events:
            seen.append(event["type"])
            if event["type"] == "DELETED":
                break
    assert [kind for kind in seen if kind != "BOOKMARK"] == expected
    async with asyncio.timeout(60), api.watch(config_maps, query, timeout_seconds=2) as events:
        assert [event["type"] async for event in events if event["type"] != "BOOKMARK"] == expected


async def watch_to_the_end(
    api: api_client.ApiClient, path: str, query: api_client.Query, *, then: Callable[[], None]
) -> None:
    async with api.watch(path, query, timeout_seconds=60) as events:
        then()
        async for _ in events:
            pass


async def test_a_watch_from_an_expired_version_raises_gone(api: api_client.ApiClient, widgets: str) -> None:
    with pytest.raises(api_errors.Gone, match="too old resource version"):
        await watch_to_the_end(api, widgets, {"resourceVersion": "1"}, then=lambda: None)


async def test_gets_are_retried_on_broken_connections_and_writes_fail(
    api_server: access.Access, tmp_path: Path
) -> None:
    async with tcp_proxy.before(api_server.server) as proxy:
        kubeconfig = tcp_proxy.kubeconfig_through(api_server.kubeconfig, proxy.port, tmp_path / "kubeconfig")
        async with api_client.connect(kubeconfig) as api:
            for _ in range(3):
                await api.get("/version")
                proxy.cut()
            proxy.refuse()
            before = proxy.connections
            with pytest.raises(api_errors.Unavailable, match="GET /version: "):
                await api.get("/version")
            assert proxy.connections - before >= api_client.GET_TRIES
            before = proxy.connections
            with pytest.raises(api_errors.Unavailable, match="POST /api/v1/namespaces: "):
                await api.create("/api/v1/namespaces", {})
            assert proxy.connections == before + 1


async def test_a_broken_watch_raises_unavailable(api_server: access.Access, tmp_path: Path) -> None:
    async with tcp_proxy.before(api_server.server) as proxy:
        kubeconfig = tcp_proxy.kubeconfig_through(api_server.kubeconfig, proxy.port, tmp_path / "kubeconfig")
        async with api_client.connect(kubeconfig) as api:
            with pytest.raises(api_errors.Unavailable, match="GET /api/v1/pods: "):
                await watch_to_the_end(api, "/api/v1/pods", {}, then=proxy.cut)


async def test_a_silent_api_server_raises_unavailable_after_the_timeout(
    api_server: access.Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        tcp_proxy.before(api_server.server) as proxy,
        api_client.connect(
            tcp_proxy.kubeconfig_through(api_server.kubeconfig, proxy.port, tmp_path / "kubeconfig")
        ) as api,
    ):
        await api.get("/version")
        monkeypatch.setattr(api_client, "CALL_SECONDS", 0.3)
        proxy.hold()
        with pytest.raises(api_errors.Unavailable, match="did not answer in time"):
            await api.create("/api/v1/namespaces", {})


async def test_a_replaced_token_is_used_by_the_next_call(
    api_server: access.Access, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpushare.cluster.api_connection.REFUSED_REREAD_SECONDS", 0.0)
    good = api_server.kubectl("create", "token", "default", f"--namespace={namespace}").strip()
    token = tmp_path / "token"
    token.write_text("expired")
    async with tcp_proxy.before(api_server.server) as proxy:
        kubeconfig = tcp_proxy.kubeconfig_through(
            api_server.kubeconfig, proxy.port, tmp_path / "kubeconfig", tokenFile=str(token)
        )
        async with api_client.connect(kubeconfig) as api:
            with pytest.raises(api_errors.Unauthorized):
                await api.get("/version")
            token.write_text(good)
            assert "gitVersion" in await api.get("/version")


async def test_the_mounted_service_account_authenticates_to_the_api_server(
    api_server: access.Access, namespace: str, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(api_server.kubectl("create", "token", "default", f"--namespace={namespace}"))
    (tmp_path / "ca.crt").write_bytes(api_server.ca_file.read_bytes())
    address = parse.urlsplit(api_server.server)
    service = {"KUBERNETES_SERVICE_HOST": str(address.hostname), "KUBERNETES_SERVICE_PORT": str(address.port or 443)}
    way = await api_connection.find(None, environment=service, service_account=tmp_path)
    opened = transport.Transport(way, user_agent="gpushare-test")
    try:
        assert "gitVersion" in await api_client.ApiClient(opened).get("/version")
    finally:
        await opened.close()


async def test_time_follows_the_clock_of_the_api_server(
    api_server: access.Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() - 3600.0)
    async with api_client.connect(str(api_server.kubeconfig)) as api:
        assert right() - api.time() > 3000.0
        await api.get("/version")
        assert abs(right() - api.time()) < 300.0


async def test_the_token_comes_from_the_exec_plugin_of_the_kubeconfig(
    api_server: access.Access, namespace: str, tmp_path: Path
) -> None:
    token = api_server.kubectl("create", "token", "default", f"--namespace={namespace}").strip()
    version = "client.authentication.k8s.io/v1"
    answer = tmp_path / "answer.json"
    answer.write_text(json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": {"token": token}}))
    plugin = {"apiVersion": version, "command": "cat", "args": [str(answer)], "interactiveMode": "Never"}
    async with tcp_proxy.before(api_server.server) as proxy:
        kubeconfig = tcp_proxy.kubeconfig_through(
            api_server.kubeconfig, proxy.port, tmp_path / "kubeconfig", exec=plugin
        )
        async with api_client.connect(kubeconfig) as api:
            review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
            who = await api.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
    assert who["status"]["userInfo"]["username"] == f"system:serviceaccount:{namespace}:default"
