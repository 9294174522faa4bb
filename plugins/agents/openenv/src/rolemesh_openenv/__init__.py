"""Environments of OpenEnv, in the processes of the role. The import of openenv comes with the first task or episode."""

from rolemesh_openenv.environment import OpenEnvEnvironment, OpenEnvOptions

__all__ = ["OpenEnvEnvironment", "OpenEnvOptions"]
