"""The kubelet's device plugin API: our `.proto`, and the code generated from it; nothing else.

The generated files are kept in the tree, so that running needs no compiler. After a change of the `.proto`, from the
top of the repository:

    python -m grpc_tools.protoc --proto_path=. --python_out=. --pyi_out=. --grpc_python_out=. \\
        deviceplugin/kubelet_api/deviceplugin_v1beta1.proto
"""
