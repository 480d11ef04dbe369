// Adds to the counter and checks the limit of one key, as often as it gets answers, and
// says once a second where calls went and who decided, as PORT>OWNER/PARTS (0 parts: it
// is whole), and which failed. Split the key meanwhile, and make it whole:
//
//   node load.mjs --bootstrap FILE [--target xds:///keystead] [--key KEY]
//   node load.mjs --target 127.0.0.1:7400     # no xDS: one node is asked for everything
//
// Each add has a request id and is sent again under it until it is answered. At the end
// the counter has to be the number of adds, and the limit must not have admitted more
// than burst + rate * t. It exits with 1 if that is not so or an add was given up, and
// with 2 if it was asked wrongly. A failed check is only shown.
import { randomBytes } from 'node:crypto';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const TIMEOUT_MS = 2_000; // for one call
const RETRY_MS = 50; // between two attempts of an add
const PATIENCE_MS = 20_000; // after which an add is not sent again
const MAX_TOLD = 20; // errors that are shown in full

const options = {
  bootstrap: { type: 'string' }, // file, as GRPC_XDS_BOOTSTRAP names it
  target: { type: 'string', default: 'xds:///keystead' },
  header: { type: 'string', default: 'x-keystead-key' }, // --xds-key-header of the nodes
  protos: { type: 'string', default: fileURLToPath(new URL('../../../proto', import.meta.url)) },
  key: { type: 'string', default: `load-${randomBytes(4).toString('hex')}` }, // one that nobody has used
  whole: { type: 'string', default: '' }, // another key, to be added to as well
  callers: { type: 'string', default: '16' },
  seconds: { type: 'string', default: '20' },
  limit: { type: 'string', default: '500' }, // tokens a second
  burst: { type: 'string', default: '200' },
};

function wrong(problem) {
  console.error(`load.mjs: ${problem}`);
  process.exit(2);
}

function readArguments() {
  let values;
  try {
    ({ values } = parseArgs({ options }));
  } catch (err) {
    wrong(err.message);
  }
  for (const name of ['callers', 'seconds', 'limit', 'burst']) {
    if (!(Number(values[name]) >= 1)) {
      wrong(`--${name} ${values[name]}: choose a number of 1 or more`);
    }
    values[name] = Number(values[name]);
  }
  if (values.bootstrap) {
    process.env.GRPC_XDS_BOOTSTRAP = values.bootstrap;
  } else if (values.target.startsWith('xds:') && !process.env.GRPC_XDS_BOOTSTRAP && !process.env.GRPC_XDS_BOOTSTRAP_CONFIG) {
    wrong('--bootstrap is missing');
  }
  return values;
}

const args = readArguments();

// The packages read the environment when they are loaded.
const { default: grpc } = await import('@grpc/grpc-js');
const { default: loader } = await import('@grpc/proto-loader');
const { default: xds } = await import('@grpc/grpc-js-xds');

xds.register();
const files = ['keystead/limit/v1/limit.proto', 'keystead/counter/v1/counter.proto'];
const definition = loader.loadSync(files, { includeDirs: [args.protos], keepCase: true, longs: String, enums: String, defaults: true });
const { limit, counter } = grpc.loadPackageDefinition(definition).keystead;
const { LimitService, CounterService } = { ...limit.v1, ...counter.v1 };
const limits = new LimitService(args.target, grpc.credentials.createInsecure());
const counters = new CounterService(args.target, grpc.credentials.createInsecure());

const told = new Set(); // errors that were shown
let second = {}; // what calls came to, since the last line
const total = {};

function count(what) {
  second[what] = (second[what] ?? 0) + 1;
  total[what] = (total[what] ?? 0) + 1;
}

// call resolves to the answer, or to undefined if there was none.
function call(kind, client, method, request) {
  const metadata = new grpc.Metadata();
  metadata.set(args.header, request.key);
  return new Promise((resolve) => {
    const c = client[method](request, metadata, { deadline: new Date(Date.now() + TIMEOUT_MS) }, (err, answer) => {
      if (!err) {
        count(`${kind} ${c.getPeer().split(':').pop()}>${answer.owner}/${answer.parts}`);
        resolve(answer);
        return;
      }
      count(`${kind} ${grpc.status[err.code]}`);
      const text = `${kind} ${grpc.status[err.code]}: ${err.details}`;
      if (told.size < MAX_TOLD && !told.has(text)) {
        told.add(text);
        console.log(`  ${text}`);
      }
      resolve(undefined);
    });
  });
}

const sums = { added: 0, givenUp: 0, longest: 0, admitted: 0, refused: 0 };

// add is one operation of a client that has no other one under way.
async function add(client, sequence) {
  const began = performance.now();
  for (let age = 0; age < PATIENCE_MS; age = performance.now() - began) {
    const id = { client, sequence, settled: sequence, age_ns: Math.round(age * 1e6) };
    if (await call('add', counters, 'Add', { key: args.key, delta: 1, request_id: id })) {
      sums.added++;
      sums.longest = Math.max(sums.longest, performance.now() - began);
      return;
    }
    await new Promise((done) => { setTimeout(done, RETRY_MS); });
  }
  sums.givenUp++;
}

async function check() {
  const answer = await call('check', limits, 'Check', { key: args.key, limit: args.limit, burst: args.burst, period_ns: 1_000_000_000 });
  if (answer) {
    sums[answer.allowed ? 'admitted' : 'refused']++;
  }
}

const began = performance.now();
const took = () => (performance.now() - began) / 1000;
const shows = setInterval(() => {
  console.log(`${took().toFixed(1)} s  ${Object.entries(second).sort().map(([what, n]) => `${what} ${n}`).join('  ')}`);
  second = {};
}, 1000);

async function caller() {
  const client = randomBytes(16);
  for (let sequence = 1; took() < args.seconds; sequence++) {
    await add(client, sequence);
    await check();
    if (args.whole) {
      await call('whole', counters, 'Add', { key: args.whole, delta: 1 });
    }
  }
}
await Promise.all(Array.from({ length: args.callers }, caller));
clearInterval(shows);
const most = Math.floor(args.burst + args.limit * took());
const got = await call('get', counters, 'Get', { key: args.key });
console.log(JSON.stringify({ key: args.key, ...total }, null, 2));
console.log(`counter: ${got?.value} after ${sums.added} adds, ${sums.givenUp} given up, the longest ${sums.longest.toFixed(0)} ms`);
console.log(`limit: ${sums.admitted} admitted of at most ${most}, ${sums.refused} refused`);
process.exit(sums.givenUp > 0 || sums.admitted > most || Number(got?.value) !== sums.added ? 1 : 0);
