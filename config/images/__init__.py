"""The container images of webhook and agent, made from Debian's packages and the wheels of requirements.lock.

`python -m config.images` builds them; `build.ensure()` does so for whoever needs them. Nothing here needs root, a
registry, a daemon or a base image: a layer is a tree of files in memory, and an image is a few JSON documents.
"""
