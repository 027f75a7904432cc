// An API without its own authentication: gatehouse authenticates requests and adds identity headers.
import { createServer } from 'node:http';

const server = createServer((request, response) => {
  const { 'x-forwarded-user': caller, 'x-forwarded-scope': scope } = request.headers;
  response.writeHead(200, { 'content-type': 'application/json' });
  response.end(`${JSON.stringify({ path: request.url, caller, scope })}\n`);
});
server.listen(Number(process.env.PORT ?? 8080), process.env.HOST ?? '0.0.0.0');
process.on('SIGTERM', () => server.close(() => process.exit(0)));
