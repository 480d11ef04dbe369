// Checks a limit of each key over xDS, with the key in the header that the ring is
// asked by, and prints, a line of JSON for each key, which node it went to (peer) and
// which one decided (owner). With --no-forward a node that is not the owner says so
// instead of passing the call on, and that is an error here.
//
//   node client.mjs --bootstrap FILE [--target xds:///keystead] KEY...
//   node client.mjs --bootstrap FILE - < keys        # one a line
//
// It exits with 1 if any key had no answer, and with 2 if it was asked wrongly.
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

// MAX_KEYS bounds what is asked in one run.
const MAX_KEYS = 100_000;

const options = {
  bootstrap: { type: 'string' }, // file, as GRPC_XDS_BOOTSTRAP names it
  target: { type: 'string', default: 'xds:///keystead' },
  header: { type: 'string', default: 'x-keystead-key' }, // --xds-key-header of the nodes
  protos: { type: 'string', default: fileURLToPath(new URL('../../../proto', import.meta.url)) },
  timeout: { type: 'string', default: '10' }, // seconds for one call, the first connection included
  'in-flight': { type: 'string', default: '64' }, // calls under way; with 1, each node's first call is alone
  'ring-cap': { type: 'string', default: '4096' }, // points that the client's ring may have
  'no-forward': { type: 'boolean', default: false },
};

function wrong(problem) {
  console.error(`client.mjs: ${problem}`);
  process.exit(2);
}

function readArguments() {
  let parsed;
  try {
    parsed = parseArgs({ options, allowPositionals: true });
  } catch (err) {
    wrong(err.message);
  }
  const { values, positionals } = parsed;
  const stdin = positionals.length === 1 && positionals[0] === '-';
  const keys = stdin ? readFileSync(0, 'utf8').split('\n').filter((line) => line !== '') : positionals;
  if (keys.length === 0 || keys.length > MAX_KEYS) {
    wrong(`${keys.length} keys; 1 to ${MAX_KEYS} are allowed`);
  }
  if (values.bootstrap) {
    process.env.GRPC_XDS_BOOTSTRAP = values.bootstrap;
  } else if (!process.env.GRPC_XDS_BOOTSTRAP && !process.env.GRPC_XDS_BOOTSTRAP_CONFIG) {
    wrong('--bootstrap is missing');
  }
  for (const name of ['timeout', 'in-flight', 'ring-cap']) {
    if (!(Number(values[name]) > 0)) {
      wrong(`--${name} ${values[name]}: choose a number above 0`);
    }
  }
  return { ...values, keys };
}

const args = readArguments();

// The packages read the environment when they are loaded.
const { default: grpc } = await import('@grpc/grpc-js');
const { default: loader } = await import('@grpc/proto-loader');
const { default: xds } = await import('@grpc/grpc-js-xds');

xds.register();
const definition = loader.loadSync('keystead/limit/v1/limit.proto', { includeDirs: [args.protos], keepCase: true, longs: String, enums: String });
const { LimitService } = grpc.loadPackageDefinition(definition).keystead.limit.v1;
const client = new LimitService(args.target, grpc.credentials.createInsecure(), { 'grpc.lb.ring_hash.ring_size_cap': Number(args['ring-cap']) });

// check asks for one key, with room for everybody: who decides is what matters.
function check(key) {
  const metadata = new grpc.Metadata();
  metadata.set(args.header, key);
  if (args['no-forward']) {
    metadata.set('x-keystead-no-forward', '1');
  }
  const request = { key, name: 'grpcjs', limit: 1_000_000, period_ns: 1_000_000_000 };
  return new Promise((resolve) => {
    const deadline = new Date(Date.now() + 1000 * Number(args.timeout));
    const call = client.Check(request, metadata, { deadline }, (err, answer) => {
      const line = { key, peer: call.getPeer() };
      if (err) {
        line.error = `${grpc.status[err.code]}: ${err.details}`;
      } else {
        line.owner = answer.owner;
        line.epoch = answer.epoch;
      }
      resolve(line);
    });
  });
}

let next = 0;
let failed = 0;
async function worker() {
  while (next < args.keys.length) {
    const line = await check(args.keys[next++]);
    failed += line.error ? 1 : 0;
    console.log(JSON.stringify(line));
  }
}
await Promise.all(Array.from({ length: Math.min(Number(args['in-flight']), args.keys.length) }, worker));
client.close();
process.exit(failed > 0 ? 1 : 0);
