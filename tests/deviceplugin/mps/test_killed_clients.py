"""Killed MPS clients are reported while other clients of their server may hang."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deviceplugin.audit.auditor import Auditor
from deviceplugin.audit.killed_clients import KilledClients
from deviceplugin.audit.overhead import ContextCheckpoint, ContextSizes
from deviceplugin.hardware.nvml import Driver
from deviceplugin.state.node_state import ObservableGpus
from gpushare import contract
from gpushare.refusal import Refusal
from tests.deviceplugin import linked, waiting
from tests.deviceplugin.audit.test_auditor import Listing
from tests.deviceplugin.mps.test_shares import World, _library, runs, says, world
from tests.simgpu.programs import mps as obedient

__all__ = ["_library", "world"]  # fixtures


class Audit:
    """The audit of a world's clients, as agents run it with a driver up to CUDA 13.5."""

    def __init__(self, world: World, link: linked.Linked, directory: Path) -> None:
        self.world = world
        self.killed = KilledClients()
        self.warned: list[tuple[str, str]] = []
        for manifest in world.node.pods:
            (status,) = manifest["status"]["containerStatuses"]
            status["state"] = {"running": {}}
        gpus = ObservableGpus(world.gpunode().gpus)
        self.auditor = Auditor(
            Driver(Listing(range(0))),  # type: ignore[arg-type]
            link.arbiter,
            ContextSizes(ContextCheckpoint(directory), gpus),
            gpus=lambda: gpus.gpus,
            node=world.gpunode,
            pods=lambda: world.node.pods,
            warn=lambda reason, note, _: self.warned.append((reason, note)),
            changed=lambda: None,
            node_name="node-a",
            identify=lambda _: Refusal("no pod"),
            mps=world.shares,
            killed_clients=self.killed,
        )

    def ends(self, position: int, code: int) -> None:
        """Report a pod's container as ended, and the pod as deleted."""
        manifest: Any = self.world.node.pods[position]
        (status,) = manifest["status"]["containerStatuses"]
        status["state"] = {"terminated": {"exitCode": code, "containerID": status["containerID"]}}
        self.killed.pod_changed(manifest)
        del self.world.node.pods[position]

    async def notes(self) -> str:
        await self.auditor.step()
        document = self.auditor.document()
        assert document is not None
        assert not document["blind"]
        return str(document["problem"])


@pytest.mark.parametrize("code", [137, 143])
async def test_a_killed_client_is_reported_until_the_others_have_ended(world: World, tmp_path: Path, code: int) -> None:
    with linked.to(world.node) as link:
        audit = Audit(world, link, tmp_path)
        async with world.client("large", obedient.obeys, 0) as other:
            async with world.client("small", obedient.obeys, 0) as ended:
                assert [await says(ended), await says(other)] == ["0 0", "0 0"]
                assert await audit.notes() == ""
            audit.ends(0, code)
            note = await audit.notes()
            if code == 137:
                assert note == (
                    f"MPS clients on {world.uuid} may hang without an error: the container default/small/main, which "
                    "was a client too, was killed (SIGKILL). If they hang, delete all pods with a share by MPS on this "
                    "GPU"
                )
            assert await audit.notes() == note
            assert audit.warned == ([(contract.EVENT_MPS_CLIENT_KILLED, note)] if code == 137 else [])
            assert code == 137 or note == ""
            assert await runs(other)
        await waiting.until(lambda: not list(world.node.groups.uses()))
        assert await audit.notes() == ""


async def test_the_only_client_is_killed_and_no_other_can_hang(world: World, tmp_path: Path) -> None:
    with linked.to(world.node) as link:
        audit = Audit(world, link, tmp_path)
        async with world.client("small", obedient.obeys, 0) as client:
            assert await says(client) == "0 0"
            assert await audit.notes() == ""
        await waiting.until(lambda: not list(world.node.groups.uses()))
        audit.ends(0, 137)
        await world.shares.ready(world.uuid, "a", has_processes=link.arbiter.has_processes)
        async with world.client("large", obedient.obeys, 0) as later:
            assert await says(later) == "0 0"
            assert await audit.notes() == "", "it has a new server"
            assert await runs(later)
        assert audit.warned == []
