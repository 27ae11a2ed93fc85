"""For each alert, series with which it fires and series with which it does not, in promtool's notation.

A value such as `0x60` is 0 for an hour with a sample a minute; `1+2x60` grows by 2 a minute; `_` is a missing sample.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

Series = Mapping[str, str]

WEBHOOK = 'job="gpushare-webhook",instance='
GPU = 'node="gpu-1",gpu="GPU-a",index="0",model="A100"'
OTHER_GPU = 'node="gpu-1",gpu="GPU-b",index="1",model="A100"'
SHARE = 'node="gpu-1",namespace="ml",pod="trainer",containers="main",gpu="GPU-a"'


def condition(kind: str, status: str, reason: str) -> str:
    return f'gpushare_node_condition{{node="gpu-1",condition="{kind}",status="{status}",reason="{reason}"}}'


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """The number of alerts that fire at minute `at` with the first series. With each other series none fires."""

    fires: Series
    quiet: tuple[Series, ...]
    at: int = 90
    count: int = 1


def of(name: str, labels: str = "") -> str:
    return f"{name}{{{labels}}}" if labels else name


LONG = "x120"
CASES: dict[str, Case] = {
    "GpushareWebhookDown": Case(
        {of("up", WEBHOOK + '"a"'): f"0{LONG}", of("up", WEBHOOK + '"b"'): f"0{LONG}"},
        ({of("up", WEBHOOK + '"a"'): f"0{LONG}", of("up", WEBHOOK + '"b"'): f"1{LONG}"},),
    ),
    "GpushareWebhookReplicaDown": Case(
        {of("up", WEBHOOK + '"a"'): f"0{LONG}", of("up", WEBHOOK + '"b"'): f"1{LONG}"},
        (
            {of("up", WEBHOOK + '"a"'): f"1{LONG}", of("up", WEBHOOK + '"b"'): f"1{LONG}"},
            # A replica is replaced.
            {of("up", WEBHOOK + '"a"'): "1x85 0x5 1x30", of("up", WEBHOOK + '"b"'): f"1{LONG}"},
        ),
    ),
    "GpushareReviewsFail": Case(
        {
            'gpushare_webhook_reviews_total{outcome="error",instance="a"}': f"0+1{LONG}",
            'gpushare_webhook_reviews_total{outcome="unready",instance="b"}': f"5+1{LONG}",
        },
        (
            {
                'gpushare_webhook_reviews_total{outcome="error"}': f"5{LONG}",
                'gpushare_webhook_reviews_total{outcome="placed"}': f"0+9{LONG}",
                'gpushare_webhook_reviews_total{outcome="denied"}': f"0+9{LONG}",
            },
        ),
        count=2,
    ),
    "GpushareWebhookSlow": Case(
        {
            'gpushare_webhook_review_duration_seconds_bucket{le="2.0"}': f"0{LONG}",
            'gpushare_webhook_review_duration_seconds_bucket{le="5.0"}': f"0+60{LONG}",
            'gpushare_webhook_review_duration_seconds_bucket{le="+Inf"}': f"0+60{LONG}",
        },
        (
            {
                'gpushare_webhook_review_duration_seconds_bucket{le="0.1"}': f"0+60{LONG}",
                'gpushare_webhook_review_duration_seconds_bucket{le="5.0"}': f"0+60{LONG}",
                'gpushare_webhook_review_duration_seconds_bucket{le="+Inf"}': f"0+60{LONG}",
            },
            # Without requests the ratio is undefined, which must not fire.
            {
                'gpushare_webhook_review_duration_seconds_bucket{le="0.1"}': f"7{LONG}",
                'gpushare_webhook_review_duration_seconds_bucket{le="+Inf"}': f"7{LONG}",
            },
        ),
    ),
    "GpushareLedgerWritesFail": Case(
        {'gpushare_webhook_ledger_writes_total{result="failed"}': f"0+1{LONG}"},
        (
            {
                'gpushare_webhook_ledger_writes_total{result="failed"}': f"3{LONG}",
                'gpushare_webhook_ledger_writes_total{result="conflict"}': f"0+9{LONG}",
            },
        ),
    ),
    "GpushareCertificateExpiring": Case(
        # promtool's clock starts at 0; in the 90th minute it is 5400.
        {
            'gpushare_webhook_certificate_expiry_timestamp_seconds{instance="a"}': f"90000{LONG}",
            'gpushare_webhook_certificate_expiry_timestamp_seconds{instance="b"}': f"9000000{LONG}",
        },
        (
            {'gpushare_webhook_certificate_expiry_timestamp_seconds{instance="a"}': f"100000{LONG}"},
            # A replica that has just started has no sample.
            {'gpushare_webhook_certificate_expiry_timestamp_seconds{instance="a"}': "100000x85 0x3 9000000x30"},
        ),
    ),
    "GpusharePlacerMissing": Case(
        {'gpushare_placer_leads{instance="a"}': f"0{LONG}", 'gpushare_placer_leads{instance="b"}': f"0{LONG}"},
        (
            {'gpushare_placer_leads{instance="a"}': f"0{LONG}", 'gpushare_placer_leads{instance="b"}': f"1{LONG}"},
            # During an election.
            {'gpushare_placer_leads{instance="a"}': "1x88 0 1x30"},
        ),
    ),
    "GpushareLedgerProblem": Case(
        {
            'gpushare_placer_ledger_problems{instance="a"}': f"2{LONG}",
            'gpushare_placer_ledger_problems{instance="b"}': f"0{LONG}",
        },
        ({'gpushare_placer_ledger_problems{instance="a"}': f"0{LONG}"},),
    ),
    "GpushareLedgerDrift": Case(
        {'gpushare_placer_allocations_total{change="adopted"}': "0x80 4x40"},
        (
            {
                'gpushare_placer_allocations_total{change="adopted"}': f"4{LONG}",
                'gpushare_placer_allocations_total{change="released"}': f"0+1{LONG}",
            },
        ),
    ),
    "GpushareOverCommitted": Case(
        {
            of("gpushare_gpu_allocated_compute_ratio", GPU): f"1.25{LONG}",
            of("gpushare_gpu_allocated_compute_ratio", OTHER_GPU): f"0.5{LONG}",
            of("gpushare_gpu_allocated_memory_bytes", OTHER_GPU): f"90{LONG}",
            of("gpushare_gpu_memory_bytes", OTHER_GPU): f"80{LONG}",
        },
        (
            {
                of("gpushare_gpu_allocated_compute_ratio", GPU): f"1{LONG}",
                of("gpushare_gpu_allocated_memory_bytes", GPU): f"80{LONG}",
                of("gpushare_gpu_memory_bytes", GPU): f"80{LONG}",
            },
        ),
        count=2,
    ),
    "GpusharePodWaitsLong": Case(
        {
            'gpushare_placer_longest_wait_seconds{instance="a"}': f"0+60{LONG}",
            'gpushare_placer_longest_wait_seconds{instance="b"}': f"0{LONG}",
        },
        ({'gpushare_placer_longest_wait_seconds{instance="a"}': f"600{LONG}"},),
    ),
    "GpushareQueueGrows": Case(
        {
            'gpushare_placer_gated_pods{instance="a"}': f"0+1{LONG}",
            'gpushare_placer_gated_pods{instance="b"}': f"0{LONG}",
        },
        (
            {'gpushare_placer_gated_pods{instance="a"}': f"500{LONG}"},
            {'gpushare_placer_gated_pods{instance="a"}': f"500-2{LONG}"},
            # Another replica becomes the leader.
            {
                'gpushare_placer_gated_pods{instance="a"}': "90x60 0x60",
                'gpushare_placer_gated_pods{instance="b"}': "0x60 90x60",
            },
        ),
    ),
    "GpusharePodsStuck": Case(
        {'gpushare_placer_stuck_pods{instance="a"}': f"1{LONG}"},
        ({'gpushare_placer_stuck_pods{instance="a"}': "0x85 1x3 0x30"},),
    ),
    "GpushareResizesWait": Case(
        {'gpushare_placer_resizes_waiting{instance="a"}': f"1{LONG}"},
        ({'gpushare_placer_resizes_waiting{instance="a"}': "0x60 1x60"},),
    ),
    "GpushareGpuUnhealthyInUse": Case(
        {
            of("gpushare_gpu_healthy", GPU): f"0{LONG}",
            of("gpushare_gpu_allocated_memory_bytes", GPU): f"8{LONG}",
        },
        (
            {
                of("gpushare_gpu_healthy", GPU): f"0{LONG}",
                of("gpushare_gpu_allocated_memory_bytes", GPU): f"0{LONG}",
                of("gpushare_gpu_healthy", OTHER_GPU): f"1{LONG}",
                of("gpushare_gpu_allocated_memory_bytes", OTHER_GPU): f"8{LONG}",
            },
        ),
    ),
    "GpushareGpuUnhealthy": Case(
        {
            of("gpushare_gpu_healthy", GPU): f"0{LONG}",
            of("gpushare_gpu_allocated_memory_bytes", GPU): f"0{LONG}",
        },
        (
            {
                of("gpushare_gpu_healthy", GPU): f"0{LONG}",
                of("gpushare_gpu_allocated_memory_bytes", GPU): f"8{LONG}",
            },
            {of("gpushare_gpu_healthy", GPU): f"1{LONG}"},
        ),
    ),
    "GpushareAgentDown": Case(
        {'up{job="gpushare-agent",node="gpu-1"}': f"0{LONG}", 'up{job="gpushare-agent",node="gpu-2"}': f"1{LONG}"},
        ({'up{job="gpushare-agent",node="gpu-1"}': "1x87 0x2 1x30"},),
    ),
    "GpushareAgentMissing": Case(
        {
            'gpushare_placer_node_gpus{node="gpu-1",instance="a"}': f"4{LONG}",
            'gpushare_placer_node_gpus{node="gpu-2",instance="a"}': f"4{LONG}",
            'gpushare_audit_complete{node="gpu-2"}': f"1{LONG}",
        },
        (
            {
                'gpushare_placer_node_gpus{node="gpu-1",instance="a"}': f"4{LONG}",
                'gpushare_audit_complete{node="gpu-1"}': f"0{LONG}",
            },
            # The alert above reports the missing replica.
            {
                'gpushare_placer_node_gpus{node="gpu-1",instance="a"}': f"4{LONG}",
                'up{job="gpushare-agent",node="gpu-1"}': f"0{LONG}",
            },
            {'gpushare_placer_node_gpus{node="gpu-1",instance="a"}': f"0{LONG}"},
        ),
    ),
    "GpushareConfigRefused": Case(
        {condition("ConfigValid", "False", "Refused"): f"1{LONG}"},
        ({condition("ConfigValid", "True", "InForce"): f"1{LONG}"},),
    ),
    "GpushareConfigPending": Case(
        {condition("ConfigPending", "True", "GpusInUse"): f"1{LONG}"},
        (
            {condition("ConfigPending", "False", "Done"): f"1{LONG}"},
            {condition("ConfigPending", "True", "Changing"): "_x80 1x5 _x30"},
        ),
    ),
    "GpushareRunsUnlimited": Case(
        {of("gpushare_gpu_unlimited_processes", GPU): f"1{LONG}"},
        ({of("gpushare_gpu_unlimited_processes", GPU): f"0{LONG}"},),
    ),
    "GpushareForeignProcess": Case(
        {of("gpushare_gpu_foreign_processes", GPU): f"1{LONG}"},
        ({of("gpushare_gpu_foreign_processes", GPU): f"0{LONG}"},),
    ),
    "GpushareLimitsNotInForce": Case(
        {condition("LimitsInForce", "False", "LimitsDiffer"): f"1{LONG}"},
        (
            {condition("LimitsInForce", "True", "Audited"): f"1{LONG}"},
            {condition("LimitsInForce", "Unknown", "AuditIncomplete"): f"1{LONG}"},
            {
                condition("LimitsInForce", "False", "ProcessUnlimited"): f"1{LONG}",
                of("gpushare_gpu_unlimited_processes", GPU): f"1{LONG}",
                of("gpushare_gpu_unlimited_processes", OTHER_GPU): f"0{LONG}",
            },
            {
                condition("LimitsInForce", "False", "ShareBeyondLimit"): f"1{LONG}",
                of("gpushare_share_beyond_limit_compute_ratio", SHARE): f"0.5{LONG}",
            },
        ),
    ),
    "GpushareAuditIncomplete": Case(
        {'gpushare_audit_complete{node="gpu-1"}': f"0{LONG}"},
        ({'gpushare_audit_complete{node="gpu-1"}': "1x87 0x2 1x30"},),
    ),
    "GpushareMemoryBeyondLimit": Case(
        {of("gpushare_share_beyond_limit_memory_bytes", SHARE): f"1048576{LONG}"},
        ({of("gpushare_share_beyond_limit_memory_bytes", SHARE): f"0{LONG}"},),
    ),
    "GpushareRunsBeyondLimit": Case(
        {of("gpushare_share_beyond_limit_compute_ratio", SHARE): f"0.5{LONG}"},
        ({of("gpushare_share_beyond_limit_compute_ratio", SHARE): f"0{LONG}"},),
    ),
    "GpushareKeepsGpu": Case(
        {of("gpushare_share_evictions_total", SHARE): f"0+1{LONG}"},
        ({of("gpushare_share_evictions_total", SHARE): f"3{LONG}"},),
    ),
    "GpushareConnectionsTurnedAway": Case(
        {'gpushare_arbiter_turned_away_total{instance="gpu-1"}': f"0+120{LONG}"},
        ({'gpushare_arbiter_turned_away_total{instance="gpu-1"}': f"0+30{LONG}"},),
    ),
    "GpushareShareUnused": Case(
        {of("gpushare_share_allocated_memory_bytes", SHARE): "8x480"},
        (
            {
                of("gpushare_share_allocated_memory_bytes", SHARE): "8x480",
                of("gpushare_share_limit_memory_bytes", SHARE): "8x480",
            },
            # With a process now and then.
            {
                of("gpushare_share_allocated_memory_bytes", SHARE): "8x480",
                of("gpushare_share_limit_memory_bytes", SHARE): "_x300 8x5 _x200",
            },
        ),
        at=420,
    ),
}
# For each recording rule, the value recorded from other series at some minute.
RECORDED: dict[str, tuple[Series, int, Mapping[str, float]]] = {
    "state:gpushare_placer_gpus:sum": (
        {
            'gpushare_placer_gpus{instance="a",model="A100",state="free"}': f"3{LONG}",
            'gpushare_placer_gpus{instance="b",model="A100",state="free"}': f"2{LONG}",  # that has just stopped leading
            'gpushare_placer_gpus{instance="a",model="H100",state="free"}': f"1{LONG}",
        },
        5,
        {'{__name__="state:gpushare_placer_gpus:sum", state="free"}': 4.0},
    ),
    "cluster:gpushare_allocated:ratio": (
        {
            'gpushare_placer_gpus{model="A100",state="allocated"}': f"3{LONG}",
            'gpushare_placer_gpus{model="A100",state="free"}': f"1{LONG}",
            'gpushare_placer_gpus{model="A100",state="other-mode"}': f"8{LONG}",
        },
        5,
        {'{__name__="cluster:gpushare_allocated:ratio"}': 0.75},
    ),
    "cluster:gpushare_stranded:ratio": (
        {
            'gpushare_placer_gpus{model="A100",state="allocated"}': f"2{LONG}",
            'gpushare_placer_gpus{model="A100",state="fragmented"}': f"0.5{LONG}",
            'gpushare_placer_gpus{model="A100",state="unhealthy"}': f"0.5{LONG}",
            'gpushare_placer_gpus{model="A100",state="cordoned"}': f"1{LONG}",
        },
        5,
        {'{__name__="cluster:gpushare_stranded:ratio"}': 0.5},
    ),
    "namespace:container_gpu_allocation:sum": (
        {
            f'container_gpu_allocation{{namespace="ml",pod="p{number}",container="main",node="gpu-1"}}': f"0.25{LONG}"
            for number in range(4)
        },
        5,
        {'{__name__="namespace:container_gpu_allocation:sum", namespace="ml"}': 1.0},
    ),
    "namespace:gpushare_gpu_hours:sum1h": (
        {
            # Half a GPU for two hours; and a whole one for the last 16 minutes, with its agent down for five of them.
            'container_gpu_allocation{namespace="ml",pod="p",container="main",node="gpu-1"}': f"0.5{LONG}",
            'container_gpu_allocation{namespace="web",pod="q",container="main",node="gpu-1"}': "_x105 1x4 stale _x4 1x9",
        },
        120,
        {
            '{__name__="namespace:gpushare_gpu_hours:sum1h", namespace="ml"}': 0.5,
            '{__name__="namespace:gpushare_gpu_hours:sum1h", namespace="web"}': 11 / 60,
        },
    ),
}
