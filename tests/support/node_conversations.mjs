// What the runtime in WebAssembly makes of conversations: of each module, named by the arguments
// behind a package's folder, the text and tokens of each conversation of standard input, an array
// of texts of JSON.
//
//   node node_conversations.mjs PACKAGE SECONDS MODULE... < conversations.json
import {readFileSync} from 'node:fs';
import {pathToFileURL} from 'node:url';

const [folder, seconds, ...modules] = process.argv.slice(2);
const {load} = await import(pathToFileURL(`${folder}/chat.mjs`).href);
const {INTERNALS} = await import(pathToFileURL(`${folder}/aot_runtime.mjs`).href);
const conversations = JSON.parse(readFileSync(0, 'utf8'));
const OPTION_BYTES = 40;  // aot_render_options_t
const OUT_BYTES = 16;

function tokensOf(engine, vocabulary, text, marks, count) {
  const memory = engine.allocate(4 * (count + 4) + 4);
  const found = memory + 4 * (count + 4);
  engine.attempt(7, 'aot_chat_tokens', vocabulary, text, marks, count, 0, memory, count + 4, found);
  const tokens = [...new Int32Array(engine.bytes(memory, 4 * engine.word(found)).slice().buffer)];
  engine.release(memory);
  return tokens;
}

function conversation(engine, vocabulary, variables) {
  const data = new TextEncoder().encode(variables);
  const memory = engine.allocate(OPTION_BYTES + OUT_BYTES + data.length);
  const out = memory + OPTION_BYTES;
  engine.bytes(memory, OPTION_BYTES).fill(0);
  engine.view(memory, OPTION_BYTES).setUint32(0, OPTION_BYTES, true);
  engine.view(memory, OPTION_BYTES).setUint8(25, 1);  // has_clock
  engine.view(memory, OPTION_BYTES).setBigInt64(32, BigInt(seconds), true);
  engine.view(out, OUT_BYTES).setUint32(0, OUT_BYTES, true);
  engine.bytes(out + OUT_BYTES, data.length).set(data);
  try {
    engine.attempt(4, 'aot_chat_render', vocabulary, out + OUT_BYTES, data.length, memory, out);
  } catch (error) {
    return error.message;
  }
  const [text, marks, count] = [4, 8, 12].map((at) => engine.word(out + at));
  const written = new TextDecoder().decode(engine.bytes(text, count));
  const tokens = tokensOf(engine, vocabulary, text, marks, count);
  engine.call('aot_rendered_release', vocabulary, out);
  engine.release(memory);
  return [written, tokens];
}

const found = [];
for (const path of modules) {
  const model = await load({module: new Uint8Array(readFileSync(path))});
  const {engine, module} = model[INTERNALS];
  const out = engine.allocate(4);
  engine.attempt(2, 'aot_vocabulary_open', module, 0, out);
  const vocabulary = engine.word(out);
  found.push(conversations.map((variables) => conversation(engine, vocabulary, variables)));
  engine.call('aot_vocabulary_close', vocabulary);
}
console.log(JSON.stringify(found));
