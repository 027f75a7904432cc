// Nothing is imported before the guard: an older runtime would stumble over the first file that it does not understand.
const major = Number(process.versions.node.split('.')[0]);
if (!(major >= 26)) {
  process.stderr.write(`gatehouse: needs Node 26 or later, this is ${process.version}\n`);
  process.exit(70);
}

// A reader that has seen enough (`gatehouse schema | head`) is no error.
for (const stream of [process.stdout, process.stderr])
  stream.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code !== 'EPIPE') throw error;
    process.exit(0);
  });

// An import of node:http reads every one of its exports, and these load Node's own undici with them: time at every start
// and megabytes of memory for what nothing here uses. A runtime that does not let go of them (`delete` would throw) may.
const http = process.getBuiltinModule('node:http');
for (const name of ['WebSocket', 'CloseEvent', 'MessageEvent']) Reflect.deleteProperty(http, name);

// Below the size from which memory goes back to the system at once (gateway/worker-memory.ts): pools come and go all the time.
Buffer.poolSize = 32_768;

const { run } = await import('./commands/run.ts');
process.exitCode = await run(process.argv.slice(2), {
  stdout: (text) => process.stdout.write(text),
  stderr: (text) => process.stderr.write(text),
  get stdin() {
    return process.stdin;
  },
  env: process.env,
  cwd: process.cwd(),
  execArgv: process.execArgv,
});
