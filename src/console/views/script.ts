/**
 * The script of the console, served as a file. Every page works without it: it refreshes the figures of the overview and
 * shows local times.
 */
export const SCRIPT = `'use strict';
(() => {
  const INTERVAL_MS = 5000;

  const showLocalTimes = (root) => {
    for (const element of root.querySelectorAll('time[datetime]')) {
      const date = new Date(element.dateTime);
      if (!Number.isNaN(date.getTime())) element.title = date.toLocaleString() + ' local time';
    }
  };
  showLocalTimes(document);
  // A page from the back/forward cache may belong to a session that has ended.
  addEventListener('pageshow', (event) => {
    if (event.persisted) location.reload();
  });

  const figures = document.getElementById('figures');
  const pause = document.getElementById('pause');
  const state = document.getElementById('refresh-state');
  if (!figures || !pause || !state) return;

  let isPaused = false;
  let timer;
  const say = (text) => {
    if (state.textContent !== text) state.textContent = text;
  };
  const schedule = () => {
    clearTimeout(timer);
    if (!isPaused && !document.hidden) timer = setTimeout(refresh, INTERVAL_MS);
  };
  // Scroll positions and the focus survive a refresh.
  const replaceFigures = (text) => {
    const next = new DOMParser().parseFromString(text, 'text/html').body;
    const focused = document.activeElement && figures.contains(document.activeElement) ? document.activeElement.id : '';
    const scrolled = [...figures.querySelectorAll('.scroll')].map((element) => element.scrollLeft);
    figures.replaceChildren(...next.childNodes);
    figures.querySelectorAll('.scroll').forEach((element, at) => { element.scrollLeft = scrolled[at] || 0; });
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
    showLocalTimes(figures);
  };
  async function refresh() {
    try {
      const response = await fetch(figures.dataset.source, { cache: 'no-store', credentials: 'same-origin', redirect: 'error' });
      if (response.status === 401) {
        location.reload();
        return;
      }
      if (!response.ok) throw new Error(String(response.status));
      const text = await response.text();
      if (isPaused) return;
      replaceFigures(text);
      say('Refreshed every 5 seconds');
    } catch {
      if (!isPaused) say('Not refreshed: gatehouse is unreachable');
    }
    schedule();
  }
  pause.hidden = false;
  pause.addEventListener('click', () => {
    isPaused = !isPaused;
    pause.textContent = isPaused ? 'Resume' : 'Pause';
    say(isPaused ? 'Paused' : 'Refreshed every 5 seconds');
    schedule();
  });
  document.addEventListener('visibilitychange', schedule);
  say('Refreshed every 5 seconds');
  schedule();
})();
`;
