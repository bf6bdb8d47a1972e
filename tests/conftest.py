"""What every test shares."""

import signal

import pytest
import torch


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
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
