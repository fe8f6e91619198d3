// Runs calls of a packaged model, as tests/support/node.py writes them, and writes what they give.
//
//   node node_runner.mjs MODEL.mjs CALLS.json FOLDER
//
// FOLDER has in.bin, the inputs' bytes; out.bin and out.json are written there.
import {readFileSync, writeFileSync} from 'node:fs';
import {join} from 'node:path';
import {pathToFileURL} from 'node:url';

const [loader, callsPath, folder] = process.argv.slice(2);
const {load} = await import(pathToFileURL(loader));
const {calls} = JSON.parse(readFileSync(callsPath));
const bytes = readFileSync(join(folder, 'in.bin'));
const ARRAYS = {
  Float32Array,
  Float64Array,
  Int8Array,
  Int16Array,
  Int32Array,
  BigInt64Array,
  Uint8Array,
  Uint16Array,
  Uint32Array,
  BigUint64Array
};

// The runtime's memory, which nothing else tells: the first instance that exports one has it.
let memory = null;
const instantiate = WebAssembly.instantiate;
WebAssembly.instantiate = async (...given) => {
  const made = await instantiate.apply(WebAssembly, given);
  memory ??= (made.instance ?? made).exports.memory ?? null;
  return made;
};

const model = await load();
const found = [];
const chunks = [];
let place = 0;
let [name, program] = [null, null];
for (const call of calls) {
  // calls of one entry point that follow each other share its state
  const entry = call.entry ?? model.name;
  if (entry !== name) {
    program?.close();
    [name, program] = [entry, model.entry(entry)];
  }
  const inputs = {};
  for (const {name, array, shape, at, size} of call.inputs) {
    inputs[name] = {
      data: new ARRAYS[array](new Uint8Array(bytes.subarray(at, at + size)).buffer),
      shape
    };
  }
  try {
    const outputs = program.run(inputs);
    const given = [];
    for (const [name, {data, shape}] of Object.entries(outputs)) {
      given.push({name, array: data.constructor.name, shape, at: place, size: data.byteLength});
      chunks.push(new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
      place += data.byteLength;
    }
    found.push({outputs: given, target: program.target, memory: memory?.buffer.byteLength ?? 0});
  } catch (error) {
    if (error.name !== 'AotError') throw error;
    found.push({status: error.status, message: error.message});
  }
}
writeFileSync(join(folder, 'out.bin'), Buffer.concat(chunks));
writeFileSync(join(folder, 'out.json'), JSON.stringify(found));
