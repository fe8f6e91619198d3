// Replies of a language model in a browser or Node: text to tokens and back, and choosing tokens,
// by the C of aot/text.h in aot_runtime.wasm.
import {AotError, INTERNALS} from './aot_runtime.mjs';

const INFO_BYTES = 44;  // as aot_text.c says
const PREFIX_BYTES = 20;
const ENCODE_BYTES = 12;
const RENDER_BYTES = 40;
const RENDERED_BYTES = 16;
const SAMPLER_BYTES = 104;
const REPLY_BYTES = 32;
const REPLY_INFO_BYTES = 40;
const TENSOR_BYTES = 24;

// Why a reply has ended, by aot_reply_end_t.
const ENDS = ['', 'end', 'stop', 'tokens', 'context', 'caller'];

// Where the sampler's numbers are.
const FLOATS = {
  repetitionPenalty: 16,
  frequencyPenalty: 20,
  presencePenalty: 24,
  dryMultiplier: 32,
  dryBase: 36,
  typicalP: 60,
  topP: 64,
  minP: 68,
  xtcProbability: 72,
  xtcThreshold: 76,
  mirostatTau: 80,
  mirostatEta: 84,
  temperature: 88,
};
const COUNTS = {
  penaltyWindow: 28,
  dryAllowedLength: 40,
  dryWindow: 44,
  topK: 56,
};

/**
 * How tokens are chosen, as aot_sampler_options_t has it. 0 leaves each out; without a temperature,
 * the most probable one is taken. `logitBias` is by the tokens' numbers.
 * @typedef {{temperature?: number, topK?: number, topP?: number, minP?: number, typicalP?: number,
 *            xtcProbability?: number, xtcThreshold?: number, mirostatTau?: number,
 *            mirostatEta?: number, repetitionPenalty?: number, frequencyPenalty?: number,
 *            presencePenalty?: number, penaltyWindow?: number, dryMultiplier?: number,
 *            dryBase?: number, dryAllowedLength?: number, dryWindow?: number,
 *            dryBreakers?: string[], logitBias?: Object<number, number>,
 *            seed?: number | bigint}} Sampling
 */

/**
 * A token, the natural logarithm of its probability by the model's logits, and the most probable
 * tokens with theirs.
 * @typedef {{token: number, logprob: number, top: {token: number, logprob: number}[]}} Logprobs
 */

/** A conversation with a language model, which is kept in the model's state. */
export class Chat {
  #model;
  #engine;
  #program;
  #execute;
  #vocabulary;
  #sampler;
  #isRaw;  // the model has no chat template
  #system;
  #variables;
  #prefix = [];  // tokens that raw text goes on behind
  #messages = [];
  #most;          // tokens of one call
  #read = [];     // tokens that the model has read
  #pending = [];  // the last token of a reply, which was not run
  #isBusy = false;

  /**
   * Why the last reply ended: "end", a token that ends replies; "stop", a stop string; "tokens", as
   * many as were asked for; "context", there is no more room; "caller", it was aborted.
   */
  stoppedBy = '';

  /** Of the last reply's tokens, where they were asked for. @type {Logprobs[]} */
  logprobs = [];

