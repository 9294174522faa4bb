"""pip's configuration in uv's words. Pure: the output of ``pip config list`` in, arguments out; stdlib only."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

HARMLESS = frozenset(
    (
        *(
            "break-system-packages",
            "cache-dir",
            "config-file",
            "disable-pip-version-check",
            "exists-action",
            "input",
            "log",
        ),
        *("no-color", "no-input", "no-python-version-warning", "no-warn-conflicts", "no-warn-script-location"),
        *("prefer-binary", "progress-bar", "quiet", "require-virtualenv", "root-user-action", "use-pep517", "verbose"),
    )
)
"""Settings that change nothing about what is installed from where."""

SOURCES = frozenset(("--default-index", "--index", "--find-links"))
"""uv's arguments that say where to look; each is followed by its value."""

SCOPES = ("global", "install", ":env:")
"""The later ones win: pip's own order."""


@dataclass
class Uv:
    """What makes uv do as pip would: arguments of ``uv pip``, variables, and pip's settings that uv has no word for."""

    arguments: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)


def settings(listed: str) -> dict[str, str]:
    """Option → value, from the lines ``scope.option='value'`` of ``pip config list``."""
    found: dict[str, dict[str, str]] = {scope: {} for scope in SCOPES}
    for line in listed.splitlines():
        if (match := re.fullmatch(r"([\w:-]+)\.([\w-]+)=(.*)", line)) and match[1] in found:
            found[match[1]][match[2].replace("_", "-")] = str(ast.literal_eval(match[3]))
    merged: dict[str, str] = {}
    for scope in SCOPES:
        merged |= found[scope]
    return merged


def translate(pip: Mapping[str, str], environ: Mapping[str, str]) -> Uv:
    """What ``uv pip install`` is called with. `environ` is the user's: where it speaks to uv, it wins."""
    uv = Uv(["--index-strategy", "unsafe-best-match"])  # as pip: the best version of all indexes
    each = {"extra-index-url": "--index", "find-links": "--find-links", "trusted-host": "--allow-insecure-host"}
    files = {"constraint": "--constraints"}
    names = {"no-binary": "--no-binary", "only-binary": "--only-binary"}
    once = {"cert": "SSL_CERT_FILE", "client-cert": "SSL_CLIENT_CERT", "retries": "UV_HTTP_RETRIES"}
    for option, value in sorted(pip.items()):
        if option == "index-url":
            uv.arguments += ["--default-index", value]
        elif option in each or option in files:
            uv.arguments += [part for one in value.split() for part in ((each | files)[option], one)]
        elif option in names:
            uv.arguments += [part for one in re.split(r"[,\s]+", value) for part in (names[option], one)]
        elif option in once:
            uv.variables[once[option]] = value
        elif option in ("timeout", "default-timeout"):
            uv.variables["UV_HTTP_TIMEOUT"] = str(max(1, round(float(value))))
        elif option == "proxy":
            proxy = value if "://" in value else f"http://{value}"
            uv.variables |= {"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy}
        elif option in ("no-index", "no-cache-dir"):
            if value.lower() in ("1", "true", "yes", "on"):
                uv.variables["UV_NO_INDEX" if option == "no-index" else "UV_NO_CACHE"] = "true"
        elif option not in HARMLESS:
            uv.unknown.append(option)
    bundle = environ.get("REQUESTS_CA_BUNDLE") or environ.get("CURL_CA_BUNDLE")
    if bundle and "SSL_CERT_FILE" not in uv.variables | dict(environ):
        uv.variables["SSL_CERT_FILE"] = bundle  # pip reads these two, uv does not
    if "SSL_CERT_FILE" not in uv.variables | dict(environ):
        uv.variables["UV_SYSTEM_CERTS"] = "true"  # pip trusts what the system trusts
    return uv
