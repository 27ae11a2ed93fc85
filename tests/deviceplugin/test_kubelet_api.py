"""The generated code matches the .proto files next to it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from deviceplugin import kubelet_api
from deviceplugin.kubelet_api import deviceplugin_v1beta1_pb2 as messages
from deviceplugin.kubelet_api import podresources_v1_pb2 as holdings

ROOT = Path(__file__).parents[2]
FOLDER = "deviceplugin/kubelet_api"
FILES = {"deviceplugin_v1beta1": messages, "podresources_v1": holdings}


def _protoc(*outputs: str, names: Iterable[str] = FILES) -> None:
    protos = [f"{FOLDER}/{name}.proto" for name in names]
    command = [sys.executable, "-m", "grpc_tools.protoc", "--proto_path=.", *outputs, *protos]
    subprocess.run(command, cwd=ROOT, check=True, timeout=60)


@pytest.mark.parametrize("name", FILES)
def test_the_generated_code_matches_the_proto(tmp_path: Path, name: str) -> None:
    # Compare the descriptors: the text differs between versions of the compiler.
    _protoc(f"--descriptor_set_out={tmp_path}/set", names=[name])
    (described,) = descriptor_pb2.FileDescriptorSet.FromString((tmp_path / "set").read_bytes()).file
    for message in described.message_type:
        for part in (message, *message.nested_type):
            for field in part.field:
                field.ClearField("json_name")  # derived from the name, so the generated code omits it
    assert descriptor_pb2.FileDescriptorProto.FromString(FILES[name].DESCRIPTOR.serialized_pb) == described


def test_the_command_in_the_docstring_generates_these_files(tmp_path: Path) -> None:
    _protoc(f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", f"--grpc_python_out={tmp_path}")
    made = {path.name for path in (tmp_path / "deviceplugin/kubelet_api").iterdir()}
    kept = {path.name for path in (ROOT / "deviceplugin/kubelet_api").glob("*_pb2*")}
    assert made == kept
    assert all(f"--{flag}=." in (kubelet_api.__doc__ or "") for flag in ("python_out", "pyi_out", "grpc_python_out"))


def test_service_names_are_the_kubelets() -> None:
    services = {**messages.DESCRIPTOR.services_by_name, **holdings.DESCRIPTOR.services_by_name}
    assert services["PodResourcesLister"].full_name == "v1.PodResourcesLister"
    assert services["Registration"].full_name == "v1beta1.Registration"
    assert sorted(services["DevicePlugin"].methods_by_name) == [
        "Allocate",
        "GetDevicePluginOptions",
        "GetPreferredAllocation",
        "ListAndWatch",
        "PreStartContainer",
    ]


def test_a_registration_has_the_kubelets_bytes() -> None:
    request = messages.RegisterRequest(version="v1beta1", endpoint="a.sock", resource_name="x/y")
    assert request.SerializeToString() == b"\x0a\x07v1beta1\x12\x06a.sock\x1a\x03x/y"
