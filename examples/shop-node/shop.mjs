// The core of a small web shop on Keystead: a limit for each tenant, stock that is never
// sold twice, orders that may be sent again, and a nightly job that runs once.
//
// README.md in the directory above says how to run it.
import { randomUUID } from 'node:crypto';
import { performance } from 'node:perf_hooks';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

import grpc from '@grpc/grpc-js';
import loader from '@grpc/proto-loader';

const SECOND = 1_000_000_000; // durations are in nanoseconds
const ATTEMPT = 1_000; // milliseconds that one attempt may take
const PATIENCE = 20_000; // milliseconds for all: longer than a failover, shorter than the id window
const PAUSE = 100; // milliseconds between two attempts
const CUSTOMERS = 8; // who order at the same time

// After these nothing happened, or nobody knows: a request with an idempotency key can be
// sent again. All others would be the same the next time.
const AGAIN = new Set([
  grpc.status.UNAVAILABLE,
  grpc.status.UNKNOWN,
  grpc.status.DEADLINE_EXCEEDED,
  grpc.status.RESOURCE_EXHAUSTED,
]);

// once sends a request, and waits for its answer. A deadline is a time of day here: for an
// attempt of a second that does no harm.
function once(client, method, request, milliseconds = ATTEMPT) {
  return new Promise((resolve, reject) => {
    client[method](request, { deadline: Date.now() + milliseconds }, (err, answer) => (err ? reject(err) : resolve(answer)));
  });
}

// untilAnswered sends a request until there is an answer. It must be one that acts once: a
// read, a renewal, or one with an idempotency key.
async function untilAnswered(client, method, request, patience = PATIENCE) {
  const deadline = performance.now() + patience;
  for (;;) {
    try {
      return await once(client, method, request, Math.max(1, Math.min(ATTEMPT, deadline - performance.now())));
    } catch (err) {
      if (!AGAIN.has(err.code) || performance.now() + PAUSE >= deadline) {
        throw err;
      }
    }
    await sleep(PAUSE);
  }
}

class Shop {
  constructor(target, protos, { perMinute, lease }) {
    // longs: a token or a count of 64 bits does not fit in a number, so it is a string, or
    // here a BigInt made of one. keepCase: fields are named as in the .proto files.
    // defaults: a field that is 0, false or empty is there, too.
    const files = ['limit', 'counter', 'lock'].map((noun) => `keystead/${noun}/v1/${noun}.proto`);
    const definition = loader.loadSync(files, { includeDirs: [protos], keepCase: true, longs: String, enums: String, defaults: true });
    const { limit, counter, lock } = grpc.loadPackageDefinition(definition).keystead;
    // All nodes in turn: any of them passes a call on to the owner of its key.
    const options = { 'grpc.service_config': '{"loadBalancingConfig": [{"round_robin": {}}]}' };
    const insecure = grpc.credentials.createInsecure();
    this.limits = new limit.v1.LimitService(target, insecure, options);
    this.counters = new counter.v1.CounterService(target, insecure, options);
    this.locks = new lock.v1.LockService(target, insecure, options);
    this.perMinute = perMinute;
    this.lease = lease; // seconds
  }

  close() {
    for (const client of [this.limits, this.counters, this.locks]) {
      client.close();
    }
  }

  // admit reports whether the tenant may send one more request. Without an answer it may: a
  // shop that is open is worth more than a limit.
  async admit(tenant) {
    try {
      const request = { key: tenant, name: 'requests', limit: this.perMinute, period_ns: 60 * SECOND };
      return (await once(this.limits, 'Check', request)).allowed;
    } catch {
      return true;
    }
  }

  // supply sets the stock of what was never sold, and returns what there is. A second one
  // changes nothing: version 0 is that of a counter that does not exist.
  async supply(sku, items) {
    const request = { key: sku, name: 'stock', value: items, version: 0, idempotency_key: randomUUID() };
    return BigInt((await untilAnswered(this.counters, 'CompareAndSet', request)).current);
  }

  // order sells one, and returns how many it left; null if there is none. The number of the
  // order is the idempotency key: sent again, it has the first answer.
  async order(sku, order) {
    const answer = await untilAnswered(this.counters, 'Add', { key: sku, name: 'stock', delta: -1, min: 0, idempotency_key: order });
    return answer.applied ? BigInt(answer.value) : null;
  }

