"""The sandbox `container`: commands that see the files of a container image and one folder."""

from rolemesh_sandbox_container.sandbox import ContainerOptions, ContainerSandbox

__all__ = ["ContainerOptions", "ContainerSandbox"]
