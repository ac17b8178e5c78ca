// The page as a whole: the connection, the header, the filters, and what is selected.

import { follow, keepToken, load, takeToken } from './client.js';
import { Detail } from './detail.js';
import { clock, duration, h, plural, refresh, setText, STATES, whole } from './format.js';
import { List } from './list.js';
import { Overview } from './overview.js';
import { Store } from './store.js';

const LIMIT = 200000;
const $ = (id) => document.getElementById(id);

const store = new Store();
const list = new List($('list'), $('rows'), select);
const detail = new Detail($('detail'));
const overview = new Overview($('detail'), select);
let operator = null;
let loading = null;
let isFollowing = false;

// What is selected.

function select(object, { scrolls = false } = {}) {
  const key = object ? Store.key(object) : null;
  history.replaceState(null, '', key ? `#object=${encodeURIComponent(key)}` : location.pathname);
  list.mark(key, { scrolls });
  if (object) {
    document.title = `${object.name} · kopf inspector`;
    if (detail.object === null || Store.key(detail.object) !== key) {
      detail.open(object);
      announce(`${object.name}: ${STATES[object.shown]}${object.error ? `, ${object.error}` : ''}`);
    }
  } else {
    document.title = 'kopf inspector';
    detail.close();
    overview.open();
    overview.update(operator, store);
  }
}

function selectFromAddress() {
  const key = new URLSearchParams(location.hash.slice(1)).get('object');
  const object = key && store.objects.get(key);
  if (object) select(object, { scrolls: true });
  return Boolean(object);
}

function announce(text) { setText($('announcer'), text); }

// What the operator tells.

const messages = {
  state() {
    loading = { messages: [] };
    const mine = loading;
    load(`/v1/objects?limit=${LIMIT}`).then(({ objects }) => {
      if (loading !== mine) return;
      loading = null;
      store.load(objects);
      mine.messages.forEach((message) => store.update(message));
      showObjects();
      if (detail.object) detail.restart(store.objects.get(Store.key(detail.object)));
      else if (!selectFromAddress()) select(null);
    }).catch(() => {});
  },

  objects(message) {
    if (loading) {
      loading.messages.push(message);
      return;
    }
    const rearranged = store.update(message);
    if (rearranged) showObjects();
    else {
      showStates();
      list.refresh();
    }
    const { object } = detail;
    if (object) {
      const newer = store.objects.get(Store.key(object));
      if (newer !== object) {
        const before = object.shown;
        detail.change(newer);
        if (newer && newer.shown !== before) announce(`${newer.name}: ${STATES[newer.shown]}`);
        if (!newer) announce(`${object.name} is deleted`);
      }
    }
  },

  operator(facts) {
    operator = facts;
    clock.adjust(facts.time);
    showFacts();
    tick();
  },
};

function tick() {
  if (document.hidden) return;
  list.refresh();
  if (detail.object) detail.tick();
  else overview.update(operator, store);
}

function connect() {
  if (isFollowing) return;
  isFollowing = true;
  follow(messages, {
    opened: () => setConnection('live', 'live'),
    closed: () => setConnection('lost', 'disconnected'),
    refused: () => {
      isFollowing = false;
      askForToken(sessionStorage.getItem('token') !== null);
    },
  });
}

function setConnection(state, text) {
  const element = $('connection');
  if (element.dataset.state === state) return;
  element.dataset.state = state;
  setText(element.lastElementChild, text);
  document.body.classList.toggle('lost', state === 'lost');
  showBanner();
}

// The header.

function showFacts() {
  const { loop, running_total: running, watches, seconds, version, pid } = operator;
  const bad = watches.filter((watch) => watch.failure);
  const silent = watches.length ? Math.max(...watches.map((watch) => watch.silent)) : 0;
  const count = watches.length;
  const health = bad.length ? `${bad.length} of ${count} failing` : `${count} · silent ${whole(silent)}`;
  const facts = [
    ['Event loop', loop.blocked ? `blocked ${duration(loop.lag)}` : duration(loop.lag), loop.blocked],
    ['Running', String(running), false],
    ['Queued', (store.counts.queued ?? 0).toLocaleString('en'), false],
    ['Watches', health, bad.length > 0],
    ['Up', whole(seconds), false],
    [`kopf ${version}`, `pid ${pid}`, false],
  ];
  const box = $('facts');
  const titles = facts.map(([title]) => title);
  refresh(box, titles.join(), () => titles.map((title) => h('div', {}, h('dt', {}, title), h('dd', {}))));
  facts.forEach(([, text, isBad], number) => {
    const value = box.children[number].lastElementChild;
    setText(value, text);
    value.classList.toggle('bad', isBad);
  });
  showBanner();
}

function showBanner() {
  const isLost = $('connection').dataset.state === 'lost';
  const text = describeTrouble(isLost);
  $('banner').hidden = !text;
  $('banner').dataset.kind = isLost || operator?.loop.blocked ? 'bad' : 'soft';
  setText($('banner'), text);
}

