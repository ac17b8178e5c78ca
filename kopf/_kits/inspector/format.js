// Elements, times, and names: what all parts of the page share.

const SVG = 'http://www.w3.org/2000/svg';

/** Create an element with attributes and children; texts are never read as HTML. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Create an element of a drawing. */
export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === 'function') element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? '' : value);
  }
  const isShown = (child) => child !== null && child !== undefined && child !== false;
  element.append(...children.flat(Infinity).filter(isShown));
  return element;
}

/** Create the head of a card, with a hint beside its title if there is one. */
export function makeCardHead(title, hint, ...rest) {
  return h('div', { class: 'card-head' }, h('h3', {}, title), hint ? h('span', { class: 'hint' }, hint) : '', rest);
}

/** Set the text only if it differs: this is called very often. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Replace the children only if the key differs from that of the last call. */
export function refresh(element, key, make) {
  if (element.dataset.key === key) return;
  element.dataset.key = key;
  element.replaceChildren(...make());
}

let ahead = 0; // how much the clock of the operator is ahead of the clock of the browser (in seconds)

export const clock = {
  adjust(time) { ahead = time - Date.now() / 1000; },
  now() { return Date.now() / 1000 + ahead; },
};

/** Return the duration in one or two units: 350 ms, 2.5 s, 1 m 20 s, 3 h 5 m. */
export function duration(seconds) {
  if (seconds < 0.0005) return '0 ms';
  if (seconds < 0.01) return `${(seconds * 1000).toFixed(1)} ms`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const rounded = Math.round(seconds);
  for (const [size, unit, smaller, part] of [[86400, 'd', 3600, 'h'], [3600, 'h', 60, 'm'], [60, 'm', 1, 's']]) {
    if (rounded >= size) {
      const rest = Math.floor((rounded % size) / smaller);
      return rest ? `${Math.floor(rounded / size)} ${unit} ${rest} ${part}` : `${Math.floor(rounded / size)} ${unit}`;
    }
  }
  return `${rounded} s`;
}

/** Return the duration in whole seconds. */
export const whole = (seconds) => (seconds < 1 ? '0 s' : duration(Math.floor(seconds)).replace('.0 s', ' s'));

/** Return the remaining time in whole seconds, so that it counts down steadily. */
export function remaining(until) {
  const seconds = until - clock.now();
  return seconds <= 0 ? 'now' : `in ${whole(Math.max(1, Math.ceil(seconds)))}`;
}

const pad = (number, digits = 2) => String(Math.floor(number)).padStart(digits, '0');

/** Return the local time of the day, with milliseconds if they are wanted. */
export function timeOfDay(time, precise = false) {
  const date = new Date(time * 1000);
  const text = `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
  return precise ? `${text}.${pad(date.getMilliseconds(), 3)}` : text;
}

export const plural = (count, one, many = `${one}s`) => `${count.toLocaleString('en')} ${count === 1 ? one : many}`;

/** The states of objects: in the order in which they need attention. */
export const STATES = {
  throttled: 'throttled',
  failing: 'failing',
  handling: 'handling',
  queued: 'queued',
  waiting: 'waiting',
  resting: 'at rest',
};

/** Return the state that people see: those that wait because of an error are failing. */
export function findState(object) {
  if (object.state === 'handling' || object.state === 'throttled') return object.state;
  return object.error ? 'failing' : object.state;
}

/** Return what is expected next, in a few words. */
export function describeNext(object) {
  if (object.state === 'handling') return '';
  if (object.awaited) return 'for another object';
  if (!object.until) return '';
  const what = { error: 'retry', retry: object.error ? 'retry' : 'next step' }[object.why] ?? object.why;
  return `${what} ${remaining(object.until)}`;
}

/** Return the place in the code: the last parts of the path, and the line. */
export function shortPath(place) {
  return `${place.file.split('/').slice(-2).join('/')}:${place.line}`;
}
