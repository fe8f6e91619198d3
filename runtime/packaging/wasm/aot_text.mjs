// Replies of a language model in a browser or Node: text to tokens and back, and choosing tokens,
// by the C of aot/text.h in aot_runtime.wasm.
import {AotError, INTERNALS} from './aot_runtime.mjs';

const INFO_BYTES = 48;  // as aot_text.c says
const ENCODE_BYTES = 2;
const DECODER_BYTES = 10;
const SAMPLER_BYTES = 32;
const TENSOR_BYTES = 24;
const PIECE_BYTES = 1024;

/**
 * How tokens are chosen. 0 leaves each out; without a temperature, the most probable one is taken.
 * @typedef {{temperature?: number, topK?: number, topP?: number, minP?: number,
 *            repetitionPenalty?: number, seed?: number | bigint}} Sampling
 */

/** A conversation with a language model, which is kept in the model's state. */
export class Chat {
  #model;
  #engine;
  #program;
  #execute;
  #vocabulary;
  #sampler;
  #roles = new Map();  // name -> the text before and behind a message
  #info;
  #system;
  #most;          // tokens of one call
  #pending = [];  // the last token of a reply that was cut off: not run yet
  #isBusy = false;

  /**
   * Begins a conversation with an empty state; a model has one at a time.
   *
   * @param {import("./aot_runtime.mjs").Model} model
   * @param {Sampling & {system?: string}} [options] and the system message; without it, what the
   *          model's chat template says
   */
  constructor(model, options = {}) {
    const {engine, module, program, execute} = model[INTERNALS];
    this.#model = model;
    this.#execute = execute;
    this.#engine = engine;
    this.#program = program;
    this.#system = options.system;
    this.#most = this.#check();
    this.#sampler = this.#openSampler(options);
    this.#vocabulary =
        this.#made((out) => engine.attempt(2, 'aot_vocabulary_open', module, 0, out));
    this.#readInfo();
    this.reset();
  }

  /** Forgets the conversation but for the system's message. */
  reset() {
    this.#model.reset();
    this.#engine.call('aot_sampler_reset', this.#sampler);
    this.#pending = [];
  }