function describeTrouble(isLost) {
  if (isLost) {
    return 'Disconnected: the operator has stopped, or does not respond. What is shown is from before. Trying again…';
  }
  if (operator?.loop.blocked) {
    const { lag, by } = operator.loop;
    return `The event loop is blocked for ${duration(lag)}${by ? ` by ${by}` : ''}`;
  }
  return operator?.paused ? 'The operator is paused, as another operator works.' : '';
}

// The list and its filters.

function showObjects() {
  list.show(store.items, store.visible.length);
  showStates();
  const kinds = store.kinds.map(([name, count]) => [name, `${name} (${count.toLocaleString('en')})`]);
  showChoices($('kind'), 'All kinds', kinds);
  showChoices($('namespace'), 'All namespaces', store.namespaces.map((name) => [name, name]));
  const total = store.objects.size;
  const visible = store.isFiltered ? `${store.visible.length.toLocaleString('en')} of ` : '';
  setText($('total'), `${visible}${plural(total, 'object')}`);
  const isEmpty = store.loaded && store.visible.length === 0;
  $('empty').hidden = !isEmpty;
  $('list').hidden = isEmpty;
  if (isEmpty) refresh($('empty'), String(total > 0), () => explainEmptiness(total));
}

function explainEmptiness(total) {
  if (total > 0) {
    const button = h('button', { type: 'button', class: 'link', click: resetFilters }, 'Remove the filters');
    return [h('p', {}, h('b', {}, 'No object matches.')), button];
  }
  const promise = 'As soon as there is one of a kind that the operator watches, it is shown here.';
  return [h('p', {}, h('b', {}, 'No objects yet.')), h('p', {}, promise)];
}

function showChoices(element, title, choices) {
  refresh(element, JSON.stringify(choices), () => {
    const chosen = element.value;
    const make = ([value, text]) => h('option', { value, selected: value === chosen }, text);
    const options = [h('option', { value: '' }, title), ...choices.map(make)];
    return options;
  });
}

function showStates() {
  const box = $('states');
  if (!box.children.length) {
    box.append(...Object.entries(STATES).map(([state, title]) => h('button', {
      type: 'button', class: 'chip', 'data-state': state, 'aria-pressed': 'false',
      click: (event) => {
        const { states } = store.filters;
        if (!states.delete(state)) states.add(state);
        event.currentTarget.setAttribute('aria-pressed', String(states.has(state)));
        applyFilters();
      },
    }, h('i', { class: 'dot' }), h('span', {}, title), h('b', {}))));
  }
  for (const button of box.children) {
    const count = store.counts[button.dataset.state] ?? 0;
    setText(button.lastElementChild, count.toLocaleString('en'));
    button.classList.toggle('none', count === 0);
  }
}

function applyFilters() {
  store.filters.text = $('text').value;
  store.filters.kind = $('kind').value;
  store.filters.namespace = $('namespace').value;
  store.arrange();
  $('list').scrollTop = 0;
  showObjects();
}

function resetFilters() {
  $('text').value = $('kind').value = $('namespace').value = '';
  store.filters.states.clear();
  for (const button of $('states').children) button.setAttribute('aria-pressed', 'false');
  applyFilters();
  $('text').focus();
}

$('filters').addEventListener('submit', (event) => event.preventDefault());
$('text').addEventListener('input', applyFilters);
$('kind').addEventListener('change', applyFilters);
$('namespace').addEventListener('change', applyFilters);
$('text').addEventListener('keydown', (event) => {
  if (event.key === 'ArrowDown' || event.key === 'Enter') {
    event.preventDefault();
    $('list').focus();
  }
});
$('list').addEventListener('keydown', (event) => {
  if (event.key === 'Enter' && detail.object) $('detail').focus();
});
$('home').addEventListener('click', (event) => {
  event.preventDefault();
  select(null);
});

document.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const isTyping = event.target.matches('input, select, textarea');
  if (event.key === '/' && !isTyping) {
    event.preventDefault();
    $('text').focus();
  } else if (event.key === 'Escape') {
    if (event.target === $('text') && $('text').value) {
      $('text').value = '';
      applyFilters();
    } else if ($('detail').contains(document.activeElement)) $('list').focus();
    else select(null);
  }
});
document.addEventListener('visibilitychange', tick);

// The token.

function askForToken(isWrong) {
  $('login').hidden = false;
  $('wrong').hidden = !isWrong;
  $('main').inert = document.querySelector('.top').inert = true;
  $('token').focus();
}

$('token-form').addEventListener('submit', (event) => {
  event.preventDefault();
  keepToken($('token').value);
  $('token').value = '';
  $('login').hidden = true;
  $('main').inert = document.querySelector('.top').inert = false;
  connect();
});

if (takeToken() === null) askForToken(false);
else connect();
