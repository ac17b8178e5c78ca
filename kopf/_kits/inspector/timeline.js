// The drawing of a timeline: one axis, a lane for each handler, and one for each other type of entries.

import { clock, duration, s, timeOfDay } from './format.js';

const LANE = 28;
const AXIS = 26;
const LABEL = 184;
const RIGHT = 16;
const IDLE = 30; // after so long without news, the axis ends with the last entry (in seconds)
const STEPS = [ // between the ticks of the axis (in seconds)
  0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400,
];
const LANES = { cause: 'Causes', patch: 'Patches', event: 'Events', log: 'Log' };

const isCall = (entry) => entry.type === 'handler' || entry.type === 'frequent';
const isRunning = (entry) => isCall(entry) && !entry.outcome;
const endOf = (entry) => entry.at + (entry.seconds ?? (isRunning(entry) ? Math.max(0, clock.now() - entry.at) : 0));

/** Return whether something goes on, so that the axis must move. */
export function isMoving(entries, object) {
  const last = entries.reduce((latest, entry) => Math.max(latest, endOf(entry)), 0);
  return clock.now() - last < IDLE || (object?.until ?? 0) > clock.now();
}

/** Draw the entries into the element; `pick` is called with the entry that is clicked. */
export function drawTimeline(svg, entries, object, { range, pick }) {
  const width = Math.max(320, svg.parentElement.clientWidth);
  const lanes = findLanes(entries);
  const height = AXIS + lanes.size * LANE + 6;
  const [from, to] = findRange(entries, object, range);
  const place = (time) => LABEL + ((time - from) / (to - from)) * (width - LABEL - RIGHT);
  const parts = [];
  [...lanes.keys()].forEach((name, number) => {
    const y = AXIS + number * LANE;
    if (number % 2 === 0) parts.push(s('rect', { class: 'band', x: 0, y, width, height: LANE, rx: 4 }));
    parts.push(s('text', { class: 'label', x: 10, y: y + LANE / 2 + 4 }, shorten(name), s('title', {}, name)));
  });
  parts.push(...drawAxis(from, to, place, width, height));
  if (clock.now() <= to) {
    const x = place(clock.now());
    parts.push(s('line', { class: 'now', x1: x, x2: x, y1: AXIS - 6, y2: height }));
  }
  const clip = s('g', {});
  for (const entry of entries) {
    if (endOf(entry) < from) continue;
    const y = AXIS + lanes.get(findLane(entry)) * LANE;
    const mark = drawMark(entry, place, y, from, width - 4);
    clip.append(s('g', { class: 'mark', click: () => pick(entry) }, s('title', {}, describe(entry)), mark));
  }
  parts.push(clip);
  svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
  svg.setAttribute('width', width);
  svg.setAttribute('height', height);
  svg.replaceChildren(...parts);
}

function findLane(entry) {
  if (isCall(entry)) return entry.handler;
  return LANES[entry.type === 'wait' ? 'cause' : entry.type];
}

function findLanes(entries) {
  const names = [];
  if (entries.some((entry) => entry.type === 'cause' || entry.type === 'wait')) names.push(LANES.cause);
  for (const entry of entries) if (isCall(entry) && !names.includes(entry.handler)) names.push(entry.handler);
  for (const type of ['patch', 'event', 'log']) {
    if (entries.some((entry) => entry.type === type)) names.push(LANES[type]);
  }
  return new Map(names.map((name, number) => [name, number]));
}

function findRange(entries, object, range) {
  const now = clock.now();
  const first = entries.reduce((earliest, entry) => Math.min(earliest, entry.at), now);
  const last = entries.reduce((latest, entry) => Math.max(latest, endOf(entry)), first);
  const planned = (object?.until ?? 0) > now ? object.until : 0;
  let end = now - last < IDLE ? now : last;
  if (planned) end = Math.max(end, now);
  let from = range ? Math.max(first, end - range) : first;
  const shown = planned && planned - end < Math.max(10, 1.5 * (end - from)) ? planned : end;
  const span = Math.max(shown - from, 0.2);
  return [from - span * 0.02, shown + span * 0.04];
}

