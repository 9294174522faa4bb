"""Errors in the form of each API."""

from __future__ import annotations

from typing import Any

from rolemesh_gateway.requests import NO_PREVIOUS, RefusedError

__all__ = ["anthropic_error", "openai_error"]

OPENAI = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
ANTHROPIC = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def openai_error(error: RefusedError) -> dict[str, Any]:
    """Return the body of an error of OpenAI's APIs."""
    kind = OPENAI.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    told = {"message": error.reason, "type": kind, "param": error.param or None, "code": error.code or None}
    return {"error": told}


def anthropic_error(error: RefusedError) -> dict[str, Any]:
    """Return the body of an error of Anthropic's API."""
    kind = ANTHROPIC.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    told: dict[str, Any] = {"type": kind, "message": error.reason}
    if error.code == NO_PREVIOUS:
        told["details"] = {"error_code": "thread_not_found"}  # at which the client sends its whole history
    return {"type": "error", "error": told}
