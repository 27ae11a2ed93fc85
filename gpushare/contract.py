"""Every name and number that crosses a process boundary, defined once.

Each entry names its writer and its readers. `interposer/base/contract.h` mirrors the part that the C library needs; a
test compares the two.
"""

from __future__ import annotations

from typing import Final

PREFIX: Final = "gpushare.io/"

# --- Annotations a user writes on a pod; read by the webhook --------------------------------------------------------
REQUEST: Final = "gpushare.io/request"
LIMIT: Final = "gpushare.io/limit"
MEMORY: Final = "gpushare.io/memory"
MEMORY_LIMIT: Final = "gpushare.io/memory-limit"
GPUS: Final = "gpushare.io/gpus"
CONTAINER: Final = "gpushare.io/container"
MODEL: Final = "gpushare.io/model"
MIN_MEMORY: Final = "gpushare.io/min-memory"
MIN_COMPUTE_CAPABILITY: Final = "gpushare.io/min-compute-capability"
UUID: Final = "gpushare.io/uuid"
NOT_UUID: Final = "gpushare.io/not-uuid"
AFFINITY: Final = "gpushare.io/affinity"
ANTI_AFFINITY: Final = "gpushare.io/anti-affinity"
EXCLUSION: Final = "gpushare.io/exclusion"
POLICY: Final = "gpushare.io/policy"
ISOLATION: Final = "gpushare.io/isolation"
GROUP: Final = "gpushare.io/group"
GROUP_SIZE: Final = "gpushare.io/group-size"
LATENCY: Final = "gpushare.io/latency"
NO_EVICT: Final = "gpushare.io/no-evict"  # read by the plugin too: `defrag` does not move such a pod

# The keys that may also be written for one container, as `gpushare.io/request.NAME`.
PER_CONTAINER_KEYS: Final = (REQUEST, LIMIT, MEMORY, MEMORY_LIMIT, GPUS)

# The keys of these that may change on a placed pod (also for one container); the policy has the same list.
RESIZABLE_KEYS: Final = (REQUEST, LIMIT, MEMORY, MEMORY_LIMIT)

# A pod is ours if it has one of these keys, or one of them followed by `.NAME`. The webhook's matchConditions and the
# ValidatingAdmissionPolicy state the same in CEL; a test compares them.
SHARE_KEYS: Final = (REQUEST, LIMIT, MEMORY, MEMORY_LIMIT, GPUS)
REQUEST_KEYS: Final = (
    *SHARE_KEYS,
    CONTAINER,
    MODEL,
    MIN_MEMORY,
    MIN_COMPUTE_CAPABILITY,
    UUID,
    NOT_UUID,
    AFFINITY,
    ANTI_AFFINITY,
    EXCLUSION,
    POLICY,
    ISOLATION,
    GROUP,
    GROUP_SIZE,
    LATENCY,
    NO_EVICT,
)

# Annotations of autoscalers, which the webhook adds to a pod with NO_EVICT unless it has them: the node stays as long
# as the pod (Cluster Autoscaler's FAQ; Karpenter, pkg/apis/v1/labels.go).
AUTOSCALERS_KEEP: Final = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}

# --- Annotations we write; stripped from what a user sends, protected on update -------------------------------------
ALLOCATION: Final = "gpushare.io/allocation"  # id of the pod's allocation in the ledger; read by placer, agent, plugin
NODE: Final = "gpushare.io/node"  # the pod's node
GPU_UUIDS: Final = "gpushare.io/gpu-uuids"  # comma list; `.CONTAINER` appended if containers differ
REASON: Final = "gpushare.io/reason"  # why the pod is gated, or not resized yet: the refusal's sentence
# The shares of a pod whose annotations request other amounts, as JSON as in the ledger, in case the ledger is lost.
HELD: Final = "gpushare.io/held"
# The hostname in the pod's own node selector, if it had one: the webhook pins every placed pod by that selector, but a
# recreated pod must not be pinned. Read by the plugin.
OWN_HOSTNAME: Final = "gpushare.io/hostname"
# The isolation of a placed pod's shares if it is not `arbiter`: for people, and in case the ledger is lost. A pod that
# asks for `auto` gets what there is room for, so it cannot be computed again.
ISOLATION_GIVEN: Final = "gpushare.io/isolation-given"
# The MIG device of a pod with the isolation `mig`, as its profile and first memory slice: for people, and in case the
# ledger is lost.
MIG_DEVICE: Final = "gpushare.io/mig-device"
RESULT_KEYS: Final = (ALLOCATION, NODE, GPU_UUIDS, REASON, HELD, OWN_HOSTNAME, ISOLATION_GIVEN, MIG_DEVICE)

