"""The container images of the webhook and the agent, built from Debian's packages and the wheels of requirements.lock.

`python -m config.images` builds them, and `build.ensure()` does so for other programs. The build needs no root, no
registry, no daemon and no base image: a layer is a tree of files in memory, and an image is a few JSON documents.

build                 builds the images; contents: what goes into each
layers, archive       an image's layers, and its archive
tree, bytecode        files in memory; compiled Python modules
packages, apt         Debian packages, by their lock; how apt runs
wheels, requirements  Python packages; the part of the lock that an image needs
kubectl, preloaded    the kubectl of the plugin's image; libgpushare.so
licences, sbom        licences, and the software bill of materials
push                  pushes the images to a registry
"""
