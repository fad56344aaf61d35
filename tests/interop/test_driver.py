"""The peer itself: which library it is, and that it ends."""

from __future__ import annotations

import re

import pytest

from tests.interop.driver import PINS, Peer, PeerError

pytestmark = pytest.mark.peer


def test_the_peer_is_pinned_exactly() -> None:
    """The file of its versions holds exact pins, 0.1.x of the library among them, and no address."""
    lines = PINS.read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]

    assert [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9._+!]+", pin)] == []
    assert [pin for pin in pins if pin.startswith("pawn-queue==0.1.")] != []


async def test_the_peer_ends_with_its_input_and_says_what_it_was_refused() -> None:
    """The driver raises what the library raises; a process whose other end is gone does not live on."""
    peer = Peer()
    try:
        with pytest.raises(PeerError, match="ConfigError"):
            await peer.open("no-such-file.yaml")
        assert peer.usable
        peer.hang_up()
        assert not peer.usable
        with pytest.raises(PeerError, match="has ended"):
            await peer.topics()
    finally:
        peer.close()
