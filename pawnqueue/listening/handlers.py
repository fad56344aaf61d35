"""Handlers: which ones each door takes, and how those of a synchronous queue run in threads of their own."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import queue
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import fields
from typing import Any, Self, TypeAlias, TypeVar

from pawnqueue.arguments import shown
from pawnqueue.claims import Message
from pawnqueue.errors import InvalidArgumentError
from pawnqueue.listening.outcomes import text_of

H = TypeVar("H", bound=Callable[..., object])

#: What ``PawnQueue.listen`` calls with each message.
Handler: TypeAlias = Callable[[Message], Awaitable[object]]


class HandedMessage(Message):
    """A message as the handler of a :class:`SyncPawnQueue` is given it: it says whether the work is still wanted.

    Copied or pickled, it is a plain :class:`Message`.
    """

    __slots__ = ("lost",)

    lost: threading.Event
    """Set when the handler's result no longer counts: its claim was lost, or the queue gives the message back. Others
    may have the message then."""

    @classmethod
    def of(cls, message: Message) -> Self:
        """Return a message with an event of its own."""
        handed = cls(**{each.name: getattr(message, each.name) for each in fields(Message)})
        object.__setattr__(handed, "lost", threading.Event())
        return handed

    def __reduce__(self) -> tuple[type[Message], tuple[Any, ...]]:
        return Message, tuple(getattr(self, each.name) for each in fields(Message))


#: What ``SyncPawnQueue.listen`` calls with each message, in one of its threads.
SyncHandler: TypeAlias = Callable[[HandedMessage], object]


def checked_handler(handler: object) -> Handler:
    """Return a handler of the asynchronous queue."""
    if callable(handler) and is_asynchronous(handler):
        return _checked_arguments(handler, "async def handler(message): ...")
    more = ", or use SyncPawnQueue, which runs plain functions in threads" if callable(handler) else ""
    raise InvalidArgumentError(
        f"listen takes an async function of one message, not {_described(handler)}: write "
        f"`async def handler(message): ...`{more}.",
        operation="listen",
    )


def checked_sync_handler(handler: object) -> SyncHandler:
    """Return a handler of the synchronous queue."""
    if callable(handler) and not is_asynchronous(handler):
        return _checked_arguments(handler, "def handler(message): ...")
    more = ", or use PawnQueue, which awaits async functions" if callable(handler) else ""
    raise InvalidArgumentError(
        f"listen takes a plain function of one message, not {_described(handler)}: write "
        f"`def handler(message): ...`{more}.",
        operation="listen",
    )


def is_asynchronous(handler: object) -> bool:
    """Say whether calling it returns something to be awaited, as far as it can be seen."""
    return any(inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in _functions(handler))


def check_returned(returned: object) -> None:
    """Refuse what a handler has returned in place of working: something to be awaited, or a generator.

    :raises InvalidArgumentError: its work was not done.
    """
    if inspect.isgenerator(returned) or inspect.isasyncgen(returned):
        problem = "a generator, which nobody iterates over: let the function do the work itself, without a `yield`."
    elif inspect.isawaitable(returned):
        problem = (
            f"{'a coroutine' if inspect.iscoroutine(returned) else 'an awaitable'}, which nobody awaits: let the "
            "function do the work itself, or give PawnQueue an async function that awaits it."
        )
    else:
        return
    if inspect.iscoroutine(returned) or inspect.isgenerator(returned):
        returned.close()  # else Python warns of a coroutine that was never awaited
    raise InvalidArgumentError(f"The handler has returned {problem}", operation="listen")


def _functions(handler: object) -> tuple[object, object]:
    """Return a handler and what is called if it is an object that can be called."""
    return handler, getattr(handler, "__call__", None)  # noqa: B004 - it is looked at, and not called


def _checked_arguments(handler: H, example: str) -> H:
    if any(inspect.isasyncgenfunction(each) or inspect.isgeneratorfunction(each) for each in _functions(handler)):
        raise InvalidArgumentError(
            f"The handler {_name(handler)} has a `yield` in it, so calling it does nothing: write `{example}` without.",
            operation="listen",
        )
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):  # a function that is not written in Python need not have one
        return handler
    try:
        signature.bind(None)
    except TypeError as problem:
        raise InvalidArgumentError(
            f"The handler {_name(handler)} is called with one message, and does not take that ({problem}): write "
            f"`{example}`.",
            operation="listen",
        ) from None
    return handler


def _described(handler: object) -> str:
    if not callable(handler):
        return shown(handler)
    return f"the {'async' if is_asynchronous(handler) else 'plain'} function {_name(handler)}"


def _name(handler: object) -> str:
    return str(getattr(handler, "__qualname__", None) or f"of type {type(handler).__name__}")


#: A message, the future that its handler ends, and the context in which the handler runs.
_Work: TypeAlias = tuple[HandedMessage, asyncio.Future[None], contextvars.Context]


class HandlerThreads:
    """Runs a plain function in a bounded number of threads, for a worker in an event loop.

    They are daemon threads: a handler that never returns does not keep the program from ending. A handler has the
    context variables of the task that waits for it.
    """

    def __init__(self, handler: SyncHandler, most: int) -> None:
        self._handler = handler
        self._most = most
        self._threads: list[threading.Thread] = []
        self._busy = 0
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()

    async def handle(self, message: Message) -> None:
        """Have a thread handle the message, and raise what it raises.

        A cancellation sets the message's ``lost``, and is raised when the handler has returned, whose result does not
        count. A second one leaves the thread alone.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        handed = HandedMessage.of(message)
        self._busy += 1
        if self._busy > len(self._threads) and len(self._threads) < self._most:
            thread = threading.Thread(target=self._run, name=f"pawnqueue-handler-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._work.put((handed, done, contextvars.copy_context()))
        try:
            await asyncio.wait((done,))
        except asyncio.CancelledError:
            if not done.done():
                handed.lost.set()
                await asyncio.wait((done,))
                raise
        finally:
            self._busy -= 1
            if done.done() and not done.cancelled():
                done.exception()  # marks it as retrieved
        done.result()

    def end(self) -> None:
        """Let the threads end, each after the message that it is handling."""
        for _ in self._threads:
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            handed, done, context = work
            error: BaseException | None = None
            try:
                check_returned(context.run(self._handler, handed))
            except BaseException as raised:  # noqa: BLE001 - the worker decides what becomes of the message
                error = raised
            with suppress(RuntimeError):  # the loop has ended, and nobody waits for the result
                done.get_loop().call_soon_threadsafe(_finish, done, error)


def _finish(done: asyncio.Future[None], error: BaseException | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
        return
    try:
        done.set_exception(_raised(error))
    except Exception:  # noqa: BLE001 - whatever the future does not take, its handler has ended
        done.set_exception(HandlerExitError(type(error).__name__))


def _raised(error: BaseException) -> BaseException:
    """Return an exception that a future can hold, and that does not end the queue's event loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    replaced = HandlerExitError(f"{type(error).__name__}: {text_of(error)}").with_traceback(error.__traceback__)
    replaced.__cause__ = error
    return replaced


class HandlerExitError(Exception):
    """A handler in a thread raised an exception that ends programs (SystemExit, KeyboardInterrupt), or StopIteration.

    No future holds a StopIteration.
    """