SCHEDULING_GATE: Final = "gpushare.io/placement"  # set by the webhook on a pod that does not fit, removed by the placer

# --- Labels ---------------------------------------------------------------------------------------------------------
# On a GPUNode, followed by the UUID of a GPU that a `defrag --apply` keeps cordoned for the time being: by which one,
# and until when at most, as `1f2e3d4c.20260301T120000Z`.
DEFRAG_LABEL_PREFIX: Final = "defrag.gpushare.io/"
# Annotation of a GPUNode, followed by the UUID of a GPU that was cordoned by hand: a CordonNote as JSON.
CORDON_ANNOTATION_PREFIX: Final = "cordon.gpushare.io/"
# Written by the webhook on every pod with a share, and protected like a result, so informers can select them.
SHARE_LABEL: Final = "gpushare.io/share"
SHARE_LABEL_VALUE: Final = "true"
NODE_CONFIG_LABEL: Final = "gpushare.io/config"  # set by an admin on a node; read by the agent
NVIDIA_CONFIG_LABEL: Final = "nvidia.com/device-plugin.config"  # the same, in NVIDIA's plugin
# Annotation of a Node: the labels that the agent has written, a comma list of keys; it leaves all others alone.
OWN_LABELS: Final = "gpushare.io/labels"
HOSTNAME_LABEL: Final = "kubernetes.io/hostname"  # pinned by the webhook as nodeSelector

# On a Node, by an admin: how many of its GPUs, which another device plugin gives, may be borrowed: `4`, or `1-4`.
BORROW_LABEL: Final = "gpushare.io/borrow"
# On a placeholder, by the placer: its GPU has shares. A PodDisruptionBudget of the component `borrow` selects it.
IN_USE_LABEL: Final = "gpushare.io/in-use"
IN_USE_VALUE: Final = "true"
# On a demand pod, by the placer: a checksum of the GPUs and of the nodes that it stands for.
DEMAND_LABEL: Final = "gpushare.io/demand"
# Taints with which an autoscaler starts a node, so that no pod comes before its GPUNode: the agent removes them. By the
# prefix of the second, Cluster Autoscaler knows that a new node will lose it.
STARTUP_TAINTS: Final = (
    "gpushare.io/agent-not-ready",
    "startup-taint.cluster-autoscaler.kubernetes.io/gpushare-agent-not-ready",
)

# --- Extended resources: written into pods by the webhook; counted by scheduler, kubelet and ResourceQuota ----------
RESOURCE_PERCENT: Final = "gpushare.io/gpu-percent"  # guaranteed compute; 100 is one GPU; devices of the agent's plugin
RESOURCE_MEMORY: Final = "gpushare.io/gpu-memory"  # bytes; capacity patched into the Node's status by the agent
# One per GPU share without guaranteed compute (`request` 0). The kubelet calls Allocate only for a positive amount of a
# plugin's resource, and Allocate mounts the library: without it such a container would run unlimited.
RESOURCE_IDLE: Final = "gpushare.io/gpu-idle"
IDLE_SHARES_PER_GPU: Final = 64

# --- GPUNode --------------------------------------------------------------------------------------------------------
GROUP_NAME: Final = "gpushare.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = "gpushare.io/v1alpha1"
GPUNODE_KIND: Final = "GPUNode"
GPUNODE_PLURAL: Final = "gpunodes"
GPUNODE_PATH: Final = "/apis/gpushare.io/v1alpha1/gpunodes"

