// Loads a packaged model in a browser or Node, on any thread, and runs it.
//
// The runtime is C, compiled to aot_runtime.wasm; a model's kernels are a module of their own
// inside its .aotm file, which shares the runtime's memory.  This file brings them together, and
// turns typed arrays into tensors and back.  What a shape or a program may be, the runtime says.

/**
 * A tensor: elements in row-major order.
 * @typedef {{data: ArrayBufferView, shape: readonly number[]}} Tensor
 *
 * An input or output as the model declares it; an extent is null where it is open, and then lies
 * between `min` and `max` (Infinity: no bound), and `text` is what the model calls it.  Elements
 * of one with `strings` are the numbers of these; a string that is none of them is any negative
 * number, another one for each.
 * @typedef {{name: string, dtype: string,
 *            dims: readonly {extent: number | null, min: number, max: number, text: string}[],
 *            strings: readonly string[] | null}}
 * Info
 *
 * Where bytes come from: a URL, a response of fetch, or the bytes.
 * @typedef {string | URL | Response | ArrayBuffer | ArrayBufferView} Source
 */

/** What goes wrong with a model, its inputs or this engine; `status` is a word to decide by. */
export class AotError extends Error {
  constructor(message, status, options) {
    super(message, options);
    this.name = 'AotError';
    this.status = status;
  }
}

/** Where aot_text.mjs finds what a model is made of; not for apps. */
export const INTERNALS = Symbol('internals');

const INTERFACE = 2;  // AOT_WASM_INTERFACE of aot_wasm.h
const ERROR_BYTES = 512;
const OPTIONS_BYTES = 16;  // the first fields of aot_program_options_t
const TENSOR_BYTES = 24;
const DIM_INFO_BYTES = 32;
const CODE_BYTES = 12;
const DIM_BYTES = 8;
const NO_SUCH_FUNCTION = 52;    // WASI's ENOSYS
const MOST_BYTES = 0xffff0000;  // of memory, a page less than there can be

// By aot_dtype_t: name, the arrays that hold its elements; the first is what outputs are.
// f16 and bf16 are given and returned as their bits.
const DTYPES = [
  ['f32', Float32Array],
  ['f16', Uint16Array, globalThis.Float16Array],
  ['f64', Float64Array],
  ['i8', Int8Array],
  ['i16', Int16Array],
  ['i32', Int32Array],
  ['i64', BigInt64Array],
  ['u8', Uint8Array, Uint8ClampedArray],
  ['u16', Uint16Array],
  ['u32', Uint32Array],
  ['u64', BigUint64Array],
  ['bool', Uint8Array],
  ['bf16', Uint16Array],
].map(([name, ...arrays]) => ({name, arrays: arrays.filter(Boolean)}));

// ---- bytes from anywhere ----

const isBytes = (source) =>
    ArrayBuffer.isView(source) || Object.prototype.toString.call(source) === '[object ArrayBuffer]';
const asBytes = (source) => ArrayBuffer.isView(source) ?
    new Uint8Array(source.buffer, source.byteOffset, source.byteLength) :
    new Uint8Array(source);
// Node loads what `Response` is when it is first named: not for files.
const isResponse = (source) => typeof source === 'object' && !(source instanceof URL) &&
    typeof Response !== 'undefined' && source instanceof Response;
const named = (response) => response.url || 'the response';
const failed = (what, cause) =>
    new AotError(`cannot read ${what}: ${cause?.message ?? cause}`, 'io', {cause});

/** An absolute URL where that is known; else what was given, which fetch resolves. */
function locate(source) {
  try {
    return new URL(source, globalThis.location?.href);
  } catch {
    return source;
  }
}

async function openResponse(source) {
  if (isResponse(source) && source.bodyUsed) {
    throw new AotError('the response\'s body was read before', 'argument');
  }
  let response = source;
  if (!isResponse(source)) {
    try {
      response = await fetch(source);
    } catch (cause) {
      throw failed(String(source), cause);
    }
  }
  if (response.ok) return response;
  throw new AotError(`cannot read ${named(response)}: status ${response.status}`, 'io');
}

const isFile = (url) =>
    url instanceof URL && url.protocol === 'file:' && typeof globalThis.process !== 'undefined';
