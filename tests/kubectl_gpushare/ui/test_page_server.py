"""The page's server: loopback, a token, this host's name, no other origin, nothing to write; and its changes."""

from __future__ import annotations

import dataclasses
import http.client
import json
import re
from collections.abc import Iterator

import pytest

from kubectl_gpushare import options, plugin_errors
from kubectl_gpushare.source.files import Files
from kubectl_gpushare.ui import saved_page
from kubectl_gpushare.ui.page_answers import PageAnswers
from kubectl_gpushare.ui.page_model import Scene
from kubectl_gpushare.ui.page_server import PageServer
from kubectl_gpushare.ui.page_state import PageState
from tests.kubectl_gpushare import sample

SECONDS = 10.0


@dataclasses.dataclass
class Page:
    server: PageServer
    state: PageState
    scene: Scene

    @property
    def token(self) -> str:
        return self.server.address.partition("token=")[2]

    def get(self, path: str, *, method: str = "GET", **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=SECONDS)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers={"Host": f"127.0.0.1:{self.server.port}", **given})
        response = connection.getresponse()
        try:
            return response, response.read()
        finally:
            connection.close()

    def with_token(self, path: str) -> tuple[http.client.HTTPResponse, bytes]:
        return self.get(f"{path}{'&' if '?' in path else '?'}token={self.token}")


@pytest.fixture
def page(saved: object) -> Iterator[Page]:
    chosen = options.Options(files=(str(saved),))
    origin = Files(chosen.files)
    scene = Scene(sample.snapshot(), sample.NOW)
    state = PageState()
    state.publish(scene)
    server = PageServer(state, PageAnswers(origin, chosen, lambda: scene))
    yield Page(server, state, scene)
    state.close()
    server.close()


def test_the_model_and_answers_need_the_token(page: Page) -> None:
    for path in ("/cluster", "/changes?after=0", "/why?pod=ml/waiting", "/nothing"):
        response, body = page.get(path)
        assert response.status == 403
        assert b"token" in body
        assert page.get(f"{path}{'&' if '?' in path else '?'}token=wrong")[0].status == 403
    response, body = page.get("/")  # a reload: its script has the token
    assert response.status == 200
    assert b'id="saved">null<' in body  # nothing of the cluster is in it
    response, body = page.with_token("/cluster")
    assert json.loads(body)["totals"]["gpus"] == 12
    assert page.with_token("/nothing")[0].status == 404


def test_another_host_name_is_rejected_against_rebinding(page: Page) -> None:
    assert page.get("/", Host="evil.example")[0].status == 403
    assert page.get("/cluster?" + "a=b&" * 50, Host="evil.example")[0].status == 403
    assert page.get("/cluster?" + "a=b&" * 50)[0].status == 403  # too many parameters
    for host in ("evil.example", f"evil.example:{page.server.port}", "127.0.0.1", ""):
        assert page.get(f"/cluster?token={page.token}", Host=host)[0].status == 403
    assert page.get(f"/cluster?token={page.token}", Host=f"localhost:{page.server.port}")[0].status == 200


def test_another_origin_is_rejected(page: Page) -> None:
    path = f"/cluster?token={page.token}"
    assert page.get(path, Origin="https://evil.example")[0].status == 403
    assert page.get(path, Origin="null")[0].status == 403
    assert page.get(path, Origin=f"http://127.0.0.1:{page.server.port}")[0].status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_nothing_can_be_written(page: Page, method: str) -> None:
    assert page.get(f"/cluster?token={page.token}", method=method)[0].status == 501


def test_the_page_may_load_nothing_from_elsewhere(page: Page) -> None:
    response, body = page.with_token("/")
    policy = str(response.getheader("Content-Security-Policy"))
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert response.getheader("Referrer-Policy") == "no-referrer"
    assert response.getheader("Cache-Control") == "no-store"
    text = body.decode()
    assert not re.findall(r'(?:src|href)="(?!data:)[^"]*"', text)
    assert not re.findall(r"https?://(?!www\.w3\.org/)[^\s\"'`]+", text)
    assert not re.findall(r"url\((?!#)", text)


def test_answers_come_with_errors_as_sentences(page: Page) -> None:
    response, body = page.with_token("/fit?request=0.5&memory=16Gi")
    assert (response.status, json.loads(body)["best"]) == (200, ["gpu-1/3"])
    response, body = page.with_token("/fit?request=many")
    assert response.status == 200  # the browser would log any other as an error of the page
    assert "many" in json.loads(body)["error"]


def events(page: Page, after: int) -> Iterator[str]:
    connection = http.client.HTTPConnection("127.0.0.1", page.server.port, timeout=SECONDS)
    connection.request("GET", f"/changes?after={after}&token={page.token}")
    response = connection.getresponse()
    while line := response.readline().decode():
        if line.strip():
            yield line.rstrip("\n")
    connection.close()


def test_changes_are_streamed_to_each_reader(page: Page) -> None:
    first, *others = sample.nodes()
    fewer = dataclasses.replace(first, allocations=first.allocations[1:])
    snapshot = dataclasses.replace(page.scene.snapshot, nodes=(fewer, *others))
    readers = [events(page, 1), events(page, 1)]
    page.state.publish(dataclasses.replace(page.scene, snapshot=snapshot, at=sample.NOW + 10))
    for reader in readers:
        change = json.loads(next(reader).removeprefix("data: "))
        assert change["version"] == 2
        assert [item["name"] for item in change["changed"]] == ["gpu-1"]
        assert [each["kind"] for each in change["changes"]] == ["Left"]
    page.state.publish(dataclasses.replace(page.scene, trouble="the API server cannot be reached", at=sample.NOW + 20))
    for reader in readers:
        assert json.loads(next(reader).removeprefix("data: "))["trouble"] == "the API server cannot be reached"


def test_a_reader_that_is_too_far_behind_reads_the_whole_again(page: Page) -> None:
    for number in range(250):
        page.state.publish(dataclasses.replace(page.scene, at=sample.NOW + number))
    assert next(events(page, 1)) == "event: reload"
    assert next(events(page, 999)) == "event: reload"  # of another run


def test_streams_end_with_the_plugin(page: Page) -> None:
    reader = events(page, 1)
    page.state.close()
    assert [line for line in reader if line.startswith("data")] == []


def test_a_port_in_use_is_an_error_with_a_remedy(page: Page) -> None:
    with pytest.raises(
        plugin_errors.PluginError, match=rf"port {page.server.port} cannot be used \(Address already in use\)"
    ):
        PageServer(page.state, PageAnswers(Files, options.Options(), lambda: page.scene), port=page.server.port)  # type: ignore[arg-type]


def test_the_policy_is_that_of_the_built_page() -> None:
    assert "script-src 'sha256-" in saved_page.policy(saved_page.page())
