import { readFile } from 'node:fs/promises';
import { createServer, type Server } from 'node:http';
import { extname, join } from 'node:path';

const TYPES: Readonly<Record<string, string>> = {
  '.css': 'text/css',
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript',
  '.json': 'application/json',
  '.png': 'image/png',
  '.svg': 'image/svg+xml',
  '.wasm': 'application/wasm',
};

/** Serves a built site on the loopback interface, to look at it. */
export function serveSite(folder: string, base: string, port: number): Promise<Server> {
  const server = createServer((request, response) => {
    // The parser of URL removes "..", so that no path leads out of the folder.
    const { pathname } = new URL(request.url ?? '/', 'http://localhost');
    const path = decodeURIComponent(pathname).slice(base.length);
    const file = path === '' || path.endsWith('/') ? `${path}index.html` : path;
    const content =
      pathname.startsWith(base) && !file.includes('..')
        ? readFile(join(folder, file))
        : Promise.reject(new Error('outside'));
    content.then(
      (body) => {
        response.setHeader('Content-Type', TYPES[extname(file)] ?? 'application/octet-stream');
        response.end(body);
      },
      () => {
        response.statusCode = 404;
        response.end('Not found\n');
      },
    );
  });
  return new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen(port, '127.0.0.1', () => resolve(server));
  });
}