# A backfill reservation, which keeps a GPU's free capacity for a gated pod, is an allocation too; its ID begins with
# this, and IDs of other allocations never do. Written by the placer; recognised by webhook, agent and plugin.
BACKFILL_PREFIX: Final = "hold-"
PREEMPTION_PREFIX: Final = "hold-preempt-"  # a backfill reservation for which pods of lower priority are evicted
# The owner of a GPU that another device plugin gives, while no placeholder holds it; otherwise it is that pod's UID.
OTHER_OWNER: Final = "other"
# The next number that requests in whole percent are for is 50, and a GPU takes at most 48 MPS clients.
MAX_SM_PARTITIONS: Final = 33

# --- Identities and places in a cluster ------------------------------------------------------------------------------
SYSTEM_NAMESPACE: Final = "gpushare-system"
DEMAND_NAMESPACE: Final = "gpushare-demand"  # of the demand pods, and of nothing else
DEMAND_TEMPLATE: Final = "gpushare-demand"  # the PodTemplate there that they are made from
BORROW_NAMESPACE: Final = "gpushare-borrow"  # of the placeholders, and of nothing else
BORROW_TEMPLATE: Final = "gpushare-borrow"  # the PodTemplate there that they are made from
BORROWED_RESOURCE: Final = "nvidia.com/gpu"  # what a placeholder asks for, of the other device plugin
WEBHOOK_SERVICE_ACCOUNT: Final = "gpushare-webhook"
AGENT_SERVICE_ACCOUNT: Final = "gpushare-agent"
# The API server does not send the webhook pods of these namespaces, nor pods with this annotation, which the kubelet
# writes on the mirror pod of a static pod: they never have a share. The manifests state the same.
EXEMPT_NAMESPACES: Final = ("kube-system", SYSTEM_NAMESPACE)
MIRROR_ANNOTATION: Final = "kubernetes.io/config.mirror"
WEBHOOK_CONFIGURATION: Final = "gpushare"  # name of the MutatingWebhookConfiguration
WEBHOOK_NAME: Final = "pods.gpushare.io"
WEBHOOK_PATH: Final = "/mutate"
# A label that an administrator writes on a Namespace, followed by the name of another sharer's syntax: the API server
# sends pods in that syntax to the webhook `NAME.syntaxes.gpushare.io` below `/mutate/NAME`, which translates them.
UNDERSTAND_PREFIX: Final = "gpushare.io/understand-"
UNDERSTAND_VALUE: Final = "true"
SYNTAX_WEBHOOK_SUFFIX: Final = ".syntaxes.gpushare.io"
# Annotations that an administrator writes on a Namespace, each followed by the stem of a pod's key, such as
# `max.gpushare.io/memory`: what shares of its pods get without that key, and the least and the most that they may have.
# Read by the webhook, the placer and the plugin.
DEFAULT_PREFIX: Final = "default.gpushare.io/"
MIN_PREFIX: Final = "min.gpushare.io/"
MAX_PREFIX: Final = "max.gpushare.io/"
REQUIRE_PREFIX: Final = "require.gpushare.io/"  # likewise: the only value that they may have, which is also the default
PLACEMENT_CONFIG_MAP: Final = "gpushare-placement"  # a PlacementProfile: written by the placer, read by the plugin
CONFIG_MAP: Final = "gpushare-config"  # one entry per configuration; written by an admin, read by the agents
CERTIFICATE_SECRET: Final = "gpushare-webhook-certificate"  # noqa: S105 - a name, no secret
# Annotation of that Secret, written by an administrator with any value: rotate the CA, in three steps that lose no
# review. The webhook removes it when it begins.
ROTATE: Final = "gpushare.io/rotate"
# Annotation of the ConfigMap of configurations, written by the chart: a checksum of each entry in its values.
WRITTEN_BY_HELM: Final = "gpushare.io/written-by-helm"
PLACER_LEASE: Final = "gpushare-placer"