  /** How many tokens the conversation has. */
  get length() { return this.#count('length'); }

  /** How many it can have. */
  get capacity() { return this.#count('capacity'); }

  /**
   * The reply to a message, in pieces of whole characters.  Between two of them the event loop
   * has a turn; in a worker, the page goes on meanwhile.
   *
   * @param {string} text
   * @param {{maxTokens?: number, signal?: AbortSignal}} [options] the most tokens of the reply, by
   *          default as many as there is room for, and what ends it before
   * @returns {AsyncGenerator<string>}
   */
  async * reply(text, {maxTokens = Infinity, signal} = {}) {
    if (this.#isBusy) throw new AotError('the chat is in the middle of a reply', 'argument');
    this.#isBusy = true;
    const decoder = this.#engine.allocate(DECODER_BYTES + 3);
    try {
      const memory = this.#engine.bytes(decoder, DECODER_BYTES);
      memory.fill(0);
      memory[1] = 1;  // is_begun
      this.#prefill(this.#prompt(text));
      for (let made = 1;; ++made) {
        const token = this.#next();
        if (this.#engine.call('aot_vocabulary_is_end', this.#vocabulary, token) & 1) break;
        this.#pending = [token];
        const piece = this.#decoded(decoder, token);
        if (piece !== '') yield piece;
        await new Promise((resolve) => setTimeout(resolve, 0));
        if (made >= maxTokens || this.length >= this.capacity || signal?.aborted) break;
        this.#run([token]);
        this.#pending = [];
      }
      const count = this.#engine.call('aot_decode_end', decoder, decoder + DECODER_BYTES);
      if (count > 0) yield this.#text(decoder + DECODER_BYTES, count);
    } finally {
      this.#isBusy = false;
      if (!this.#engine.failure) this.#engine.release(decoder);
    }
  }

  /** Gives back what the chat has beside the model. Nothing else can be done with it then. */
  close() {
    if (this.#vocabulary === 0 || this.#engine.failure) return;
    this.#engine.call('aot_sampler_destroy', this.#sampler);
    this.#engine.call('aot_vocabulary_close', this.#vocabulary);
    this.#vocabulary = 0;
  }

  // ---- what is opened ----

  /** How many tokens a call takes. */
  #check() {
    const {inputs, outputs, name} = this.#model;
    const isModel = inputs.length === 1 && inputs[0].dtype === 'i32' &&
        inputs[0].dims.length === 1 && outputs.length === 1 && outputs[0].dtype === 'f32' &&
        outputs[0].dims.length === 2 && this.capacity > 0;
    if (isModel) return Math.min(inputs[0].dims[0].max, this.capacity);
    throw new AotError(
        `entry point "${name}" is no language model's: expected an input, tokens i32[T], an ` +
            'output, logits f32[N, V], and a state that grows',
        'unsupported');
  }

  /** What a call writes to the pointer that it gets. */
  #made(call) {
    const out = this.#engine.allocate(4);
    try {
      call(out);
      return this.#engine.word(out);
    } finally {
      if (!this.#engine.failure) this.#engine.release(out);
    }
  }

  #openSampler({temperature, topK, topP, minP, repetitionPenalty, seed}) {
    const engine = this.#engine;
    const options = engine.allocate(SAMPLER_BYTES);
    const view = engine.view(options, SAMPLER_BYTES);
    [repetitionPenalty, 0, 0, topP, minP, temperature].forEach(
        (number, at) => view.setFloat32(4 * at, number ?? 0, true));
    view.setUint32(4, 0, true);
    view.setUint32(8, topK ?? 0, true);
    view.setBigUint64(24, BigInt.asUintN(64, BigInt(seed ?? 0)), true);
    try {
      return this.#made((out) => engine.attempt(2, 'aot_sampler_create', options, 0, out));
    } finally {
      if (!engine.failure) engine.release(options);
    }
  }

  #readInfo() {
    const engine = this.#engine;
    const info = engine.allocate(INFO_BYTES + 12);
    engine.call('aot_vocabulary_get_info', this.#vocabulary, info);
    const view = engine.view(info, INFO_BYTES);
    const [begin, usual, reply] = [36, 40, 44].map((at) => engine.text(view.getUint32(at, true)));
    this.#info =
        {begin, usual, reply, bos: view.getInt32(4, true), addsBos: view.getUint8(16) !== 0};
    const [name, before, after] = [0, 4, 8].map((at) => info + INFO_BYTES + at);
    for (let index = 0;
         engine.call('aot_vocabulary_get_chat_role', this.#vocabulary, index, name, before, after) &
         1;
         ++index) {
      const [role, ...around] = [name, before, after].map((at) => engine.text(engine.word(at)));
      this.#roles.set(role, around);
    }
    engine.release(info);
  }

  #count(what) { return Number(this.#engine.call(`aot_program_${what}`, this.#program)); }

  // ---- the prompt ----

  /** The tokens of a message; what its writer wrote never names a control token. */
  #prompt(text) {
    const isFirst = this.length === 0;
    if (this.#roles.size === 0) return [...this.#pending, ...this.#encode(text, false, !isFirst)];
    const {begin, usual, reply, bos, addsBos} = this.#info;
    const tokens = isFirst ? this.#encode(begin, true) : [...this.#pending];
    if (isFirst && addsBos && bos >= 0 && tokens[0] !== bos) tokens.unshift(bos);
    if (!isFirst) tokens.push(...this.#encode(this.#role('assistant')[1], true));
    if (isFirst && this.#system === undefined) tokens.push(...this.#encode(usual, true));
    if (isFirst && this.#system !== undefined)
      tokens.push(...this.#message('system', this.#system));
    tokens.push(...this.#message('user', text), ...this.#encode(reply, true));
    return tokens;
  }

  #role(name) {
    const found = this.#roles.get(name);
    if (found !== undefined) return found;
    throw new AotError(
        `the model's chat template knows no message of role "${name}"`, 'unsupported');
  }

  #message(role, text) {
    const [before, after] = this.#role(role);
    return [...this.#encode(before, true), ...this.#encode(text), ...this.#encode(after, true)];
  }

  #encode(text, parsesControl = false, isPart = true) {
    const engine = this.#engine;
    const bytes = new TextEncoder().encode(text);
    for (let capacity = bytes.length + 4;;) {
      const pointer = engine.allocate(bytes.length + ENCODE_BYTES + 4);
      const tokens = engine.allocate(4 * capacity + 4);
      const count = tokens + 4 * capacity;
      const options = pointer + bytes.length;
      engine.bytes(pointer, bytes.length + ENCODE_BYTES).set([
        ...bytes,
        Number(parsesControl),
        Number(isPart),
      ]);
      let needed = 0;
      try {
        engine.view(count, 4).setUint32(0, 0, true);
        engine.attempt(
            6, 'aot_encode', this.#vocabulary, pointer, bytes.length, options, tokens, capacity,
            count);
        return [...new Int32Array(engine.bytes(tokens, 4 * engine.word(count)).slice().buffer)];
      } catch (error) {
        needed = engine.failure ? 0 : engine.word(count);
        if (error.status !== 'capacity' || needed <= capacity) throw error;
      } finally {
        if (!engine.failure) [pointer, tokens].forEach((memory) => engine.release(memory));
      }
      capacity = needed;
    }
  }

  // ---- the reply ----

  #prefill(tokens) {
    const [used, capacity] = [this.length, this.capacity];
    if (tokens.length === 0) throw new AotError('the prompt has no tokens', 'argument');
    if (tokens.length > capacity - used) {
      const inUse = used > 0 ? `, of which ${used} are in use` : '';
      throw new AotError(
          `the prompt is ${tokens.length} tokens, and the context holds ${capacity}${inUse}; ` +
              'shorten it, or compile the model with a longer --context',
          'capacity');
    }
    try {
      this.#run(tokens);
    } catch (error) {
      if (!this.#engine.failure) {
        this.#engine.attempt(2, 'aot_program_rewind', this.#program, BigInt(used));
      }
      throw error;
    }
    tokens.slice(this.#pending.length)
        .forEach((token) => this.#engine.call('aot_sampler_accept', this.#sampler, token));
    this.#pending = [];
  }

  /** Runs tokens, in as many calls as that takes; the last one's logits are the next token's. */
  #run(tokens) {
    for (let at = 0; at < tokens.length; at += this.#most) {
      const data = Int32Array.from(tokens.slice(at, at + this.#most));
      this.#execute({[this.#model.inputs[0].name]: {data, shape: [data.length]}});
    }
  }

  /** The token that the logits of the last run choose. */
  #next() {
    const engine = this.#engine;
    const tensor = engine.allocate(TENSOR_BYTES + 4);
    const out = tensor + TENSOR_BYTES;
    engine.view(tensor, 4).setUint32(0, TENSOR_BYTES, true);
    try {
      engine.attempt(2, 'aot_program_get_output', this.#program, 0, tensor);
      const [dims, data] = [12, 16].map((at) => engine.word(tensor + at));
      const [rows, count] = [0, 8].map((at) => engine.word(dims + at));
      if (rows === 0 || count === 0) {
        const shape = `[${rows}, ${count}]`;
        throw new AotError(
            `the model gave logits of shape ${shape}, expected a row for a token or more`, 'shape');
      }
      const logits = data + 4 * (rows - 1) * count;
      engine.attempt(3, 'aot_sampler_next', this.#sampler, logits, count, out);
      return engine.word(out) | 0;
    } finally {
      if (!engine.failure) engine.release(tensor);
    }
  }

  /** The whole characters that a token ends. */
  #decoded(decoder, token) {
    const engine = this.#engine;
    const memory = engine.allocate(8 + PIECE_BYTES);
    const [place, count, piece] = [memory, memory + 4, memory + 8];
    try {
      engine.view(place, 4).setInt32(0, token, true);
      engine.attempt(
          6, 'aot_decode', this.#vocabulary, decoder, place, 1, piece, PIECE_BYTES, count);
      return this.#text(piece, engine.word(count));
    } finally {
      if (!engine.failure) engine.release(memory);
    }
  }

  #text(pointer, size) {
    return new TextDecoder('utf-8', {ignoreBOM: true})
        .decode(this.#engine.bytes(pointer, size).slice());
  }
}
