"""What the hub has given before, at once, where there is no network."""

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies


@contextmanager
def without_waiting() -> Iterator[None]:
    """Has the hub's libraries look into their caches alone where the hub's address cannot be resolved: they would try
    each file for half a minute. Where a proxy resolves it, they are left to try."""
    from huggingface_hub import constants  # which takes a while, and only a name of the hub needs it

    host = urlsplit(constants.ENDPOINT).hostname
    try:
        if not getproxies():
            socket.getaddrinfo(host, 443)
    except socket.gaierror:
        # datasets has a copy of its own, made when it is imported.
        there: list[Any] = [constants, *filter(None, [sys.modules.get("datasets.config")])]
        before = [module.HF_HUB_OFFLINE for module in there]
        for module in there:
            module.HF_HUB_OFFLINE = True
        try:
            yield
        finally:
            for module, value in zip(there, before, strict=True):
                module.HF_HUB_OFFLINE = value
    else:
        yield
