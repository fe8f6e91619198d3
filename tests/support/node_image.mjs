// Runs kernels of a linked code image, as tests/support/node.py writes them, in memory of its own.
//
//   node node_image.mjs IMAGE.wasm JOBS.json IN OUT
//
// A job: the function's number in the image, the grid, and the sizes of constants, arena, inputs,
// outputs, parameters and scratch; IN has the bytes of all but scratch, job after job. OUT gets the
// arena's bytes and the outputs' of each.
import {readFileSync, writeFileSync} from 'node:fs';

const [imagePath, jobsPath, inPath, outPath] = process.argv.slice(2);
const image = readFileSync(imagePath);
const jobs = JSON.parse(readFileSync(jobsPath));
const given = readFileSync(inPath);

const PAGE = 65536;
const STACK_BYTES = 2 * PAGE;
const POISON = 0xa5;
const up = (size, step) => Math.ceil(size / step) * step;

const imageAt = STACK_BYTES;
const first = up(imageAt + image.length, PAGE);
const most =
    Math.max(...jobs.map(({sizes}) => sizes.reduce((sum, size) => sum + up(size, 64) + 128, 0)));
const memory = new WebAssembly.Memory({initial: (first + up(most + 64, PAGE)) / PAGE});
const bytes = new Uint8Array(memory.buffer);
bytes.set(image, imageAt);
const module = new WebAssembly.Module(image);
const table = new WebAssembly.Table({element: 'anyfunc', initial: jobs.length + 1});
const global = (value, mutable = false) => new WebAssembly.Global({value: 'i32', mutable}, value);
const env = {
  memory,
  __indirect_function_table: table,
  __stack_pointer: global(STACK_BYTES, true),
  __memory_base: global(imageAt),
  __table_base: global(1),
};
new WebAssembly.Instance(module, {env});

const fail = (number, message) => {
  console.error(`job ${number}: ${message}`);
  process.exit(3);
};
const CONSTANTS = 0, ARENA = 1, INPUTS = 2, OUTPUTS = 3, PARAMS = 4;
const out = [];
let read = 0;
for (const [number, {kernel, grid, sizes}] of jobs.entries()) {
  // Buffers end at multiples of 64, poison before and behind them; another one at each job ends
  // where all memory does, behind which an access is a fault.
  bytes.fill(POISON, first);
  const places = [];
  let end = bytes.length;
  for (const at of sizes.keys()) {
    const buffer = (at + number) % sizes.length;
    places[buffer] = end - sizes[buffer];
    end = (places[buffer] & ~63) - 64;
  }
  const before = sizes.slice(0, PARAMS + 1).map((size) => given.subarray(read, (read += size)));
  before.forEach((data, buffer) => bytes.set(data, places[buffer]));
  const dispatch = end - 64;
  const view = new DataView(memory.buffer);
  places.forEach((place, buffer) => view.setUint32(dispatch + 4 * buffer, place, true));
  const call = table.get(1 + kernel);
  try {
    for (let z = 0; z < grid[2]; ++z)
      for (let y = 0; y < grid[1]; ++y)
        for (let x = 0; x < grid[0]; ++x)
          call(dispatch, x, y, z);
  } catch (error) {
    fail(number, error.message);
  }
  const after = sizes.map((size, buffer) => bytes.slice(places[buffer], places[buffer] + size));
  for (const buffer of [CONSTANTS, INPUTS, PARAMS]) {
    if (Buffer.compare(before[buffer], after[buffer]) !== 0)
      fail(number, 'it wrote to what is only read');
  }
  // All that is no buffer is as it was.
  places.forEach((place, buffer) => bytes.fill(POISON, place, place + sizes[buffer]));
  bytes.fill(POISON, dispatch, dispatch + 24);
  if (!bytes.subarray(first).every((byte) => byte === POISON))
    fail(number, 'it wrote between buffers');
  out.push(after[ARENA], after[OUTPUTS]);
}
writeFileSync(outPath, Buffer.concat(out));
