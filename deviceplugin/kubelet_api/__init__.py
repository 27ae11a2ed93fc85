"""The kubelet's device plugin and pod-resources APIs: our `.proto`s, and the code generated from them; nothing else.

The generated files are kept in the tree, so that running needs no compiler. After a change of a `.proto`, from the
top of the repository:

    python -m grpc_tools.protoc --proto_path=. --python_out=. --pyi_out=. --grpc_python_out=. \\
        deviceplugin/kubelet_api/deviceplugin_v1beta1.proto deviceplugin/kubelet_api/podresources_v1.proto
"""
