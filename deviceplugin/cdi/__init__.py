"""The Container Device Interface: files that tell a container runtime what a device is made of.

spec           one file, as a document
driver_files   what of the driver belongs into a container
specs          the files of this node, kept true
"""