# --- Reasons of Events; their notes are the sentences of refusals and errors ----------------------------------------
EVENT_GATED: Final = "Gated"  # on a pod: it waits, and why
EVENT_PLACED: Final = "Placed"  # on a pod: it was gated and now has a GPU
EVENT_GROUP_APART: Final = "GroupApart"  # on a pod: its group shares GPUs of several nodes
EVENT_EXPIRED: Final = "ReservationExpired"  # on a GPUNode: the pod never appeared
EVENT_ADOPTED: Final = "ShareFound"  # on a pod: the ledger had lost its share, and has it again
EVENT_LOST: Final = "ShareLost"  # on a pod: the ledger has lost its share, and there is no room for it
EVENT_UNWRITTEN: Final = "LedgerNotWritten"  # on a GPUNode: the API server does not store its changes
EVENT_LEDGER: Final = "LedgerProblem"  # on a GPUNode: an entry is invalid, or breaks the ledger's rules
EVENT_PLACEHOLDER_LOST: Final = "PlaceholderLost"  # on a GPUNode: a borrowed GPU has shares and no placeholder
EVENT_GPU_RECLAIMED: Final = "GpuReclaimed"  # on a GPUNode: a borrowed GPU with shares takes no new ones, and goes back
EVENT_AGENT_SILENT: Final = "AgentSilent"  # on a placeholder: its node's agent neither reports its GPU nor ends it
EVENT_PREEMPTED: Final = "Preempted"  # on a pod: it is evicted for a pod of higher priority
EVENT_PREEMPTING: Final = "Preempting"  # on a pod: others are evicted, and it takes their place
EVENT_STUCK: Final = "Stuck"  # on a pod: it was placed, but the scheduler cannot bind it there
EVENT_REPLACED: Final = "Replaced"  # on a pod that was stuck: it is evicted, so that its owner recreates it
EVENT_RESIZED: Final = "Resized"  # on a pod: its share now has the amounts of its annotations
EVENT_RESIZE_WAITS: Final = "ResizeWaits"  # on a pod: its share does not have them yet, and why
EVENT_CONFIG_INVALID: Final = "ConfigInvalid"  # on a GPUNode: the new configuration is invalid; the last one stays
EVENT_SET_ASIDE: Final = "GpuSetAside"  # on a GPUNode: a GPU differs from its configuration, so it gets no pods
EVENT_MIG_FAILED: Final = "MigDeviceFailed"  # on a GPUNode: a GPU cannot be partitioned as its shares need it
EVENT_MPS_DAEMON_ENDED: Final = "MpsDaemonEnded"  # on a GPUNode: an MPS daemon does not run, and is restarted
EVENT_MPS_CLIENT_KILLED: Final = "MpsClientKilled"  # on a GPUNode: other clients of that GPU may hang
EVENT_CONFIG_APPLIED: Final = "ConfigApplied"  # on a GPUNode: all its GPUs are as their configuration wants
EVENT_GPU_UNHEALTHY: Final = "GpuUnhealthy"  # on a GPUNode, and on each pod that uses the GPU
EVENT_GPU_HEALTHY: Final = "GpuHealthy"  # likewise: it can be used again
EVENT_UNLIMITED: Final = "RunsUnlimited"  # on a GPUNode and a pod: a process on a shared GPU runs without limits
EVENT_BEYOND: Final = "RunsBeyondLimit"  # likewise: a share uses a GPU for longer than its limit
EVENT_NOT_ENFORCED: Final = "MemoryNotEnforced"  # likewise: the driver does not keep a share's memory limit
EVENT_LIBRARY_REFUSED: Final = "LibraryRefused"  # likewise: the agent does not speak the pod's library's protocol
EVENT_NO_DEVICES: Final = "NoDevices"  # on a GPUNode and a pod: a container with a share runs without seeing a GPU

# --- Conditions of a GPUNode ------------------------------------------------------------------------------------------
CONDITION_READY: Final = "Ready"
CONDITION_CONFIG_VALID: Final = "ConfigValid"
CONDITION_CONFIG_PENDING: Final = "ConfigPending"
CONDITION_LIMITS_IN_FORCE: Final = "LimitsInForce"
CONDITION_DEVICES_INJECTED: Final = "DevicesInjected"
CONDITION_UNREGISTERED_DENIED: Final = "UnregisteredDenied"
REASON_NOTHING_IN_FORCE: Final = "NothingInForce"  # of ConfigValid: the node offers nothing
REASON_AGENT_STOPPED: Final = "AgentStopped"  # of Ready: the agent is stopping, and its successor does not serve yet
REASON_NOTHING_INJECTS: Final = "NothingInjects"  # of DevicesInjected: every new container is refused
WELL_WHEN_FALSE: Final = frozenset({CONDITION_CONFIG_PENDING})  # healthy when False; all others when True

