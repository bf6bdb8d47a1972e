"""What every test shares."""

import gc
import itertools
import signal
import socket
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, settings

# What is slow to import is imported in fixtures: the process that hands out tests reads this file and runs none.

pytest_plugins = ["pytester", "tests.tiers"]

# How long an example takes, and how long it takes to draw some, also depends on what else the machine does.
settings.register_profile("busy", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


@pytest.fixture(autouse=True, scope="session")
def one_thread_from_the_start():
    """What is made once for many tests has the bits of one thread, as what they make themselves."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def compiled_kernels(one_thread_from_the_start, request):
    """The CPU kernels are compiled, on a machine's first run, before any test is timed; none of a GPU's tests is."""
    if all(item.get_closest_marker("gpu") for item in request.session.items):
        return
    import torch

    from mabert.ops import depthwise_conv1d, selective_scan, softmax_attention

    u, a, b = torch.ones(1, 2, 3, requires_grad=True), -torch.ones(3, 2), torch.ones(1, 2, 2)
    mixed = depthwise_conv1d(u, torch.ones(3, 2))
    selective_scan(mixed, torch.ones(1, 2, 3), a, b, b).sum().backward()
    with torch.no_grad():
        softmax_attention(*(torch.ones(1, 2, 32) for _ in range(3)), 1)


@pytest.fixture
def ten_seconds_a_look(monkeypatch):
    """A clock for lines of progress, and no terminal whatever the environment says."""
    monkeypatch.setenv("TTY_COMPATIBLE", "0")
    monkeypatch.setattr("mabert.machine.progress.monotonic", itertools.count(0, 10).__next__)


@pytest.fixture(autouse=True, scope="module")
def quick_collection(compiled_kernels):
    """What was there before is not looked through for garbage, which Trainer collects after each training."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def no_hub():
    """No test reads from the hub: where it cannot be reached, looking up its address alone can take five seconds."""
    from huggingface_hub import constants

    look_up, hub = socket.getaddrinfo, urlsplit(constants.ENDPOINT).hostname

    def refused(host, *address, **options):
        if host == hub:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return look_up(host, *address, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", refused)
        yield


@pytest.fixture(autouse=True, scope="session")
def heard_interrupts():
    """Ctrl-C is heard, also by what tests start: a shell makes what it runs in the background ignore it."""
    before = signal.getsignal(signal.SIGINT)
    if before == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    if before == signal.SIG_IGN:
        signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def one_thread():
    """Small tensors gain nothing from threads, and spinning ones take the cores from the test beside."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