  async left(sku) {
    return BigInt((await untilAnswered(this.counters, 'Get', { key: sku, name: 'stock' })).value);
  }

  // nightly runs a job for a night, in one of all processes that ask for it, once. It
  // reports whether it was this one.
  async nightly(night, job) {
    const lock = { key: 'nightly', name: 'job' };
    const ttl_ns = Math.round(this.lease * SECOND);
    const sent = performance.now();
    const held = await untilAnswered(this.locks, 'Acquire', { ...lock, holder: `shop-${process.pid}`, ttl_ns, idempotency_key: randomUUID() });
    if (!held.acquired || held.ttl_ns === '0') { // 0: granted, but over when the answer came
      return false;
    }
    const lost = new AbortController();
    const done = new AbortController();
    const kept = this.#keep({ ...lock, token: held.token, ttl_ns }, sent, lost, done.signal);
    try {
      // Marked before it begins: a job that fails half way is not begun again by itself.
      const mark = { key: night, name: 'job-done', delta: 1, max: 1, idle_ttl_ns: 48 * 3600 * SECOND, idempotency_key: randomUUID() };
      if (!(await untilAnswered(this.counters, 'Add', mark)).applied) {
        return false;
      }
      await job(BigInt(held.token), lost.signal);
      return true;
    } finally {
      done.abort();
      await kept;
      const release = { ...lock, token: held.token, idempotency_key: randomUUID() };
      await untilAnswered(this.locks, 'Release', release, ATTEMPT).catch(() => {}); // else it ends with its lease
    }
  }

  // #keep renews a lock until the job is done. The lease counts from before a request was
  // sent, so it ends here before it ends at the owner.
  async #keep(renewal, sent, lost, done) {
    const lease = this.lease * 1_000;
    for (;;) {
      try {
        await sleep(lease / 3, undefined, { signal: done });
      } catch {
        return; // the job is done
      }
      const before = performance.now();
      const left = sent + lease - before;
      const renewed = left > 0 && (await untilAnswered(this.locks, 'Renew', renewal, left).then((r) => r.renewed, () => false));
      if (!renewed) {
        lost.abort();
        return;
      }
      sent = before;
    }
  }
}

function report(order, left) {
  console.log(`${order}: ${left === null ? 'sold out' : `sold, ${left} left`}`);
}

// rush sells to many customers at a time, each of whom sends an order twice.
async function rush(shop, sku, orders) {
  let next = 0;
  async function customer() {
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

async function nightly(shop, night) {
  const here = await shop.nightly(night, async (token, lost) => {
    // What it writes to should refuse a token below the highest that it has seen. A longer
    // job looks at lost between its steps, and stops.
    console.log(lost.aborted ? `${night}: lost` : `${night}: runs under token ${token}`);
  });
  if (!here) {
    console.log(`${night}: not here`);
  }
}

const commands = {
  supply: async (shop, sku, items) => console.log(String(await shop.supply(sku, items))),
  order: async (shop, sku, order) => report(order, await shop.order(sku, order)),
  left: async (shop, sku) => console.log(String(await shop.left(sku))),
  rush: (shop, sku, orders) => rush(shop, sku, Number(orders)),
  nightly: (shop, night) => nightly(shop, night),
};

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    target: { type: 'string', default: '127.0.0.1:7400' }, // as gRPC names it: dns:///name:port, ipv4:host:port,…
    protos: { type: 'string', default: fileURLToPath(new URL('../../proto', import.meta.url)) },
    tenant: { type: 'string', default: 'shop' },
    'per-minute': { type: 'string', default: '6000' }, // requests of a tenant
    lease: { type: 'string', default: '10' }, // seconds that a lock outlives its holder
  },
});
const [name, ...rest] = positionals;
if (!Object.hasOwn(commands, name ?? '') || rest.length !== commands[name].length - 1) {
  console.error('usage: shop-node supply SKU ITEMS | order SKU ORDER | left SKU | rush SKU ORDERS | nightly NIGHT');
  process.exit(2);
}
const shop = new Shop(values.target, values.protos, { perMinute: Number(values['per-minute']), lease: Number(values.lease) });
try {
  if (await shop.admit(values.tenant)) {
    await commands[name](shop, ...rest);
  } else {
    console.error(`${values.tenant}: too many requests`);
    process.exitCode = 1;
  }
} finally {
  shop.close();
}
