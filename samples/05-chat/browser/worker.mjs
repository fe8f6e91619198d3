// The worker: the model and the conversation.  The page stays responsive while tokens are computed.
import {AotError, Chat, load} from './chat.mjs';

/** The chat, or nothing where the model cannot be loaded, which the page is told. */
async function open() {
  try {
    const chat = new Chat(await load());
    postMessage(['ready', `Ready. The context holds ${chat.capacity} tokens.`]);
    return chat;
  } catch (error) {
    postMessage(['failed', error.message]);
  }
}

async function reply(chat, text) {
  const start = performance.now();
  let [first, before] = [0, chat.length];
  for await (const piece of chat.reply(text)) {
    if (first === 0) [first, before] = [performance.now(), chat.length];
    postMessage(['piece', piece]);
  }
  const rate = (1e3 * (chat.length - before)) / (performance.now() - first);
  return `First token after ${(first - start).toFixed(0)} ms, then ${rate.toFixed(1)} a second.`;
}

const opening = open();
globalThis.onmessage = async ({data: [command, text]}) => {
  const chat = await opening;
  try {
    if (command === 'reset') chat.reset();
    postMessage(['ready', command === 'reply' ? await reply(chat, text) : 'Ready.']);
  } catch (error) {
    if (!(error instanceof AotError)) throw error;
    postMessage(['ready', error.message]);  // the conversation is as it was
  }
};