  /**
   * Begins a conversation with an empty state; a model has one at a time.
   *
   * @param {import("./aot_runtime.mjs").Model} model
   * @param {Sampling & {system?: string, variables?: object}} [options] and the system message;
   *          without it, what the model's chat template says; and what else that is given, such as
   *          {enable_thinking: false}
   */
  constructor(model, options = {}) {
    const {engine, module, program, execute} = model[INTERNALS];
    this.#model = model;
    this.#execute = execute;
    this.#engine = engine;
    this.#program = program;
    this.#system = options.system;
    this.#variables = options.variables;
    this.#most = this.#check();
    this.#vocabulary =
        this.#made((out) => engine.attempt(2, 'aot_vocabulary_open', module, 0, out));
    this.#sampler = this.#openSampler(options);
    this.#isRaw = this.#hasNoTemplate();
    if (this.#isRaw && (this.#system !== undefined || this.#variables !== undefined))
      throw new AotError(
          'a system message and variables are the chat template\'s: the model has none',
          'argument');
    this.#takePrefix();
    this.reset();
  }

  /** Forgets the conversation but for the system's message. */
  reset() {
    this.#model.reset();
    this.#engine.call('aot_sampler_reset', this.#sampler);
    this.#read = [];
    this.#pending = [];
    this.#messages = this.#system === undefined ? [] : [{role: 'system', content: this.#system}];
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
   * @param {{maxTokens?: number, stop?: string[], logprobs?: number, signal?: AbortSignal}}
   *          [options] the most tokens of the reply, by default as many as there is room for; texts
   *          that end it, and are not part of it; how many most probable tokens are told beside
   *          each one; and what ends it before
   * @returns {AsyncGenerator<string>}
   */
  async * reply(text, {maxTokens = Infinity, stop = [], logprobs = 0, signal} = {}) {
    if (this.#isBusy) throw new AotError('the chat is in the middle of a reply', 'argument');
    this.#isBusy = true;
    let native = 0;
    try {
      native = this.#openReply(maxTokens, stop, logprobs);
      [this.stoppedBy, this.logprobs] = ['', []];
      const reply = this.#say(text);
      for (;;) {
        let piece = this.#next(native);
        this.#learn(native, logprobs > 0);
        if (this.stoppedBy === '' && this.length >= this.capacity)
          piece += this.#finish(native, 'context');
        reply.content += piece;
        if (piece !== '') yield piece;
        if (this.stoppedBy !== '') return;
        await new Promise((resolve) => setTimeout(resolve, 0));
        if (signal?.aborted) break;
        this.#run(this.#pending);
      }
      const rest = this.#finish(native, 'caller');
      reply.content += rest;
      if (rest !== '') yield rest;
    } finally {
      this.#isBusy = false;
      if (!this.#engine.failure && native !== 0) this.#engine.call('aot_reply_destroy', native);
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

  #openSampler(options) {
    const engine = this.#engine;
    const {seed = 0, logitBias = {}, dryBreakers} = options;
    if (BigInt(seed) !== BigInt.asUintN(64, BigInt(seed)))
      throw new AotError(`seed is ${seed}, expected 0 to 2^64 - 1`, 'argument');
    const biases = Object.entries(logitBias);
    const [memory, breakers] =
        [engine.allocate(SAMPLER_BYTES + 8 * biases.length), this.#texts(dryBreakers ?? [])];
    engine.bytes(memory, SAMPLER_BYTES).fill(0);
    const view = engine.view(memory, SAMPLER_BYTES + 8 * biases.length);
    const words = {0: SAMPLER_BYTES, 4: this.#vocabulary, 8: memory + SAMPLER_BYTES};
    words[12] = biases.length;
    if (dryBreakers !== undefined) [words[48], words[52]] = [breakers[0], dryBreakers.length];
    for (const [at, word] of Object.entries(words))
      view.setUint32(Number(at), word, true);
    for (const [name, at] of Object.entries(FLOATS))
      view.setFloat32(at, options[name] ?? 0, true);
    for (const [name, at] of Object.entries(COUNTS))
      view.setUint32(at, options[name] ?? 0, true);
    view.setBigUint64(96, BigInt(seed), true);
    biases.forEach(([token, bias], at) => {
      view.setInt32(SAMPLER_BYTES + 8 * at, Number(token), true);
      view.setFloat32(SAMPLER_BYTES + 8 * at + 4, bias, true);
    });
    try {
      return this.#made((out) => engine.attempt(2, 'aot_sampler_create', memory, 0, out));
    } finally {
      if (!engine.failure) [memory, ...breakers].forEach((place) => engine.release(place));
    }
  }

  #openReply(maxTokens, stop, logprobs) {
    const engine = this.#engine;
    const [memory, stops] = [engine.allocate(REPLY_BYTES), this.#texts(stop)];
    engine.bytes(memory, REPLY_BYTES).fill(0);
    const view = engine.view(memory, REPLY_BYTES);
    view.setUint32(0, REPLY_BYTES, true);
    view.setBigUint64(8, BigInt(Number.isFinite(maxTokens) ? Math.max(maxTokens, 1) : 0), true);
    [stops[0], stop.length, logprobs].forEach(
        (word, at) => view.setUint32(16 + 4 * at, word, true));
    const [vocabulary, sampler] = [this.#vocabulary, this.#sampler];
    try {
      return this.#made(
          (out) => engine.attempt(4, 'aot_reply_create', vocabulary, sampler, memory, 0, out));
    } finally {
      if (!engine.failure) [memory, ...stops].forEach((place) => engine.release(place));
    }
  }

  /** The places of an array of C strings and of each of them; *owned*. */
  #texts(texts) {
    const places = texts.map((text) => this.#engine.allocateText(text));
    const array = this.#engine.allocate(4 * places.length + 4);
    const view = this.#engine.view(array, 4 * places.length + 4);
    places.forEach((place, at) => view.setUint32(4 * at, place, true));
    return [array, ...places];
  }

  #hasNoTemplate() {
    const engine = this.#engine;
    const info = engine.allocate(INFO_BYTES);
    engine.view(info, 4).setUint32(0, INFO_BYTES, true);
    engine.attempt(1, 'aot_vocabulary_get_info', this.#vocabulary, info);
    const template = engine.text(engine.word(info + 32));
    engine.release(info);
    return template === '';
  }

  /** Conversations begin with the text that the module was compiled with. */
  #takePrefix() {
    const engine = this.#engine;
    const info = engine.allocate(PREFIX_BYTES);
    engine.view(info, 4).setUint32(0, PREFIX_BYTES, true);
    engine.attempt(1, 'aot_vocabulary_get_prefix', this.#vocabulary, info);
    const [text, tokens, count] = [4, 12, 16].map((at) => engine.word(info + at));
    const isRaw = engine.bytes(info, PREFIX_BYTES)[8] !== 0;
    if (count > 0 && isRaw && this.#isRaw)
      this.#prefix = [...new Int32Array(engine.bytes(tokens, 4 * count).slice().buffer)];
    if (count > 0 && !isRaw && !this.#isRaw) this.#system ??= engine.text(text);
    engine.release(info);
  }

  #count(what) { return Number(this.#engine.call(`aot_program_${what}`, this.#program)); }

  // ---- the prompt ----

  /** Lets the model read a message; returns the reply, whose text is to come. */
  #say(text) {
    const user = {role: 'user', content: text}, reply = {role: 'assistant', content: ''};
    if (this.length !== this.#read.length) this.reset();  // somebody else has run the model
    if (this.#isRaw) {
      const before = this.#read.length === 0 ? this.#prefix : [];
      const isFirst = this.#read.length === 0 && before.length === 0;
      const tokens = this.#encode(text, null, isFirst);
      if (tokens.length === 0) throw new AotError('the prompt has no tokens', 'argument');
      this.#prefill(
          this.#read.length, [...this.#pending, ...before, ...tokens], this.#pending.length);
      return reply;
    }
    const rendered = this.#rendered([...this.#messages, user]);
    const tokens = this.#encode(rendered.text, rendered.marks, true);
    let shared = 0;  // with what the model has read; one token at least is left to be run
    while (shared + 1 < tokens.length && shared < this.#read.length &&
           tokens[shared] === this.#read[shared])
      ++shared;
    const rest = tokens.slice(shared);
    const isChosen = this.#pending.length > 0 && rest[0] === this.#pending[0];
    this.#prefill(shared, rest, isChosen ? 1 : 0);
    this.#messages.push(user, reply);
    return reply;
  }

  /** A conversation as the chat template writes it: bytes of text, and who wrote each. */
  #rendered(messages) {
    const engine = this.#engine;
    const variables = new TextEncoder().encode(
        JSON.stringify({...this.#variables, messages, add_generation_prompt: true}));
    const memory = engine.allocate(RENDER_BYTES + RENDERED_BYTES + variables.length);
    const [out, text] = [memory + RENDER_BYTES, memory + RENDER_BYTES + RENDERED_BYTES];
    try {
      const now = new Date();
      const seconds = Math.floor(now.getTime() / 1000) - 60 * now.getTimezoneOffset();
      engine.bytes(memory, RENDER_BYTES).fill(0);
      const view = engine.view(memory, RENDER_BYTES);
      view.setUint32(0, RENDER_BYTES, true);
      view.setUint8(24, 1);  // is_strict
      view.setUint8(25, 1);  // has_clock
      view.setBigInt64(32, BigInt(seconds), true);
      engine.view(out, 4).setUint32(0, RENDERED_BYTES, true);
      engine.bytes(text, variables.length).set(variables);
      engine.attempt(4, 'aot_chat_render', this.#vocabulary, text, variables.length, memory, out);
      const [made, marks, count] = [4, 8, 12].map((at) => engine.word(out + at));
      const found = {
        text: engine.bytes(made, count).slice(),
        marks: engine.bytes(marks, count).slice(),
      };
      engine.call('aot_rendered_release', this.#vocabulary, out);
      return found;
    } finally {
      if (!engine.failure) engine.release(memory);
    }
  }

  /** The tokens of text that goes on; with marks, of a conversation's bytes. */
  #encode(text, marks, isFirst) {
    const engine = this.#engine;
    const bytes = marks === null ? new TextEncoder().encode(text) : text;
    const size = bytes.length;
    for (let capacity = size + 4;;) {
      const pointer = engine.allocate(ENCODE_BYTES + 2 * size + 4);
      const [own, ownMarks] = [pointer + ENCODE_BYTES, pointer + ENCODE_BYTES + size];
      const tokens = engine.allocate(4 * capacity + 4);
      const count = tokens + 4 * capacity;
      engine.bytes(pointer, ENCODE_BYTES).fill(0);
      engine.view(pointer, ENCODE_BYTES).setUint32(0, ENCODE_BYTES, true);
      engine.view(pointer, ENCODE_BYTES).setUint8(5, Number(!isFirst));  // is_part
      engine.bytes(own, size).set(bytes);
      if (marks !== null) engine.bytes(ownMarks, size).set(marks);
      let needed = 0;
      try {
        engine.view(count, 4).setUint32(0, 0, true);
        if (marks === null) {
          engine.attempt(
              6, 'aot_encode', this.#vocabulary, own, size, pointer, tokens, capacity, count);
        } else {
          engine.attempt(
              7, 'aot_chat_tokens', this.#vocabulary, own, ownMarks, size, Number(isFirst), tokens,
              capacity, count);
        }
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

  /** Runs tokens behind the first `used` that the model has read; the sampler chose the first. */
  #prefill(used, tokens, chosen) {
    const capacity = this.capacity;
    if (tokens.length === 0) throw new AotError('the prompt has no tokens', 'argument');
    if (tokens.length > capacity - used) {
      const inUse = used > 0 ? `, of which ${used} are in use` : '';
      throw new AotError(
          `the prompt is ${tokens.length} tokens, and the context holds ${capacity}${inUse}; ` +
              'shorten it, or compile the model with a longer --context',
          'capacity');
    }
    if (used < this.#read.length) {
      const before = this.#read.slice(0, used);
      if (!this.#rewind(used)) {  // windows have moved on
        this.#model.reset();
        this.#read = [];
        this.#prefill(0, [...before, ...tokens], chosen > 0 ? before.length + chosen : 0);
        return;
      }
    }
    try {
      this.#run(tokens);
    } catch (error) {
      if (!this.#engine.failure && !this.#rewind(used)) this.reset();
      throw error;
    }
    tokens.slice(chosen).forEach(
        (token) => this.#engine.call('aot_sampler_accept', this.#sampler, token));
    this.#pending = [];
  }

  /** Lets the model forget all but its first tokens; false where it can't. */
  #rewind(count) {
    try {
      this.#engine.attempt(2, 'aot_program_rewind', this.#program, BigInt(count));
      this.#read.length = count;
      return true;
    } catch (error) {
      if (this.#engine.failure) throw error;
      return false;
    }
  }

  /** Runs tokens, in as many calls as that takes; the last one's logits are the next token's. */
  #run(tokens) {
    for (let at = 0; at < tokens.length; at += this.#most) {
      const data = Int32Array.from(tokens.slice(at, at + this.#most));
      this.#execute({[this.#model.inputs[0].name]: {data, shape: [data.length]}});
    }
    for (const token of tokens)
      this.#read.push(token);
    this.#pending = [];
  }

  /** What the logits of the last run make certain of the reply's text. */
  #next(native) {
    const engine = this.#engine;
    const tensor = engine.allocate(TENSOR_BYTES);
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
      return this.#piece(3, 'aot_reply_next', native, logits, count);
    } finally {
      if (!engine.failure) engine.release(tensor);
    }
  }

  /** Ends a reply; gives the text that waited. */
  #finish(native, end) {
    this.stoppedBy = end;
    return this.#piece(2, 'aot_reply_finish', native, ENDS.indexOf(end));
  }

  /** The text that a function hands out. */
  #piece(errorAt, name, ...values) {
    const engine = this.#engine;
    const out = engine.allocate(8);
    try {
      engine.attempt(errorAt, name, ...values, out, out + 4);
      const [text, size] = [engine.word(out), engine.word(out + 4)];
      return new TextDecoder('utf-8', {ignoreBOM: true}).decode(engine.bytes(text, size).slice());
    } finally {
      if (!engine.failure) engine.release(out);
    }
  }

  /** Takes what is known of the token that was chosen last. */
  #learn(native, hasLogprobs) {
    const engine = this.#engine;
    const info = engine.allocate(REPLY_INFO_BYTES);
    engine.view(info, 4).setUint32(0, REPLY_INFO_BYTES, true);
    engine.attempt(1, 'aot_reply_get_info', native, info);
    const view = engine.view(info, REPLY_INFO_BYTES);
    this.stoppedBy = ENDS[view.getUint32(16, true)];
    const found = {token: view.getInt32(20, true), logprob: view.getFloat32(24, true), top: []};
    const [count, top] = [28, 32].map((at) => view.getUint32(at, true));
    const tops = engine.view(top, 8 * count);
    for (let at = 0; at < 8 * count; at += 8)
      found.top.push({token: tops.getInt32(at, true), logprob: tops.getFloat32(at + 4, true)});
    engine.release(info);
    if (this.stoppedBy === 'end') return;
    this.#pending = [found.token];
    if (hasLogprobs) this.logprobs.push(found);
  }
}
