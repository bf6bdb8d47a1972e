"""Without network, a name of the hub is refused at once, or found in the hub's cache."""

import socket
import time
from unittest.mock import Mock
from urllib.parse import urlsplit

import pytest
from huggingface_hub import constants

from mabert.data.corpus import HubSource
from mabert.data.tokenizer import load_tokenizer
from mabert.files.places import find, without_waiting


@pytest.fixture
def no_network(monkeypatch):
    """A machine on which no name can be resolved, and no wait is taken."""
    unresolved = socket.gaierror(-2, "Name or service not known")
    monkeypatch.setattr(socket, "getaddrinfo", Mock(side_effect=unresolved))
    monkeypatch.setattr(time, "sleep", Mock(side_effect=AssertionError("waits")))
    monkeypatch.setattr("mabert.files.places.getproxies", dict)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


READERS = {
    "data set": lambda name: next(HubSource(name).read()),
    "tokenizer": load_tokenizer,
    "model": find,
}


@pytest.mark.parametrize("what", READERS)
def test_nothing_is_waited_for_where_there_is_no_network(no_network, what):
    with pytest.raises(OSError, match="no/such") as refused:
        READERS[what]("no/such")
    assert len(str(refused.value).splitlines()) == 1
    assert not constants.HF_HUB_OFFLINE, "it is asked again as soon as there is a network"


def test_nothing_is_looked_up_for_a_folder(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr("mabert.files.places.getproxies", dict)
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port: asked.append(host))
    with without_waiting(str(tmp_path)):
        assert asked == []
    with without_waiting("no/such"):
        assert asked == [urlsplit(constants.ENDPOINT).hostname]


def test_where_a_proxy_resolves_names_it_is_asked(no_network, monkeypatch):
    monkeypatch.setattr("mabert.files.places.getproxies", lambda: {"https": "proxy:3128"})
    with without_waiting("no/such"):
        assert not constants.HF_HUB_OFFLINE
