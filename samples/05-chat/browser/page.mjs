// The page: what is typed goes to the worker, and pieces of the reply come back.
const {message, send, reset} = document.forms[0];
const status = document.querySelector('#status');
const talk = document.querySelector('#talk');
const worker = new Worker('worker.mjs', {type: 'module'});

function paragraph(kind, text) {
  const made = document.createElement('p');
  made.className = kind;
  made.textContent = text;
  talk.append(made);
}

function setReady(isReady, text) {
  send.disabled = reset.disabled = !isReady;
  status.textContent = text;
}

const handlers = {
  ready: (text) => setReady(true, text),
  piece: (text) => (talk.lastChild.textContent += text),
  failed: (text) => setReady(false, text),
};
worker.onmessage = ({data: [kind, text]}) => handlers[kind](text);
worker.onerror = ({message: text}) => handlers.failed(text);

document.forms[0].onsubmit = (event) => {
  event.preventDefault();
  if (send.disabled || message.value === '') return;
  paragraph('user', message.value);
  paragraph('model', '');
  setReady(false, 'The model replies.');
  worker.postMessage(['reply', message.value]);
  message.value = '';
};
reset.onclick = () => {
  talk.replaceChildren();
  worker.postMessage(['reset']);
};