function drawAxis(from, to, place, width, height) {
  const step = STEPS.find((size) => place(from + size) - place(from) >= 84) ?? STEPS.at(-1);
  const parts = [];
  for (let time = Math.ceil(from / step) * step; time < to; time += step) {
    const x = place(time);
    if (x < LABEL || x > width - 34) continue;
    const text = step < 1 ? `:${timeOfDay(time, true).slice(6, step < 0.1 ? 12 : 10)}` : timeOfDay(time);
    parts.push(s('line', { class: 'grid', x1: x, x2: x, y1: AXIS - 4, y2: height }));
    parts.push(s('text', { class: 'tick', x, y: 15, 'text-anchor': 'middle' }, text));
  }
  return parts;
}

function drawMark(entry, place, y, from, limit) {
  const middle = y + LANE / 2;
  const x = place(Math.max(entry.at, from));
  if (isCall(entry)) return drawCall(entry, place, y, x, limit);
  if (entry.type === 'cause') {
    return s('g', { class: 'cause' }, s('path', { d: `M${x} ${middle - 6}l6 6l-6 6l-6-6z` }));
  }
  if (entry.type === 'wait') {
    const end = Math.max(x + 4, Math.min(place(entry.at + entry.delay), limit));
    return s('line', { class: 'pause throttled', x1: x, x2: end, y1: middle, y2: middle });
  }
  if (entry.type === 'patch') {
    const name = entry.status < 300 ? 'patch' : 'patch refused';
    return s('rect', { class: name, x: x - 4.5, y: middle - 4.5, width: 9, height: 9, rx: 2 });
  }
  if (entry.type === 'event') {
    return s('circle', { class: `event ${entry.level}`, cx: x, cy: middle, r: 5 });
  }
  return s('rect', { class: `log ${entry.level}`, x: x - 1.5, y: middle - 7, width: 3, height: 14, rx: 1.5 });
}

function drawCall(entry, place, y, x, limit) {
  const end = place(endOf(entry));
  const width = Math.max(6, end - x);
  const bar = s('rect', { x, y: y + 6, width, height: LANE - 12, rx: 4 });
  const group = s('g', { class: `call ${entry.outcome ?? 'running'}` }, bar);
  const text = entry.retry ? `#${entry.retry + 1}` : '';
  if (text && width > 22) group.append(s('text', { x: x + 5, y: y + LANE / 2 + 4 }, text));
  if (entry.outcome === 'retried' && entry.delay) {
    const until = Math.min(place(endOf(entry) + entry.delay), limit);
    const [start, middle] = [x + width + 2, y + LANE / 2];
    group.append(s('line', { class: 'pause', x1: start, x2: Math.max(start, until - 1), y1: middle, y2: middle }));
  }
  return group;
}

const shorten = (name) => (name.length > 25 ? `${name.slice(0, 12)}…${name.slice(-12)}` : name);

/** Describe an entry in one line. */
function describe(entry) {
  const time = timeOfDay(entry.at, true);
  if (isCall(entry)) {
    const attempt = entry.retry ? `, attempt ${entry.retry + 1}` : '';
    const took = entry.seconds === undefined ? '' : ` after ${duration(entry.seconds)}`;
    const pause = entry.delay ? `; again after ${duration(entry.delay)}` : '';
    const message = entry.message ? ` – ${entry.message}` : '';
    return `${time} ${entry.handler}${attempt}: ${entry.outcome ?? 'running'}${took}${pause}${message}`;
  }
  if (entry.type === 'cause') return `${time} ${entry.reason}: ${entry.handlers.join(', ')}`;
  if (entry.type === 'patch') {
    return `${time} ${entry.method} ${entry.target ?? ''} ${entry.status ?? ''} ${entry.fields.join(', ')}`;
  }
  if (entry.type === 'event') return `${time} ${entry.level} ${entry.reason}: ${entry.message}`;
  if (entry.type === 'wait') return `${time} throttled for ${duration(entry.delay)}`;
  return `${time} ${entry.level} ${entry.message}`;
}
