"""The container images of the webhook and the agent, built from Debian's packages and the wheels of requirements.lock.

`python -m config.images` builds them, and `build.ensure()` does so for other programs. The build needs no root, no
registry, no daemon and no base image: a layer is a tree of files in memory, and an image is a few JSON documents.
"""
