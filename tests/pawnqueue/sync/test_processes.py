"""SyncPawnQueue where processes fork and are interrupted: in a forked child, and with Ctrl-C."""

from __future__ import annotations

import subprocess
import sys
import textwrap


def run(script: str) -> str:
    """Run a script in a process of its own, for a bounded time, and return what it printed."""
    lines = [
        "import os, signal, sys, threading, time",
        "signal.signal(signal.SIGINT, signal.default_int_handler)",  # what a shell has put in the background ignores it
        "from pawnqueue import MemoryStore, PawnQueue, QueueClosedError, SyncPawnQueue",
        "from pawnqueue.domain import layout",
        "from pawnqueue.domain.records import BucketRecord",
        "def threads(): return [t.name for t in threading.enumerate() if t.name.startswith('pawnqueue')]",
        "store = MemoryStore()",
        "store._write(layout.BUCKET_RECORD, BucketRecord(strategy='conditional_write').encode())",
    ]
    program = "\n".join(lines) + "\n" + textwrap.dedent(script)
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", program], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    assert b"never" not in done.stderr, done.stderr.decode()
    return done.stdout.decode()


def test_it_works_in_a_forked_child() -> None:
    """The child, and the child's child, start a loop of their own. The parent's queue goes on."""
    printed = run(
        """
        queue = SyncPawnQueue.open(store=store)
        queue.create_topic("t")
        queue.publish("t", [{"n": 1}])
        def child(depth):
            pid = os.fork()
            if pid:
                assert os.waitpid(pid, 0)[1] == 0
                return
            try:
                with queue:
                    claim = queue.claim("t", f"c{depth}")
                    assert len(claim) == 1 and queue.ack(claim).complete
                    queue.publish("t", [{"n": depth}])
                    with queue.keep_alive(queue.claim("t", "k", ttl=60)):
                        pass
                    queue.publish("t", [{"n": depth}])
                    if depth < 2:
                        child(depth + 1)
                    assert len(threads()) == 1, threads()
                assert threads() == []
                try:
                    queue.stats("t")
                except QueueClosedError:
                    os._exit(0)
            finally:
                import traceback; traceback.print_exc()
                os._exit(1)
        child(1)
        assert len(queue.claim("t", "c")) == 1
        queue.close()
        print("parent", threads())
        """
    )
    assert printed.strip() == "parent []"


def test_a_claim_of_before_the_fork_is_refused() -> None:
    """The child attaches by the claim's reference instead. The parent goes on renewing it."""
    printed = run(
        """
        from pawnqueue import InvalidArgumentError
        begun, go_on = threading.Event(), threading.Event()
        class Slow(MemoryStore):
            slow = False
            async def put(self, key, *given, **named):
                if self.slow:
                    begun.set()
                    await asyncio.to_thread(go_on.wait, 20)
                return await super().put(key, *given, **named)
        import asyncio
        store = Slow()
        store._write(layout.BUCKET_RECORD, BucketRecord(strategy='conditional_write').encode())
        queue = SyncPawnQueue.open(store=store, registry={"register_consumers": False})
        queue.create_topic("t")
        queue.publish("t", [{"n": 1}])
        claim = queue.claim("t", "c")
        store.slow = True
        renewing = threading.Thread(target=queue.renew, args=[claim])
        renewing.start()
        assert begun.wait(10)
        pid = os.fork()
        if not pid:
            signal.alarm(10)
            store.slow = False
            for use in (queue.ack, queue.nack, queue.renew, lambda claim: queue.keep_alive(claim).__enter__()):
                try:
                    use(claim)
                except InvalidArgumentError as error:
                    assert "forked" in str(error)
                else:
                    os._exit(1)
            os._exit(0 if queue.ack(queue.attach(claim.hand_over())).complete else 2)
        status = os.waitpid(pid, 0)[1]
        store.slow = False
        go_on.set()
        renewing.join(10)
        print(status, queue.ack(claim).complete)
        queue.close()
        """
    )
    assert printed.strip() == "0 True"


def test_closing_in_a_child_that_never_used_it_closes_nothing_of_the_parents() -> None:
    """The child's queue is closed, the parent's is not."""
    printed = run(
        """
        queue = SyncPawnQueue.open(store=store)
        queue.create_topic("t")
        pid = os.fork()
        if not pid:
            queue.close()
            try:
                queue.list_topics()
            except QueueClosedError:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        print(queue.list_topics())
        queue.close()
        """
    )
    assert printed.strip() == "['t']"


def test_a_child_that_could_not_begin_may_try_again() -> None:
    """If the store does not answer when a child first uses the queue, that call raises, and a later one succeeds."""
    printed = run(
        """
        from pawnqueue import StoreError
        class Away(MemoryStore):
            away = False
            async def get(self, key, most):
                if self.away:
                    raise StoreError("away")
                return await super().get(key, most)
        store = Away()
        store._write(layout.BUCKET_RECORD, BucketRecord(strategy='conditional_write').encode())
        queue = SyncPawnQueue.open(store=store)
        queue.create_topic("t")
        pid = os.fork()
        if not pid:
            store.away = True
            for _ in range(2):
                try:
                    queue.list_topics()
                except StoreError:
                    pass
                else:
                    os._exit(1)
            assert threads() == []
            store.away = False
            os._exit(0 if queue.list_topics() == ["t"] else 1)
        assert os.waitpid(pid, 0)[1] == 0
        queue.close()
        print("good")
        """
    )
    assert printed.strip() == "good"


def test_an_interrupt_ends_a_call_and_the_queue_goes_on() -> None:
    """Ctrl-C in the middle of a call is raised in the caller, and the queue works on and closes."""
    printed = run(
        """
        queue = SyncPawnQueue.open(store=store)
        queue.create_topic("t")
        threading.Timer(0.2, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT]).start()
        try:
            queue.claim("t", "c", wait=3600)
        except KeyboardInterrupt:
            print("interrupted")
        print(queue.list_topics())
        queue.close()
        print(threads())
        """
    )
    assert printed.split("\n")[:3] == ["interrupted", "['t']", "[]"]


def test_an_interrupted_close_leaves_no_thread() -> None:
    """Ctrl-C while the queue is being closed is raised, and its thread ends all the same; closing again is harmless."""
    printed = run(
        """
        import asyncio
        async def opened():
            queue = await PawnQueue.open(store=store)
            async def slow(**_):
                await asyncio.sleep(3600)
            queue.aclose = slow
            return queue
        queue = SyncPawnQueue(opened)
        threading.Timer(0.2, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT]).start()
        try:
            queue.close()
        except KeyboardInterrupt:
            print("interrupted")
        queue.close()
        print(threads(), queue.closed)
        """
    )
    assert printed.split("\n")[:2] == ["interrupted", "[] True"]
