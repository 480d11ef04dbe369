// The core of a small web shop on Keystead: a limit for each tenant, stock that is never
// sold twice, orders that may be sent again, and a nightly job that runs once.
//
// README.md in the directory above says how to run it.
import { randomUUID } from 'node:crypto';
import { performance } from 'node:perf_hooks';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';

import { create, fromBinary, toBinary } from '@bufbuild/protobuf';
import type { DescMessage, DescMethodUnary, MessageInitShape, MessageShape } from '@bufbuild/protobuf';
import * as grpc from '@grpc/grpc-js';

import { CounterService } from './gen/keystead/counter/v1/counter_pb.js';
import { LimitService } from './gen/keystead/limit/v1/limit_pb.js';
import { LockService } from './gen/keystead/lock/v1/lock_pb.js';

const SECOND = 1_000_000_000n; // durations are in nanoseconds
const ATTEMPT = 1_000; // milliseconds that one attempt may take
const PATIENCE = 20_000; // milliseconds for all: longer than a failover, shorter than the id window
const PAUSE = 100; // milliseconds between two attempts
const CUSTOMERS = 8; // who order at the same time

// After these nothing happened, or nobody knows: a request with an idempotency key can be
// sent again. All others would be the same the next time. CANCELLED is what a call ends with
// here when its connection dies at times: nothing in this program cancels one.
const AGAIN: ReadonlySet<grpc.status> = new Set([
  grpc.status.UNAVAILABLE,
  grpc.status.UNKNOWN,
  grpc.status.CANCELLED,
  grpc.status.DEADLINE_EXCEEDED,
  grpc.status.RESOURCE_EXHAUSTED,
]);

function mayPass(err: unknown): boolean {
  return err instanceof Error && AGAIN.has((err as grpc.ServiceError).code);
}

// Nodes are a client of all nodes in turn: any of them passes a call on to the owner of its key.
class Nodes {
  readonly #client: grpc.Client;

  constructor(target: string) {
    const options = { 'grpc.service_config': '{"loadBalancingConfig": [{"round_robin": {}}]}' };
    this.#client = new grpc.Client(target, grpc.credentials.createInsecure(), options);
  }

  close(): void {
    this.#client.close();
  }

  // once sends a request, and waits for its answer. A deadline is a time of day here: for an
  // attempt of a second that does no harm.
  once<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    request: MessageInitShape<I>,
    milliseconds = ATTEMPT,
  ): Promise<MessageShape<O>> {
    return new Promise((resolve, reject) => {
      this.#client.makeUnaryRequest<MessageShape<I>, MessageShape<O>>(
        `/${method.parent.typeName}/${method.name}`,
        (message) => Buffer.from(toBinary(method.input, message)),
        (bytes) => fromBinary(method.output, bytes),
        create(method.input, request),
        { deadline: Date.now() + milliseconds },
        (err, answer) => (err !== null ? reject(err) : resolve(answer as MessageShape<O>)),
      );
    });
  }

  // untilAnswered sends a request until there is an answer. It must be one that acts once: a
  // read, a renewal, or one with an idempotency key.
  async untilAnswered<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    request: MessageInitShape<I>,
    patience = PATIENCE,
  ): Promise<MessageShape<O>> {
    const deadline = performance.now() + patience;
    for (;;) {
      try {
        return await this.once(method, request, Math.max(1, Math.min(ATTEMPT, deadline - performance.now())));
      } catch (err) {
        if (!mayPass(err) || performance.now() + PAUSE >= deadline) {
          throw err;
        }
      }
      await sleep(PAUSE);
    }
  }
}

type Job = (token: bigint, lost: AbortSignal) => Promise<void>;

class Shop {
  readonly #nodes: Nodes;
  readonly #perMinute: bigint;
  readonly #lease: number; // seconds

  constructor(nodes: Nodes, perMinute: bigint, lease: number) {
    this.#nodes = nodes;
    this.#perMinute = perMinute;
    this.#lease = lease;
  }

  // admit reports whether the tenant may send one more request. Without an answer it may: a
  // shop that is open is worth more than a limit.
  async admit(tenant: string): Promise<boolean> {
    try {
      const limit = { limit: this.#perMinute, periodNs: 60n * SECOND };
      return (await this.#nodes.once(LimitService.method.check, { key: tenant, name: 'requests', ...limit })).allowed;
    } catch {
      return true;
    }
  }

  // supply sets the stock of what was never sold, and returns what there is. A second one
  // changes nothing: version 0 is that of a counter that does not exist.
  async supply(sku: string, items: bigint): Promise<bigint> {
    const answer = await this.#nodes.untilAnswered(CounterService.method.compareAndSet, {
      key: sku,
      name: 'stock',
      value: items,
      version: 0n,
      idempotencyKey: randomUUID(),
    });
    return answer.current;
  }

