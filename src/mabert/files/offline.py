"""Reads the hub's cache at once when there is no network, instead of retrying."""

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies


@contextmanager
def without_waiting(name: str) -> Iterator[None]:
    """Makes the hub's libraries use only their caches if the hub's address cannot be resolved.

    Otherwise they would retry each file for half a minute. Behind a proxy, which resolves the address, nothing changes.

    Args:
        name: A name on the hub, or a folder, for which nothing is looked up: a lookup that fails can take seconds.
    """
    if Path(name).is_dir():
        yield
        return
    from huggingface_hub import constants  # slow to import, and only hub names need it

    host = urlsplit(constants.ENDPOINT).hostname
    try:
        if not getproxies():
            socket.getaddrinfo(host, 443)
    except socket.gaierror:
        # datasets copies the setting when it is imported.
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
