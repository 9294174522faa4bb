"""OpenEnv's own server with an environment of `echoing`: ``python serving.py CLASS ACTION PORT SESSIONS``."""

from __future__ import annotations

import sys

import echoing  # type: ignore[import-not-found]
import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.mcp_types import CallToolAction
from openenv.core.env_server.types import Observation

name, action, port, sessions = sys.argv[1:]
made = getattr(echoing, name)
app = create_fastapi_app(
    made, getattr(echoing, action, CallToolAction), Observation, max_concurrent_envs=int(sessions), env_name=name
)
uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")