  // order sells one, and returns how many it left; null if there is none. The number of the
  // order is the idempotency key: sent again, it has the first answer.
  async order(sku: string, order: string): Promise<bigint | null> {
    const answer = await this.#nodes.untilAnswered(CounterService.method.add, {
      key: sku,
      name: 'stock',
      delta: -1n,
      min: 0n,
      idempotencyKey: order,
    });
    return answer.applied ? answer.value : null;
  }

  async left(sku: string): Promise<bigint> {
    return (await this.#nodes.untilAnswered(CounterService.method.get, { key: sku, name: 'stock' })).value;
  }

  // nightly runs a job for a night, in one of all processes that ask for it, once. It
  // reports whether it was this one.
  async nightly(night: string, job: Job): Promise<boolean> {
    const lock = { key: 'nightly', name: 'job' };
    const ttlNs = BigInt(Math.round(this.#lease * 1_000)) * 1_000_000n;
    const sent = performance.now();
    const held = await this.#nodes.untilAnswered(LockService.method.acquire, {
      ...lock,
      holder: `shop-${process.pid}`,
      ttlNs,
      idempotencyKey: randomUUID(),
    });
    if (!held.acquired || held.ttlNs === 0n) { // 0: granted, but over when the answer came
      return false;
    }
    const lost = new AbortController();
    const done = new AbortController();
    const kept = this.#keep({ ...lock, token: held.token, ttlNs }, sent, lost, done.signal);
    try {
      // Marked before it begins: a job that fails half way is not begun again by itself.
      const marked = await this.#nodes.untilAnswered(CounterService.method.add, {
        key: night,
        name: 'job-done',
        delta: 1n,
        max: 1n,
        idleTtlNs: 48n * 3600n * SECOND,
        idempotencyKey: randomUUID(),
      });
      if (!marked.applied) {
        return false;
      }
      await job(held.token, lost.signal);
      return true;
    } finally {
      done.abort();
      await kept;
      const release = this.#nodes.untilAnswered(
        LockService.method.release,
        { ...lock, token: held.token, idempotencyKey: randomUUID() },
        ATTEMPT,
      );
      await release.catch(() => {}); // else it ends with its lease
    }
  }

  // #keep renews a lock until the job is done. The lease counts from before a request was
  // sent, so it ends here before it ends at the owner.
  async #keep(
    renewal: MessageInitShape<typeof LockService.method.renew.input>,
    sent: number,
    lost: AbortController,
    done: AbortSignal,
  ): Promise<void> {
    const lease = this.#lease * 1_000;
    for (;;) {
      try {
        await sleep(lease / 3, undefined, { signal: done });
      } catch {
        return; // the job is done
      }
      const before = performance.now();
      const left = sent + lease - before;
      const renewed =
        left > 0 && (await this.#nodes.untilAnswered(LockService.method.renew, renewal, left).then((r) => r.renewed, () => false));
      if (!renewed) {
        lost.abort();
        return;
      }
      sent = before;
    }
  }
}

function report(order: string, left: bigint | null): void {
  console.log(`${order}: ${left === null ? 'sold out' : `sold, ${left} left`}`);
}

// rush sells to many customers at a time, each of whom sends an order twice.
async function rush(shop: Shop, sku: string, orders: number): Promise<void> {
  let next = 0;
  async function customer(): Promise<void> {
    while (next < orders) {
      const order = `rush-${next++}`;
      const first = await shop.order(sku, order);
      if ((await shop.order(sku, order)) !== first) {
        throw new Error(`${order} has two answers`);
      }
      report(order, first);
    }
  }
  await Promise.all(Array.from({ length: CUSTOMERS }, customer));
}

async function nightly(shop: Shop, night: string): Promise<void> {
  const here = await shop.nightly(night, async (token, lost) => {
    // What it writes to should refuse a token below the highest that it has seen. A longer
    // job looks at lost between its steps, and stops.
    console.log(lost.aborted ? `${night}: lost` : `${night}: runs under token ${token}`);
  });
  if (!here) {
    console.log(`${night}: not here`);
  }
}

interface Command {
  arguments: number;
  run(shop: Shop, first: string, second: string): Promise<void>;
}

const commands = new Map<string, Command>([
  ['supply', { arguments: 2, run: async (shop, sku, items) => console.log(String(await shop.supply(sku, BigInt(items)))) }],
  ['order', { arguments: 2, run: async (shop, sku, order) => report(order, await shop.order(sku, order)) }],
  ['left', { arguments: 1, run: async (shop, sku) => console.log(String(await shop.left(sku))) }],
  ['rush', { arguments: 2, run: (shop, sku, orders) => rush(shop, sku, Number(orders)) }],
  ['nightly', { arguments: 1, run: (shop, night) => nightly(shop, night) }],
]);

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    target: { type: 'string', default: '127.0.0.1:7400' }, // as gRPC names it: dns:///name:port, ipv4:host:port,…
    tenant: { type: 'string', default: 'shop' },
    'per-minute': { type: 'string', default: '6000' }, // requests of a tenant
    lease: { type: 'string', default: '10' }, // seconds that a lock outlives its holder
  },
});
const [name = '', first = '', second = ''] = positionals;
const command = commands.get(name);
if (command === undefined || positionals.length !== 1 + command.arguments) {
  console.error('usage: shop-typescript supply SKU ITEMS | order SKU ORDER | left SKU | rush SKU ORDERS | nightly NIGHT');
  process.exit(2);
}
const nodes = new Nodes(values.target);
const shop = new Shop(nodes, BigInt(values['per-minute']), Number(values.lease));
try {
  if (await shop.admit(values.tenant)) {
    await command.run(shop, first, second);
  } else {
    console.error(`${values.tenant}: too many requests`);
    process.exitCode = 1;
  }
} finally {
  nodes.close();
}