# --- Devices, as container runtimes know them ----------------------------------------------------------------------
# The kind, by the Container Device Interface, of what a share container gets; written by the agent, read by runtimes.
CDI_SHARE_KIND: Final = "gpushare.io/share"

# --- The agent over HTTP --------------------------------------------------------------------------------------------
AUDIT_PATH: Final = "/audit"  # JSON: every process on the node's GPUs, and whether its limits hold; read by the plugin

# --- Environment of a share container -------------------------------------------------------------------------------
ENV_VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"  # written by the webhook, read by the NVIDIA container runtime
# The toolkit's words for no GPU (https://github.com/NVIDIA/nvidia-container-toolkit, internal/config/image): void and
# "" give nothing, none gives a driver without GPUs. The webhook writes the first; it accepts the others from users.
VISIBLE_NONE: Final = ("void", "", "none")
ENV_MPS_PIPE: Final = "CUDA_MPS_PIPE_DIRECTORY"  # of MPS clients and daemons
ENV_MPS_PERCENT: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"  # of MPS clients
# Informational: applications may read these; the library trusts only the arbiter.
ENV_REQUEST: Final = "GPUSHARE_REQUEST"  # percent of one GPU
ENV_LIMIT: Final = "GPUSHARE_LIMIT"  # percent of one GPU
ENV_MEMORY: Final = "GPUSHARE_MEMORY"  # bytes on each GPU
ENV_MEMORY_LIMIT: Final = "GPUSHARE_MEMORY_LIMIT"  # likewise, if it is more

# --- Paths inside a share container; mounted by the agent's Allocate ------------------------------------------------
CONTAINER_LIBRARY: Final = "/usr/lib/gpushare/libgpushare.so"
CONTAINER_PRELOAD_FILE: Final = "/etc/ld.so.preload"  # one line: CONTAINER_LIBRARY
CONTAINER_PRELOAD_FILE_OF_NIX: Final = "/etc/ld-nix.so.preload"  # the same, for the loader of nixpkgs' glibc
CONTAINER_ARBITER_DIRECTORY: Final = "/run/gpushare"  # a directory: a restarted agent's new socket appears in it
ARBITER_SOCKET_NAME: Final = "arbiter.sock"
CONTAINER_MPS_PIPE: Final = "/run/gpushare-mps"  # mounted by the share's CDI description, if its isolation is mps
CONTAINER_MPS_PARTITION: Final = "/run/gpushare-mps-partition"  # likewise, read-only; has the partition's name
MPS_PARTITION_NAME: Final = "name"  # the file's

