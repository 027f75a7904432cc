/** The script of the console, served as a file. Every page works without it: it shows local times. */
export const SCRIPT = `'use strict';
for (const element of document.querySelectorAll('time[datetime]')) {
  const date = new Date(element.dateTime);
  if (!Number.isNaN(date.getTime())) element.title = date.toLocaleString() + ' local time';
}
// A page from the back/forward cache may belong to a session that has ended.
addEventListener('pageshow', (event) => {
  if (event.persisted) location.reload();
});
`;
