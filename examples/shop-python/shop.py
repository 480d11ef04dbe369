"""The core of a small web shop on Keystead: a limit for each tenant, stock that is never
sold twice, orders that may be sent again, and a nightly job that runs once.

README.md in the directory above says how to run it.
"""

import argparse
import concurrent.futures
import os
import sys
import threading
import time
import uuid

import grpc

from keystead.counter.v1 import counter_pb2, counter_pb2_grpc
from keystead.limit.v1 import limit_pb2, limit_pb2_grpc
from keystead.lock.v1 import lock_pb2, lock_pb2_grpc

SECOND = 1_000_000_000  # durations are in nanoseconds
ATTEMPT = 1.0  # seconds that one attempt may take
PATIENCE = 20.0  # seconds for all attempts: longer than a failover, shorter than the id window
PAUSE = 0.1  # seconds between two attempts
CUSTOMERS = 8  # who order at the same time

# After these nothing happened, or nobody knows: a request with an idempotency key can be
# sent again. All others would be the same the next time.
AGAIN = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}


def until_answered(method, request, patience=PATIENCE):
    """Sends a request until there is an answer. It must be one that acts once: a read, a
    renewal, or one with an idempotency key."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return method(request, timeout=max(0.001, min(ATTEMPT, deadline - time.monotonic())))
        except grpc.RpcError as err:
            if err.code() not in AGAIN or time.monotonic() + PAUSE >= deadline:
                raise
        time.sleep(PAUSE)


class Shop:
    def __init__(self, channel, per_minute, lease):
        self.limits = limit_pb2_grpc.LimitServiceStub(channel)
        self.counters = counter_pb2_grpc.CounterServiceStub(channel)
        self.locks = lock_pb2_grpc.LockServiceStub(channel)
        self.per_minute = per_minute
        self.lease = lease

    def admit(self, tenant):
        """Reports whether the tenant may send one more request. Without an answer it may: a
        shop that is open is worth more than a limit."""
        request = limit_pb2.CheckRequest(key=tenant, name="requests", limit=self.per_minute, period_ns=60 * SECOND)
        try:
            return self.limits.Check(request, timeout=ATTEMPT).allowed
        except grpc.RpcError:
            return True

    def supply(self, sku, items):
        """Sets the stock of what was never sold, and returns what there is. A second one
        changes nothing: version 0 is that of a counter that does not exist."""
        request = counter_pb2.CompareAndSetRequest(
            key=sku, name="stock", value=items, version=0, idempotency_key=str(uuid.uuid4())
        )
        return until_answered(self.counters.CompareAndSet, request).current

    def order(self, sku, order):
        """Sells one, and returns how many it left; None if there is none. The number of the
        order is the idempotency key: sent again, it has the first answer."""
        request = counter_pb2.AddRequest(key=sku, name="stock", delta=-1, min=0, idempotency_key=order)
        answer = until_answered(self.counters.Add, request)
        return answer.value if answer.applied else None

    def left(self, sku):
        return until_answered(self.counters.Get, counter_pb2.GetRequest(key=sku, name="stock")).value

    def nightly(self, night, job):
        """Runs a job for a night, in one of all processes that ask for it, once. Returns its
        fencing token; None if another one runs it or has run it."""
        sent = time.monotonic()
        held = until_answered(
            self.locks.Acquire,
            lock_pb2.AcquireRequest(
                key="nightly", name="job", holder=f"shop-{os.getpid()}", ttl_ns=int(self.lease * SECOND),
                idempotency_key=str(uuid.uuid4()),
            ),
        )
        if not held.acquired or held.ttl_ns == 0:  # 0: granted, but over when the answer came
            return None
        lost, done = threading.Event(), threading.Event()
        keeper = threading.Thread(target=self._keep, args=(held.token, sent, lost, done), daemon=True)
        keeper.start()
        try:
            # Marked before it begins: a job that fails half way is not begun again by itself.
            mark = counter_pb2.AddRequest(
                key=night, name="job-done", delta=1, max=1, idle_ttl_ns=48 * 3600 * SECOND,
                idempotency_key=str(uuid.uuid4()),
            )
            if not until_answered(self.counters.Add, mark).applied:
                return None
            job(held.token, lost)
            return held.token
        finally:
            done.set()
            keeper.join()
            release = lock_pb2.ReleaseRequest(
                key="nightly", name="job", token=held.token, idempotency_key=str(uuid.uuid4())
            )
            try:
                until_answered(self.locks.Release, release, patience=ATTEMPT)
            except grpc.RpcError:
                pass  # it ends by itself, with its lease

    def _keep(self, token, sent, lost, done):
        """Renews a lock until the job is done. The lease counts from before a request was
        sent, so it ends here before it ends at the owner."""
        renewal = lock_pb2.RenewRequest(key="nightly", name="job", token=token, ttl_ns=int(self.lease * SECOND))
        while not done.wait(self.lease / 3):
            before, left = time.monotonic(), sent + self.lease - time.monotonic()
            try:
                if left <= 0 or not until_answered(self.locks.Renew, renewal, patience=left).renewed:
                    lost.set()
                    return
            except grpc.RpcError:
                lost.set()
                return
            sent = before


def report(order, left):
    print(f"{order}: " + ("sold out" if left is None else f"sold, {left} left"), flush=True)


def rush(shop, sku, orders):
    """Sells to many customers at a time, each of whom sends an order twice."""

    def buy(i):
        order = f"rush-{i}"
        first = shop.order(sku, order)
        if shop.order(sku, order) != first:
            raise RuntimeError(f"{order} has two answers")
        return order, first

    with concurrent.futures.ThreadPoolExecutor(CUSTOMERS) as customers:
        sold = [customers.submit(buy, i) for i in range(orders)]
        for each in concurrent.futures.as_completed(sold):
            report(*each.result())


def nightly(shop, night):
    def job(token, lost):
        # What it writes to should refuse a token below the highest that it has seen. A
        # longer job looks at lost between its steps, and stops.
        print(f"{night}: lost" if lost.is_set() else f"{night}: runs under token {token}", flush=True)

    if shop.nightly(night, job) is None:
        print(f"{night}: not here")


def main():
    parser = argparse.ArgumentParser(prog="shop-python")
    parser.add_argument("--target", default="127.0.0.1:7400", help="as gRPC names it: dns:///name:port, ipv4:host:port,…")
    parser.add_argument("--tenant", default="shop")
    parser.add_argument("--per-minute", type=int, default=6000, help="requests of a tenant")
    parser.add_argument("--lease", type=float, default=10, help="seconds that a lock outlives its holder")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, *arguments in (
        ("supply", ("sku", str), ("items", int)),
        ("order", ("sku", str), ("order", str)),
        ("left", ("sku", str)),
        ("rush", ("sku", str), ("orders", int)),
        ("nightly", ("night", str)),
    ):
        command = commands.add_parser(name)
        for argument, kind in arguments:
            command.add_argument(argument, type=kind)
    args = parser.parse_args()
    # All nodes in turn: any of them passes a call on to the owner of its key.
    options = [("grpc.service_config", '{"loadBalancingConfig": [{"round_robin": {}}]}')]
    with grpc.insecure_channel(args.target, options) as channel:
        shop = Shop(channel, args.per_minute, args.lease)
        if not shop.admit(args.tenant):
            sys.exit(f"{args.tenant}: too many requests")
        if args.command == "supply":
            print(shop.supply(args.sku, args.items))
        elif args.command == "order":
            report(args.order, shop.order(args.sku, args.order))
        elif args.command == "left":
            print(shop.left(args.sku))
        elif args.command == "rush":
            rush(shop, args.sku, args.orders)
        else:
            nightly(shop, args.night)


if __name__ == "__main__":
    main()