const nodeFiles = () => import(/* webpackIgnore: true */ /* @vite-ignore */ 'node:fs/promises');

/**
 * Bytes of a source, in memory that `reserve(count)` gives: a function from a chunk's place and
 * length to where it goes.  Chunks are put there as they come, so that nothing is held twice.
 */
async function readInto(source, expected, reserve) {
  if (isBytes(source)) {
    const bytes = asBytes(source);
    const place = reserve(bytes.length);
    place(0, bytes.length).set(bytes);
    return;
  }
  const url = isResponse(source) ? source : locate(source);
  if (isFile(url)) return readFile(url, reserve);
  const response = await openResponse(url);
  if (expected === undefined || !response.body) {
    let bytes;
    try {
      bytes = new Uint8Array(await response.arrayBuffer());
    } catch (cause) {
      throw failed(named(response), cause);
    }
    reserve(bytes.length)(0, bytes.length).set(bytes);
    return;
  }
  await readStream(response, expected, reserve(expected));
}

async function readStream(response, expected, place) {
  const reader = response.body.getReader();
  let count = 0;
  try {
    for (;;) {
      const {done, value} = await reader.read();
      if (done) break;
      if (value.length > expected - count) throw new Error(`it is longer than ${expected} bytes`);
      place(count, value.length).set(value);
      count += value.length;
    }
    if (count !== expected) throw new Error(`it ends at byte ${count} of ${expected}`);
  } catch (cause) {
    reader.cancel().catch(() => {});
    throw failed(named(response), cause);
  }
}

async function readFile(url, reserve) {
  const {open} = await nodeFiles();
  let file;
  try {
    file = await open(url);
    const {size} = await file.stat();
    const place = reserve(size);
    for (let at = 0; at < size;) {
      const {bytesRead} =
          await file.read(place(at, size - at), 0, Math.min(size - at, 1 << 24), at);
      if (bytesRead === 0) throw new Error(`it ends at byte ${at} of ${size}`);
      at += bytesRead;
    }
  } catch (cause) {
    throw cause instanceof AotError ? cause : failed(url.pathname, cause);
  } finally {
    await file?.close();
  }
}

/** The runtime's instance; compiled while it comes in, where the engine and the server can. */
async function instantiate(source, imports) {
  if (source instanceof WebAssembly.Module) return WebAssembly.instantiate(source, imports);
  if (isBytes(source)) return (await WebAssembly.instantiate(source, imports)).instance;
  const url = isResponse(source) ? source : locate(source);
  if (isFile(url)) {
    let bytes;
    await readInto(url, undefined, (size) => {
      bytes = new Uint8Array(size);
      return (at, count) => bytes.subarray(at, at + count);
    });
    return (await WebAssembly.instantiate(bytes, imports)).instance;
  }
  const response = await openResponse(url);
  const type = response.headers.get('content-type') ?? '';
  if (WebAssembly.instantiateStreaming && /^application\/wasm\s*$/i.test(type)) {
    return (await WebAssembly.instantiateStreaming(response, imports)).instance;
  }
  return (await WebAssembly.instantiate(await response.arrayBuffer(), imports)).instance;
}

// ---- the runtime ----

/** One instance of the runtime with one module in it: memory, calls, and their errors. */
class Engine {
  #exports;
  #error;
  #bases = new Map();  // of code images, by their addresses: where their functions are in the table
  failure = null;      // what ended a call in the middle; nothing can be trusted after that

