"""Flags and environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare.policies import POLICIES
from webhook import webhook_settings
from webhook.controllers.demand.gang_demand import ATOMIC

ON = "--demand-resource=gpushare.io/gpu-percent"
NO_CLASS = f"write the class of a ProvisioningRequest, such as {ATOMIC}"


def test_by_default_it_serves_the_cluster_it_runs_in() -> None:
    made = webhook_settings.parse([], {})
    assert (made.port, made.probe_port, made.placer, made.kubeconfig) == (8443, 8081, True, None)
    assert made.names == (
        "gpushare-webhook.gpushare-system.svc",
        "gpushare-webhook.gpushare-system.svc.cluster.local",
    )


def test_flags_come_before_the_environment() -> None:
    environment = {"GPUSHARE_WEBHOOK_PORT": "1", "GPUSHARE_WEBHOOK_PLACER": "false", "GPUSHARE_WEBHOOK_NAMESPACE": "n"}
    made = webhook_settings.parse(["--port=2"], environment)
    assert (made.port, made.placer, made.namespace) == (2, False, "n")
    assert webhook_settings.parse(["--placer"], environment).placer
    assert webhook_settings.parse([], {"GPUSHARE_WEBHOOK_PREEMPTION": "true"}).preemption
    with pytest.raises(webhook_settings.UsageError, match='PREEMPTION "on" is neither "true" nor "false"'):
        webhook_settings.parse([], {"GPUSHARE_WEBHOOK_PREEMPTION": "on"})


def test_url_names_the_host_of_the_certificate() -> None:
    assert webhook_settings.parse(["--url=https://10.0.0.1:8443/mutate"], {}).names == ("10.0.0.1",)


def test_a_cluster_in_memory_takes_any_probe_port() -> None:
    made = webhook_settings.parse(["--from=cluster.yaml"], {})
    assert (made.from_file, made.probe_port) == (Path("cluster.yaml"), 0)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--port=x"], '--port "x" is not a port'),
        (["--port=²"], '--port "²" is not a port'),
        (["--probe-port=70000"], '--probe-port "70000" is not a port'),
        (["--policy=best"], f'--policy "best" is unknown: write one of {", ".join(POLICIES)}'),
        (
            ["--default-isolation=none"],
            '--default-isolation "none" cannot be the default: write one of arbiter, mps, auto',
        ),
        (
            ["--demand-resource=x/y"],
            '--demand-resource "x/y" is unknown: write gpushare.io/gpu-percent or nvidia.com/gpu',
        ),
        (
            [ON, "--demand-provisioning-class=Not_A_Name"],
            f'--demand-provisioning-class "Not_A_Name" is not a name: {NO_CLASS}',
        ),
        (
            [ON, "--demand-provisioning-class=check-capacity.autoscaling.x-k8s.io"],
            f'class "check-capacity.autoscaling.x-k8s.io" starts no nodes: {NO_CLASS}',
        ),
        ([f"--demand-provisioning-class={ATOMIC}"], "asks for nothing without --demand-resource: add that flag"),
        (["--preemption", "--from=f"], "--preemption cannot be combined with --from"),
        (["--log-level=loud"], '--log-level "loud" is unknown'),
        (["--url=http://h/mutate"], "is not an address of this webhook: write https://HOST:PORT/mutate"),
        (["--url=https://h/"], "is not an address of this webhook"),
        (["--state=s"], "--state requires --from"),
        (["--from=f", "--kubeconfig=k"], "cannot be combined with --kubeconfig or --url"),
        (
            ["--certificate-files=d", "--url=https://h/mutate"],
            "--certificate-files d cannot be combined with --url or --from",
        ),
        (["--certificate-files=d", "--from=f"], "--certificate-files d cannot be combined with --url or --from"),
        (["--reservation-seconds=0"], '--reservation-seconds "0" is not a duration'),
        (["--nonsense"], "--nonsense is unknown: see --help for the flags"),
    ],
)
def test_unreadable_file_is_named(arguments: list[str], says: str) -> None:
    with pytest.raises(webhook_settings.UsageError) as raised:
        webhook_settings.parse(arguments, {})
    assert says in str(raised.value)
