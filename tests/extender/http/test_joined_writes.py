import asyncio

from coda_extender.http.joined_writes import JoinedWrites


class Taker(asyncio.Transport):
    """Keeps each piece that it is given."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:  # type: ignore[override]  # only bytes come
        self.pieces.append(data)

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0


async def test_head_and_body_are_sent_in_one_piece() -> None:
    taker = Taker()
    joined = JoinedWrites(taker, asyncio.get_running_loop())
    joined.write(b"head")
    joined.write(b"body")
    assert joined.get_write_buffer_size() == 8
    joined.flush()
    assert (taker.pieces, joined.get_write_buffer_size()) == ([b"headbody"], 0)


async def test_what_nobody_flushes_goes_out_with_the_turn_of_the_event_loop() -> None:
    taker = Taker()
    joined = JoinedWrites(taker, asyncio.get_running_loop())
    joined.write(b"HTTP/1.1 100 Continue")
    await asyncio.sleep(0)
    joined.write(b"HTTP/1.1 200 OK")
    await asyncio.sleep(0)
    assert taker.pieces == [b"HTTP/1.1 100 Continue", b"HTTP/1.1 200 OK"]


async def test_a_close_sends_what_was_written_and_an_abort_does_not() -> None:
    closed, aborted = Taker(), Taker()
    for taker in (closed, aborted):
        joined = JoinedWrites(taker, asyncio.get_running_loop())
        joined.write(b"last")
        joined.close() if taker is closed else joined.abort()
    await asyncio.sleep(0)
    assert (closed.pieces, aborted.pieces) == ([b"last"], [])


async def test_nothing_is_written_to_a_connection_that_was_lost_meanwhile() -> None:
    taker = Taker()
    joined = JoinedWrites(taker, asyncio.get_running_loop())
    joined.write(b"answer")
    taker.closed = True
    await asyncio.sleep(0)
    assert taker.pieces == []