  static async create(source) {
    const engine = new Engine();
    const imports = {
      aot: {table_base: (code) => engine.#bases.get(code >>> 0) ?? 0},
      // A C library may name functions of a system, all of which fail: the runtime calls none.
      wasi_snapshot_preview1: new Proxy({}, {get: () => () => NO_SUCH_FUNCTION}),
    };
    let instance;
    try {
      instance = await instantiate(source, imports);
    } catch (cause) {
      if (cause instanceof AotError) throw cause;
      throw new AotError(
          `cannot start the runtime: ${cause?.message ?? cause}`, 'unsupported', {cause});
    }
    engine.#exports = instance.exports;
    instance.exports._initialize?.();
    if (instance.exports.aot_wasm_interface?.() !== INTERFACE) {
      throw new AotError(
          'aot_runtime.wasm and aot_runtime.mjs are of different versions', 'version');
    }
    engine.#error = engine.allocate(ERROR_BYTES);
    return engine;
  }

  /**
   * Calls a function of the runtime that can't fail; addresses it returns are unsigned, and numbers
   * of 64 bits are BigInts.
   */
  call(name, ...values) {
    if (this.failure)
      throw new AotError(`the model is broken since: ${this.failure.message}`, 'device');
    try {
      const found = this.#exports[name](...values);
      return typeof found === 'bigint' ? BigInt.asUintN(64, found) : found >>> 0;
    } catch (cause) {
      this.failure = cause;
      throw new AotError(
          `${name} was ended by the engine: ${cause?.message ?? cause}`, 'device', {cause});
    }
  }

  /** The same of a function that returns a status; its error's place is put in at `errorAt`. */
  attempt(errorAt, name, ...values) {
    values.splice(errorAt, 0, this.#error);
    const status = this.call(name, ...values);
    if (status === 0) return;
    throw new AotError(this.text(this.#error + 4), this.text(this.call('aot_status_name', status)));
  }

  allocate(size) {
    // Numbers that a word does not hold would lose their upper bits.
    const pointer = size <= MOST_BYTES ? this.call('aot_wasm_allocate', size) : 0;
    if (pointer === 0) throw new AotError(`out of memory: ${size} bytes`, 'memory');
    return pointer;
  }

  release(pointer) { this.call('aot_wasm_release', pointer); }

  // Views are made anew each time: memory that grows takes the old ones away.

  bytes(pointer, size) { return new Uint8Array(this.#exports.memory.buffer, pointer, size); }

  view(pointer, size) { return new DataView(this.#exports.memory.buffer, pointer, size); }

  word(pointer) { return this.view(pointer, 4).getUint32(0, true); }

  /** A C string. */
  text(pointer) {
    const memory = new Uint8Array(this.#exports.memory.buffer);
    return new TextDecoder().decode(memory.slice(pointer, memory.indexOf(0, pointer)));
  }

  /** A C string's place; *owned*. */
  allocateText(text) {
    const bytes = new TextEncoder().encode(text);
    const pointer = this.allocate(bytes.length + 1);
    this.bytes(pointer, bytes.length + 1).set([...bytes, 0]);
    return pointer;
  }

  /** Opens the module in memory; gives its address. */
  open(data, size) {
    const out = this.allocate(4);
    this.attempt(3, 'aot_module_open_memory', data, size, 0, out);
    const module = this.word(out);
    this.release(out);
    return module;
  }

  /** Makes a variant's code functions of the table. */
  async link(module, variant) {
    const out = this.allocate(CODE_BYTES);
    this.attempt(2, 'aot_wasm_get_code', module, variant, out);
    const [code, size, count] = [0, 4, 8].map((at) => this.word(out + at));
    this.release(out);
    if (count === 0) return;
    const {memory, __indirect_function_table: table, __stack_pointer} = this.#exports;
    const base = table.grow(count);
    const env = {
      memory,
      __indirect_function_table: table,
      __stack_pointer,
      __memory_base: new WebAssembly.Global({value: 'i32'}, code | 0),
      __table_base: new WebAssembly.Global({value: 'i32'}, base),
    };
    await WebAssembly.instantiate(this.bytes(code, size).slice(), {env});
    this.#bases.set(code, base);
  }
}

/** Links the first variant that this engine runs; gives its number. */
async function linkAny(engine, module) {
  const count = engine.call('aot_module_variant_count', module);
  const refusals = [];
  for (let variant = 0; variant < count; ++variant) {
    const target = engine.text(engine.call('aot_module_variant_target', module, variant));
    try {
      await engine.link(module, variant);
      return {variant, target};
    } catch (cause) {
      if (engine.failure || cause?.status === 'checksum') throw cause;
      refusals.push(`${target}: ${cause?.message ?? cause}`);
    }
  }
  throw new AotError(`no variant of the model runs here: ${refusals.join('; ')}`, 'unsupported');
}

// ---- tensors ----

const quoted = (name) => JSON.stringify(name);
const listed = (names) => names.map(quoted).join(', ') || 'none';
const shapeText = (info) =>
    `[${info.dims.map((d) => (d.extent === null ? d.text || '?' : d.extent)).join(', ')}]`;

function readInfo(engine, pointer) {
  const [name, dtype, rank, dims, strings, count] =
      [0, 4, 8, 12, 16, 20].map((at) => engine.word(pointer + at));
  const found = [];
  for (let axis = 0; axis < rank; ++axis) {
    const view = engine.view(dims + axis * DIM_INFO_BYTES, DIM_INFO_BYTES);
    const [extent, min, max] = [0, 8, 16].map((at) => Number(view.getBigInt64(at, true)));
    const text = engine.text(view.getUint32(24, true));
    const range = extent < 0 ? {extent: null, min, max: max < 0 ? Infinity : max} :
                               {extent, min: extent, max: extent};
    found.push(Object.freeze({...range, text}));
  }
  const texts = strings ?
      Object.freeze(
          Array.from({length: count}, (_, i) => engine.text(engine.word(strings + 4 * i)))) :
      null;
  return Object.freeze({
    name: engine.text(name),
    dtype: DTYPES[dtype].name,
    dims: Object.freeze(found),
    strings: texts,
  });
}

/** Own properties by name; an object's other ones are none of the caller's. */
function namedValues(what, values, infos) {
  if (values === null || typeof values !== 'object' || ArrayBuffer.isView(values)) {
    throw new AotError(`${what} must be an object with a property for each input`, 'argument');
  }
  const found = new Map(Object.entries(values));
  const names = infos.map((info) => info.name);
  for (const name of found.keys()) {
    if (!names.includes(name)) {
      throw new AotError(
          `there is no input ${quoted(name)}: inputs are ${listed(names)}`, 'not_found');
    }
  }
  return found;
}

/** A tensor of what the caller gave for an input. */
function readTensor(info, given, shape) {
  const where = `input ${quoted(info.name)}`;
  const {arrays} = DTYPES.find((dtype) => dtype.name === info.dtype);
  const wanted = arrays.map((array) => array.name).join(' or ');
  let data = given;
  if (given !== null && typeof given === 'object' && !ArrayBuffer.isView(given)) {
    data = given.data;
    shape = shape ?? given.shape;
  }
  if (!ArrayBuffer.isView(data) || data instanceof DataView) {
    throw new AotError(`${where}: expected ${wanted}, or {data, shape} with one`, 'dtype');
  }
  // By name: an array of another window or worker is as good.
  const kind = data[Symbol.toStringTag];
  if (!arrays.some((array) => array.name === kind)) {
    throw new AotError(`${where}: expected ${wanted} for ${info.dtype}, found ${kind}`, 'dtype');
  }
  return {data, shape: readShape(info, shape, data.length)};
}

function readShape(info, given, count) {
  const where = `input ${quoted(info.name)}`;
  if (given === undefined) {
    if (info.dims.some((dim) => dim.extent === null)) {
      throw new AotError(
          `${where}: its shape ${shapeText(info)} is open: give {data, shape}`, 'shape');
    }
    given = info.dims.map((dim) => dim.extent);
  }
  if (!Array.isArray(given) && !ArrayBuffer.isView(given)) {
    throw new AotError(`${where}: its shape must be an array of numbers`, 'shape');
  }
  const shape =
      Array.from(given, (extent) => (typeof extent === 'bigint' ? Number(extent) : extent));
  if (!shape.every((extent) => Number.isSafeInteger(extent) && extent >= 0)) {
    throw new AotError(
        `${where}: its shape [${shape.map(String).join(', ')}] has an extent that is no count`,
        'shape');
  }
  if (shape.length !== info.dims.length) {
    throw new AotError(
        `${where}: expected shape ${shapeText(info)}, found [${shape.join(', ')}]`, 'shape');
  }
  const size = shape.reduce((product, extent) => product * extent, 1);
  if (size !== count) {
    throw new AotError(
        `${where}: shape [${shape.join(', ')}] has ${size} elements, its data ${count}`, 'shape');
  }
  return shape;
}

// ---- models ----

/** An input's place in the runtime's memory, which grows with what it has to hold. */
class InputMemory {
  #engine;
  #data = 0;
  #capacity = 0;
  #tensor;  // an aot_tensor_t, and its dims behind it

  constructor(engine, rank) {
    this.#engine = engine;
    this.#tensor = engine.allocate(TENSOR_BYTES + rank * DIM_BYTES);
  }

  /** Copies a tensor here; gives the place of the aot_tensor_t. */
  set(dtype, {data, shape}) {
    const engine = this.#engine;
    const size = data.byteLength;
    if (size > this.#capacity || this.#data === 0) {
      const larger = engine.allocate(size);
      if (this.#data !== 0) engine.release(this.#data);
      [this.#data, this.#capacity] = [larger, size];
    }
    const target = engine.bytes(this.#data, size);
    target.set(asBytes(data));
    if (DTYPES[dtype].name === 'bool')
      target.forEach((value, at) => (target[at] = value === 0 ? 0 : 1));
    const dims = this.#tensor + TENSOR_BYTES;
    const view = engine.view(this.#tensor, TENSOR_BYTES + shape.length * DIM_BYTES);
    [TENSOR_BYTES, dtype, shape.length, dims, this.#data, size].forEach(
        (word, at) => view.setUint32(4 * at, word, true));
    shape.forEach(
        (extent, axis) => view.setBigInt64(TENSOR_BYTES + axis * DIM_BYTES, BigInt(extent), true));
    return this.#tensor;
  }

  free() {
    if (this.#data !== 0) this.#engine.release(this.#data);
    this.#engine.release(this.#tensor);
  }
}

/** An entry point of a loaded model, with its own state. */
export class Model {
  #engine;
  #shared;  // module, variant, target, entries
  #program;
  #memories;
  #result;

  /** Use `load` of a model's own file, or `entry` of another. */
  constructor(engine, shared, entry) {
    this.#engine = engine;
    this.#shared = shared;
    const options = engine.allocate(OPTIONS_BYTES);
    const [name, target] = [entry, shared.target].map((text) => engine.allocateText(text));
    const out = engine.allocate(4);
    engine.bytes(options, OPTIONS_BYTES).fill(0);
    [OPTIONS_BYTES, name, target].forEach(
        (word, at) => engine.view(options, OPTIONS_BYTES).setUint32(4 * at, word, true));
    try {
      engine.attempt(2, 'aot_program_create', shared.module, options, out);
      this.#program = engine.word(out);
    } finally {
      if (!engine.failure)
        [options, name, target, out].forEach((pointer) => engine.release(pointer));
    }
    /** The entry point's name. @type {string} */
    this.name = entry;
    /** @type {readonly Info[]} */
    this.inputs = this.#infos('input');
    /** @type {readonly Info[]} */
    this.outputs = this.#infos('output');
    this.#memories = this.inputs.map((info) => new InputMemory(engine, info.dims.length));
    this.#result = engine.allocate(TENSOR_BYTES);
    engine.view(this.#result, 4).setUint32(0, TENSOR_BYTES, true);
  }

  get[INTERNALS]() {
    this.#alive();
    const execute = (inputs) => this.#execute(inputs, {});
    return {engine: this.#engine, module: this.#shared.module, program: this.#program, execute};
  }

  /** Names of the model's entry points. */
  get entries() { return this.#shared.entries; }

  /** Facts about the model by key, such as author or license. @type {Record<string, string>} */
  get metadata() { return this.#shared.metadata; }

  /** The target whose code runs. */
  get target() { return this.#shared.target; }

  /** Another entry point, or the same with a state of its own; weights and code are shared. */
  entry(name) {
    this.#alive();
    return new Model(this.#engine, this.#shared, checkEntry(name, this.entries));
  }

  /**
   * Runs the model once, on the calling thread.
   *
   * @param {Record<string, ArrayBufferView | Tensor>} inputs every input by its name
   * @param {{shapes?: Record<string, readonly number[]>}} [options] shapes of inputs that are open
   * @returns {Record<string, Tensor>} every output by its name; a copy, the caller's
   */
  run(inputs, options = {}) {
    this.#execute(inputs, options);
    return Object.fromEntries(
        this.outputs.map((info, index) => [info.name, this.#output(info, index)]));
  }

  #execute(inputs, options) {
    this.#alive();
    const given = namedValues('inputs', inputs, this.inputs);
    const shapes = namedValues('shapes', options?.shapes ?? {}, this.inputs);
    const missing = this.inputs.filter((info) => !given.has(info.name));
    if (missing.length > 0) {
      throw new AotError(
          `input ${listed(missing.map((info) => info.name))} is not given`, 'not_ready');
    }
    const tensors =
        this.inputs.map((info) => readTensor(info, given.get(info.name), shapes.get(info.name)));
    tensors.forEach((tensor, index) => {
      const dtype = DTYPES.findIndex(({name}) => name === this.inputs[index].dtype);
      const place = this.#memories[index].set(dtype, tensor);
      this.#engine.attempt(3, 'aot_program_set_input', this.#program, index, place);
    });
    this.#engine.attempt(1, 'aot_program_run', this.#program);
  }

  /** Makes what the model keeps between runs what it was at first. */
  reset() {
    this.#alive();
    this.#engine.attempt(1, 'aot_program_reset', this.#program);
  }

  /** Gives back its memory. Nothing else can be done with it then. */
  close() {
    if (this.#program === 0) return;
    const program = this.#program;
    this.#program = 0;
    if (this.#engine.failure) return;
    this.#engine.call('aot_program_destroy', program);
    this.#memories.forEach((memory) => memory.free());
    this.#engine.release(this.#result);
  }

  #alive() {
    if (this.#program === 0) throw new AotError('the model is closed', 'argument');
  }

  #infos(kind) {
    const count = this.#engine.call(`aot_program_${kind}_count`, this.#program);
    const infos = Array.from(
        {length: count},
        (_, index) => readInfo(
            this.#engine, this.#engine.call(`aot_program_${kind}_info`, this.#program, index)),
    );
    return Object.freeze(infos);
  }

  #output(info, index) {
    const engine = this.#engine;
    engine.attempt(2, 'aot_program_get_output', this.#program, index, this.#result);
    const [rank, dims, data, size] = [8, 12, 16, 20].map((at) => engine.word(this.#result + at));
    const view = engine.view(dims, rank * DIM_BYTES);
    const shape =
        Array.from({length: rank}, (_, axis) => Number(view.getBigInt64(axis * DIM_BYTES, true)));
    const [array] = DTYPES.find(({name}) => name === info.dtype).arrays;
    return {data: new array(engine.bytes(data, size).slice().buffer), shape};
  }
}

function checkEntry(name, entries) {
  if (entries.includes(name)) return name;
  throw new AotError(
      `there is no entry point ${quoted(String(name))}: they are ${listed(entries)}`, 'not_found');
}

/**
 * Loads a module file; what `load` of a packaged model's own file calls.
 *
 * @param {{module: Source, moduleBytes?: number, runtime: Source | WebAssembly.Module,
 *          entry?: string}} options where the module and aot_runtime.wasm are, the module's size
 *          where it is known, and the entry point, by default the first
 * @returns {Promise<Model>}
 */
export async function loadModule({module: source, moduleBytes, runtime, entry}) {
  const engine = await Engine.create(runtime);
  let data = 0;
  let size = 0;
  await readInto(source, moduleBytes, (count) => {
    [data, size] = [engine.allocate(count), count];
    return (at, length) => engine.bytes(data + at, length);
  });
  const module = engine.open(data, size);
  const {variant, target} = await linkAny(engine, module);
  const entries = [];
  for (let name;
       (name = engine.call('aot_wasm_entry_name', module, variant, entries.length)) !== 0;) {
    entries.push(engine.text(name));
  }
  const fact = (what, number) =>
      engine.text(engine.call(`aot_module_metadata_${what}`, module, number));
  const count = engine.call('aot_module_metadata_count', module);
  const metadata = Object.fromEntries(
      Array.from({length: count}, (_, number) => [fact('key', number), fact('value', number)]));
  const shared = Object.freeze(
      {module, target, entries: Object.freeze(entries), metadata: Object.freeze(metadata)});
  return new Model(engine, shared, checkEntry(entry ?? entries[0], entries));
}
