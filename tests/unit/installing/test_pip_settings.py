"""pip's configuration, as `pip config list` prints it, becomes uv's arguments and variables."""

from __future__ import annotations

import pytest
from requirements.pip_settings import settings, translate

LISTED = """\
:env:.index-url='https://mirror.example/simple'
:env:.no-cache-dir='1'
global.cert='/etc/company.pem'
global.extra-index-url='https://a.example/simple\\nhttps://b.example/simple'
global.index-url='https://pypi.example/simple'
global.timeout='7.5'
install.trusted-host='a.example b.example'
list.format='columns'
"""


def test_the_environment_wins_over_the_command_and_that_over_global() -> None:
    listed = "global.retries='1'\ninstall.retries='2'\n"
    assert settings(listed)["retries"] == "2"
    assert settings(f":env:.retries='3'\n{listed}")["retries"] == "3"


def test_settings_of_other_commands_do_not_count() -> None:
    assert "format" not in settings(LISTED)


def test_indexes_links_and_hosts_become_arguments_one_for_each_value() -> None:
    uv = translate(settings(LISTED), {})
    pairs = list(zip(uv.arguments[::2], uv.arguments[1::2], strict=True))
    assert ("--default-index", "https://mirror.example/simple") in pairs
    assert [value for name, value in pairs if name == "--index"] == [
        "https://a.example/simple",
        "https://b.example/simple",
    ]
    assert [value for name, value in pairs if name == "--allow-insecure-host"] == ["a.example", "b.example"]
    assert ("--index-strategy", "unsafe-best-match") in pairs


def test_certificates_timeouts_and_the_cache_become_variables() -> None:
    uv = translate(settings(LISTED), {})
    assert uv.variables == {"SSL_CERT_FILE": "/etc/company.pem", "UV_HTTP_TIMEOUT": "8", "UV_NO_CACHE": "true"}


@pytest.mark.parametrize(
    ("pip", "argument"),
    [
        ({"find-links": "/wheels"}, ["--find-links", "/wheels"]),
        ({"constraint": "/c.txt"}, ["--constraints", "/c.txt"]),
        ({"only-binary": "numpy,torch"}, ["--only-binary", "numpy", "--only-binary", "torch"]),
    ],
)
def test_each_setting_has_its_argument(pip: dict[str, str], argument: list[str]) -> None:
    assert translate(pip, {}).arguments[2:] == argument


def test_a_proxy_without_a_scheme_is_one_over_http() -> None:
    assert translate({"proxy": "user:pass@proxy:3128"}, {}).variables["HTTPS_PROXY"] == "http://user:pass@proxy:3128"


def test_a_bundle_of_certificates_that_only_pip_reads_is_given_to_uv() -> None:
    assert translate({}, {"REQUESTS_CA_BUNDLE": "/b.pem"}).variables == {"SSL_CERT_FILE": "/b.pem"}
    assert translate({}, {"REQUESTS_CA_BUNDLE": "/b.pem", "SSL_CERT_FILE": "/own.pem"}).variables == {}


def test_without_any_bundle_uv_trusts_what_the_system_trusts_as_pip_does() -> None:
    assert translate({}, {}).variables == {"UV_SYSTEM_CERTS": "true"}


def test_a_setting_that_uv_has_no_word_for_is_reported_and_a_harmless_one_is_not() -> None:
    assert translate({"config-settings": "x", "progress-bar": "off"}, {}).unknown == ["config-settings"]