# --- Arbiter protocol: SOCK_SEQPACKET, little-endian; library (client) and arbiter both ways ------------------------
# Header of every message: magic u32, version u16, type u16, size u32 (whole message), newest u32. `version` is the one
# that both have agreed on; only in HELLO it is the oldest that the library speaks, and `newest` the newest (0: no
# other). WELCOME has the newest that both speak. For ever the same: the header, how HELLO begins, and REFUSED. From
# version 2 on both sides ignore what follows the part of a message that they know, and messages whose type they do not
# know; before that nothing else is sent. docs/upgrade.md says which releases speak which versions.
WIRE_MAGIC: Final = 0x48535047  # "GPSH"
WIRE_OLDEST: Final = 1  # of release 0.1.0
WIRE_VERSION: Final = 3  # from 3 on the library obeys the isolation in WELCOME
WIRE_HEADER: Final = "<IHHII"
MESSAGE_HELLO: Final = 1  # library -> arbiter: library version, char[32]
# arbiter -> library: gpu_count u32, slot u32; with two file descriptors: limits, ledger. For a share with another
# isolation than `arbiter`, WIRE_ISOLATION follows.
MESSAGE_WELCOME: Final = 2
MESSAGE_REFUSED: Final = 3  # arbiter -> library: one sentence, char[256], NUL-terminated
# library -> arbiter: about to report out-of-memory; have processes died that held memory? If the limits page has a
# burst limit, WIRE_LEASE follows: gpu u32, 0 u32, and the bytes u64 of the refused charge.
MESSAGE_RECLAIM: Final = 4
MESSAGE_RECLAIMED: Final = 5  # arbiter -> library: bytes freed, u64
# Leases; all have the body WIRE_LEASE: gpu u32 (the record in the limits page), flags u32, lease u64 (its number).
MESSAGE_WANT: Final = 6  # library -> arbiter: there is work to launch; flag LEASE_HELD: and the gate is open
MESSAGE_OPEN: Final = 7  # arbiter -> library: launch until revoked; the same number again: other flags
MESSAGE_REVOKE: Final = 8  # arbiter -> library: launch nothing more, and release the lease; number 0: any lease
MESSAGE_CLOSED: Final = 9  # library -> arbiter: launches have stopped, and running work ends within milliseconds
MESSAGE_RELEASED: Final = 10  # library -> arbiter: nothing runs any more; also unasked, when idle
# The same body: gpu u32, a number of the client's u32, bytes u64 (0 in the question). Only if the limits page names
# CERTAIN_SLOT.
MESSAGE_MEASURE: Final = 11  # library -> arbiter: how much memory of the GPU is unaccounted for, measured from now on?
MESSAGE_MEASURED: Final = 12  # arbiter -> library: at most this much; the largest number: unknown
LEASE_HELD: Final = 1  # in WANT
LEASE_COUNTED: Final = 2  # in OPEN: others use this GPU, or there is a limit: do not run far ahead
LEASE_CONTENDED: Final = 4  # in OPEN: others wait, or there is a limit: release the lease as soon as there is no work
LEASE_BRIEF: Final = 8  # in OPEN: run ahead even less, another share may need the GPU at once
WIRE_HELLO: Final = "<32s"
WIRE_WELCOME: Final = "<II"
WIRE_ISOLATION: Final = "<II128s"  # isolation u32, percent u32 and pipe directory char[128] of an MPS client
ISOLATION_ARBITER: Final = 0
ISOLATION_MPS: Final = 1
ISOLATION_NONE: Final = 2
WIRE_REFUSED: Final = "<256s"
WIRE_RECLAIMED: Final = "<Q"
WIRE_LEASE: Final = "<IIQ"
WIRE_MAX: Final = 512

# The limits page: written by the arbiter, sealed so that the container can only map it for reading.
# Header: gpu_count u32, slot_count u32 (slots ever handed out, the length of a sum), layout u32, certain slot u32
# (CERTAIN_SLOT, or 0 if no library needs the certain amounts), reserved to 64 bytes. `layout` is that of both pages.
# New fields in reserved bytes, where 0 means absent, do not change it. Any other change does, and needs a version of
# the protocol from which processes get such pages.
# Then one record of 64 bytes a GPU: uuid 16 raw bytes, memory limit u64 (bytes), request u32 and limit u32 (percent),
# overhead u64 (bytes that the share's processes hold beyond their charges, as the agent measures them; they count
# towards the limit), context u64 (bytes that a process charges for its first context), turn begin u32 and turn u32
# (thousandths of each 100 ms by CLOCK_MONOTONIC in which the share launches while there is no arbiter; a turn of 0:
# absent), burst limit u64 (bytes up to which the arbiter may raise the memory limit when asked by RECLAIM; 0: absent).
PAGE_SIZE: Final = 4096
PAGES_LAYOUT: Final = 0
LIMITS_HEADER: Final = "<IIII48x"
LIMITS_RECORD: Final = "<16sQIIQQIIQ"
LIMITS_RECORD_SIZE: Final = 64
MAX_GPUS: Final = 63

# The ledger pages: one page a GPU, in the order of the records; one u64 a process ("slot"): bytes charged. A
# container's use of a GPU is the sum of its slots; there is no total that could disagree with them. A slot is written
# by its process alone (atomically, it has threads), and zeroed by the arbiter once that process is dead.
LEDGER_SLOTS: Final = 512
LEDGER_SLOT: Final = "<Q"
# The process of slot n writes in the word of slot n + CERTAIN_SLOT how much of its charges the GPU certainly holds, in
# the lower CERTAIN_BITS; the rest counts, modulo its size, how often that was about to decrease. The word is not a
# charge: no slot from there on is handed out.
CERTAIN_SLOT: Final = 256
CERTAIN_BITS: Final = 42
