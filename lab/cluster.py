"""Starts and stops a lab's components in the right order.

`up` completes a lab from any state: new, half started, or with killed components. `down` ends every process that the
lab started and removes everything it created, even if the launcher died half-way.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from lab import (
    access,
    addresses,
    build,
    component,
    control_plane,
    daemon_process,
    guard,
    kubernetes_service,
    lab_errors,
    lab_layout,
    lab_nodes,
    prerequisites,
)

ETCD_SECONDS = 30.0
API_SERVER_SECONDS = 120.0  # 4 to 8 s on two idle cores
CONTROLLER_SECONDS = 60.0
MAX_NODES = 10
# The order in which the control plane stops: clients of the API server first, etcd last.
CONTROL_PLANE = ("kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd")
STOP_SECONDS = 3.0


def up(
    directory: Path, *, node_count: int | None = None, scheduler: bool = False, owner: int | None = None
) -> access.Access:
    """Start the missing components and wait until they serve; return the administrator's access.

    node_count: None keeps a lab's nodes, and gives a new lab one. With 0, the lab has only an API server with its etcd
    and, with `scheduler`, a scheduler that binds pods to nodes that a test creates. owner: a process id; when that
    process ends, in whatever way, a guard removes the lab.

    Raises:
        LabError: a requirement is missing, another lab is in the way, or a component did not start.
    """
    if node_count is not None and not 0 <= node_count <= MAX_NODES:
        raise lab_errors.LabError(f"invalid --nodes {node_count}: must be from 0 (API server only) to {MAX_NODES}")
    directory = directory.absolute()
    if not lab_layout.exists(directory):
        lab_layout.check(directory)
    programs = build.ensure()
    if node_count != 0:
        prerequisites.ensure()
    directory.mkdir(parents=True, exist_ok=True)
    with _locked(directory):
        exists = lab_layout.exists(directory)
        lab = lab_layout.load(directory) if exists else _create(directory, 1 if node_count is None else node_count)
        if node_count not in (None, len(lab.nodes)):
            raise lab_errors.LabError(
                f"the lab in {directory} has {len(lab.nodes)} node(s) and keeps them: start another by `python -m lab "
                f"up --nodes {node_count} --directory ANOTHER`, or end it first by `python -m lab down --directory "
                f"{directory}`"
            )
        if owner is not None:
            guard.start(lab, owner)
        control_plane.write_files(lab)
        return _start(lab, programs, scheduler=scheduler)


def down(directory: Path, *, keep_logs: Path | None = None) -> bool:
    """Stop and remove a lab; return False if there is none. keep_logs: a directory to copy its logs to first.

    Raises:
        LabError: a part could not be removed; call it again.
    """
    directory = directory.absolute()
    if not lab_layout.exists(directory):
        return False
    with _locked(directory):
        if not lab_layout.exists(directory):  # another `down` has removed it meanwhile
            return False
        lab = lab_layout.load(directory)
        known = {
            *CONTROL_PLANE,
            guard.NAME,
            *(name for member in lab.nodes for name in lab_nodes.process_names(member)),
        }
        others = [record.name for record in lab.processes.iterdir() if record.name not in known]
        daemon_process.stop([(name, STOP_SECONDS) for name in others if not name.endswith(".new")], lab.processes)
        lab_nodes.stop(lab)
        for names in (CONTROL_PLANE[:2], CONTROL_PLANE[2:3], CONTROL_PLANE[3:]):
            daemon_process.stop([(name, STOP_SECONDS) for name in names], lab.processes)
        if keep_logs is not None and lab.logs.exists():
            shutil.copytree(lab.logs, keep_logs, dirs_exist_ok=True)
        guard.stop(lab)
        addresses.release_number(lab.number, directory)
        lab_layout.remove(directory)
        return True


def access_to(lab: lab_layout.Layout) -> access.Access:
    """Return the administrator's access to a running lab."""
    return access.Access(
        kubeconfig=lab.admin_kubeconfig,
        server=lab.server,
        ca_file=lab.certificates / "ca.crt",
        kubectl_program=build.kubectl(),
        lab=lab,
    )


def _create(directory: Path, node_count: int) -> lab_layout.Layout:
    number = addresses.claim_number(directory)
    ports = addresses.free_ports(lab_layout.control_address(number), (443, 10259, 10257))
    lab = lab_layout.Layout(
        directory=directory,
        number=number,
        api_port=next(ports),
        scheduler_port=next(ports),
        controller_port=next(ports),
        nodes=(),
    )
    for i in range(node_count):
        kubelet, health = addresses.free_ports(lab.node_address(i), (10250, 10248))
        lab = dataclasses.replace(lab, nodes=(*lab.nodes, lab_layout.Node(f"lab-node-{i}", i, kubelet, health)))
    lab_layout.save(lab)
    return lab


def _start(lab: lab_layout.Layout, programs: Path, *, scheduler: bool) -> access.Access:
    etcd, api_server = control_plane.etcd(lab, programs), control_plane.api_server(lab, programs)
    # The API server takes longest and waits for etcd by itself, so start everything else meanwhile.
    component.start([etcd, api_server], lab)
    lab_nodes.prepare(lab)
    component.wait([etcd], lab, ETCD_SECONDS)
    component.wait([api_server], lab, API_SERVER_SECONDS)
    administrator = access_to(lab)
    if lab.nodes:
        component.start([kubernetes_service.build(lab)], lab)
        component.wait([kubernetes_service.build(lab)], lab, CONTROLLER_SECONDS)
        controllers = [control_plane.controller_manager(lab, programs), control_plane.scheduler(lab, programs)]
        component.start(controllers, lab)
        lab_nodes.start(lab, programs, administrator)
        component.wait(controllers, lab, CONTROLLER_SECONDS)
        lab_nodes.wait(lab, programs, administrator)
    elif scheduler:
        alone = [control_plane.scheduler(lab, programs, flags=control_plane.UNTHROTTLED)]
        component.start(alone, lab)
        component.wait(alone, lab, CONTROLLER_SECONDS)
    administrator.ensure_default_service_account("default")
    return administrator


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Run one `up` or `down` at a time per directory. The lock is on the directory itself, so no lock file remains."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"lab: waiting for another `python -m lab` that works on {directory}", file=sys.stderr, flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
